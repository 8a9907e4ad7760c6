// SPDX-License-Identifier: Apache-2.0
#include "src/suite/expand.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <regex>
#include <utility>

#include "batchproof/registry.h"
#include "src/numeric/dtype.h"
#include "src/suite/case_plan.h"
#include "src/suite/read.h"

namespace batchproof {
namespace {

using Role = PlannedAxis::Role;

std::string print(const AxisValue& value) {
  if (const std::int64_t* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  return std::get<std::string>(value);
}

// Whether the operator accepts the problem; `why` says why not.
bool accepts(const bp_operator& op, const Problem& problem, std::string& why) {
  if (op.validate == nullptr) return true;
  std::array<char, 512> error{};
  const Problem::View view(problem);
  if (op.validate(view.get(), error.data(), error.size()) == BP_OK) return true;
  error.back() = '\0';
  why = error[0] != '\0' ? error.data() : "the operator refuses the problem";
  return false;
}

// One case on its way to cells.
class CaseExpander {
 public:
  CaseExpander(const Case& loaded, CasePlan plan, const ExpandOptions& options, bool is_atk)
      : case_(loaded), plan_(std::move(plan)), options_(options), is_atk_(is_atk) {}

  // The number of points, before `where`; more than the limit is as good as any larger number.
  std::size_t points() const {
    std::size_t count = 1;
    for (const PlannedAxis& axis : plan_.axes) {
      count *= axis.axis.values.size();
      if (count > kMaxSuitePoints) break;
    }
    return count;
  }

  Result<std::vector<Cell>> run() {
    std::vector<Cell> cells;
    const std::size_t count = points();
    for (std::size_t point = 0; point < count; ++point) {
      Result<std::optional<Cell>> cell = make_cell(select(point));
      if (!cell) return tl::unexpected<Error>(cell.error());
      if (*cell) cells.push_back(std::move(**cell));
    }
    if (cells.empty()) {
      return fail_at(
          case_.position_of("where"),
          fmt::format("case {} has zero cells: no point of its axes satisfies {}", case_.name, quote(case_.where)));
    }
    if (is_atk_) drop_refused_worlds(cells);
    return cells;
  }

  Cell skipped(const std::string& reason) const {
    Cell cell = common_cell();
    cell.id = fmt::format("{}/{}/{}", case_.op, plan_.impl != nullptr ? plan_.impl->id : options_.impl, case_.name);
    cell.skip_reason = reason;
    return cell;
  }

 private:
  // The value of each axis at a point; the last axis runs fastest.
  std::vector<AxisValue> select(std::size_t point) const {
    std::vector<AxisValue> values(plan_.axes.size());
    for (std::size_t a = plan_.axes.size(); a-- > 0;) {
      const std::vector<AxisValue>& all = plan_.axes[a].axis.values;
      values[a] = all[point % all.size()];
      point /= all.size();
    }
    return values;
  }

  Cell common_cell() const {
    Cell cell;
    cell.op = plan_.op;
    cell.op_name = plan_.op->name;
    cell.impl = plan_.impl;
    cell.standard = case_.standard;
    if (cell.standard.bi && options_.relations != 0) cell.standard.bi->relations = options_.relations;
    cell.expect = case_.expect;
    cell.allow_vacuous = case_.allow_vacuous;
    cell.timeout_s = case_.timeout_s;
    cell.case_name = case_.name;
    cell.position = case_.position;
    return cell;
  }

  // Nothing where `where` leaves the point out.
  Result<std::optional<Cell>> make_cell(const std::vector<AxisValue>& values) const {
    const bp_operator& op = *plan_.op;
    Cell cell = common_cell();
    cell.problem.attrs = plan_.attrs;
    const bp_dtype_mode* mode = op.dtype_mode_count > 0 ? &op.dtype_modes[0] : nullptr;
    std::vector<const AxisValue*> port_axis(op.port_count);
    std::vector<std::optional<bp_dtype>> port_dtype(op.port_count);
    for (std::size_t a = 0; a < values.size(); ++a) {
      const PlannedAxis& axis = plan_.axes[a];
      cell.axes.emplace_back(axis.axis.name, print(values[a]));
      switch (axis.role) {
        case Role::world:
          cell.problem.world = static_cast<int>(std::get<std::int64_t>(values[a]));
          break;
        case Role::extent:
          cell.problem.axes[axis.axis.name] = std::get<std::int64_t>(values[a]);
          break;
        case Role::row_position:
          if (cell.standard.bi) cell.standard.bi->row_positions = {*row_position_from(values[a])};
          break;
        case Role::comm_mode:
          cell.comm_mode = *comm_mode_from_name(std::get<std::string>(values[a]));
          break;
        case Role::dtype_mode:
          for (std::uint32_t m = 0; m < op.dtype_mode_count; ++m) {
            if (std::get<std::string>(values[a]) == op.dtype_modes[m].name) mode = &op.dtype_modes[m];
          }
          break;
        case Role::port:
          for (const std::uint32_t i : forms_of(*plan_.op, axis.port)) port_axis[i] = &values[a];
          break;
        case Role::port_dtype:
          for (const std::uint32_t i : forms_of(*plan_.op, axis.port))
            port_dtype[i] = dtype_from_name(std::get<std::string>(values[a]));
          break;
      }
    }
    if (plan_.where) {
      const Result<bool> kept = holds(cell, values, mode);
      if (!kept) return fail_at(case_.position_of("where"), kept.error().message);
      if (!*kept) return std::optional<Cell>();
    }
    for (std::uint32_t i = 0; i < op.port_count; ++i) {
      const Result<bp_dtype> dtype = resolve_port(cell.problem, i, mode, port_axis[i], port_dtype[i]);
      if (!dtype) return tl::unexpected<Error>(dtype.error());
      cell.problem.dtypes.push_back(*dtype);
      cell.recipes.push_back(*dtype != BP_NONE ? recipe_of(i, port_axis[i]) : RecipeSpec{});
    }
    std::sort(cell.axes.begin(), cell.axes.end());
    cell.id = fmt::format("{}/{}/{}", op.name, plan_.impl->id, case_.name);
    for (std::size_t a = 0; a < cell.axes.size(); ++a) {
      cell.id += fmt::format("{}{}={}", a == 0 ? '/' : ',', cell.axes[a].first, cell.axes[a].second);
    }
    if (const Result<void> fits = check_shapes(cell); !fits) return tl::unexpected<Error>(fits.error());
    return std::optional<Cell>(std::move(cell));
  }

  // `where` knows every axis of the case and, where they are not axes, W, dtype and comm_mode.
  Result<bool> holds(const Cell& cell, const std::vector<AxisValue>& values, const bp_dtype_mode* mode) const {
    return plan_.where->evaluate_condition([&](std::string_view symbol) -> std::optional<Expression::Value> {
      for (std::size_t a = 0; a < values.size(); ++a) {
        if (plan_.axes[a].axis.name == symbol) return values[a];
      }
      if (symbol == "W") return Expression::Value(std::int64_t{cell.problem.world});
      if (symbol == "dtype" && mode != nullptr) return Expression::Value(std::string(mode->name));
      if (symbol == "comm_mode") return Expression::Value(std::string(comm_mode_name(cell.comm_mode)));
      return std::nullopt;
    });
  }

  // Whether port i is a form that the mode does not use while it uses another one.
  bool is_other_form(std::uint32_t i, const bp_dtype_mode* mode) const {
    if (mode == nullptr || mode->dtypes[i] != BP_NONE) return false;
    const std::vector<std::uint32_t> forms = forms_of(*plan_.op, i);
    return std::any_of(forms.begin(), forms.end(), [&](std::uint32_t form) { return mode->dtypes[form] != BP_NONE; });
  }

  // The dtype of a port in this cell, BP_NONE where it is absent. A scale is there where its mode has one.
  Result<bp_dtype> resolve_port(const Problem& problem, std::uint32_t i, const bp_dtype_mode* mode,
                                const AxisValue* axis, const std::optional<bp_dtype>& axis_dtype) const {
    const bp_port& port = plan_.op->ports[i];
    const PortSpec* spec = plan_.ports[i];
    const bool optional = (port.flags & BP_PORT_OPTIONAL) != 0;
    const bool asked = spec != nullptr || axis != nullptr || axis_dtype;
    if (axis != nullptr && std::get<std::string>(*axis) == "none") return bp_dtype{BP_NONE};
    if (is_other_form(i, mode)) return bp_dtype{BP_NONE};
    if (const Words missing = missing_axes(*plan_.op, port, problem); !missing.empty()) {
      if (!asked) return bp_dtype{BP_NONE};
      return fail_at(spec != nullptr ? spec->position : case_.position_of("axes"),
                     fmt::format("port {} of operator {} has the shape ({}); the case has no axis {}", port.name,
                                 plan_.op->name, port.shape, join_words(missing)));
    }
    const bool on_demand = port.kind == BP_OUTPUT ? case_.lists_outputs : port.kind != BP_SCALE;
    if (optional && !asked && on_demand) return bp_dtype{BP_NONE};
    if (axis_dtype) return *axis_dtype;
    if (spec != nullptr && spec->dtype) return *spec->dtype;
    const bp_dtype dtype = mode != nullptr ? mode->dtypes[i] : bp_dtype{BP_NONE};
    if (dtype == BP_NONE && asked) {
      return fail_at(
          spec != nullptr ? spec->position : case_.position_of("axes"),
          mode != nullptr
              ? fmt::format("dtype mode {} of operator {} has no port {}; leave the port out or give its dtype",
                            mode->name, plan_.op->name, port.name)
              : fmt::format("operator {} has no dtype modes; give the dtype of port {}", plan_.op->name, port.name));
    }
    return dtype;
  }

  RecipeSpec recipe_of(std::uint32_t i, const AxisValue* axis) const {
    const bp_port& port = plan_.op->ports[i];
    if (port.kind == BP_OUTPUT) return {};
    if (axis != nullptr) {
      if (const auto recipe = recipe_from_name(std::get<std::string>(*axis))) return *recipe;
    }
    if (plan_.ports[i] != nullptr && plan_.ports[i]->recipe) return *plan_.ports[i]->recipe;
    RecipeSpec spec;
    if (port.kind == BP_SCALE) spec.kind = RecipeKind::identity;
    return spec;
  }

  // The extents that the operator gives port i, or why it has none in this cell.
  Result<std::vector<std::int64_t>> shape_of(const Cell& cell, std::uint32_t i,
                                             const Expression::Lookup& lookup) const {
    const bp_operator& op = *plan_.op;
    if (op.infer_shapes != nullptr) {
      std::vector<bp_tensor> tensors(op.port_count);
      std::array<char, 512> error{};
      const Problem::View view(cell.problem);
      if (op.infer_shapes(view.get(), tensors.data(), error.data(), error.size()) != BP_OK) {
        error.back() = '\0';
        return fail(Error::Kind::usage, error.data());
      }
      const bp_tensor& tensor = tensors[i];
      return std::vector<std::int64_t>(tensor.shape, tensor.shape + std::clamp(tensor.ndim, 0, BP_MAX_DIMS));
    }
    const Result<std::vector<Expression>> shape = parse_shape(op.ports[i].shape);
    if (!shape) return tl::unexpected<Error>(shape.error());
    return evaluate_shape(*shape, lookup);
  }

  // The shapes that the case writes must be the operator's. The ATK dialect does not know the world size: there a
  // mismatch skips the cell, in every port.
  Result<void> check_shapes(Cell& cell) const {
    const bp_operator& op = *plan_.op;
    const auto lookup = [&](std::string_view symbol) -> std::optional<std::int64_t> {
      if (symbol == "W") return cell.problem.world;
      const auto found = cell.problem.axes.find(std::string(symbol));
      if (found == cell.problem.axes.end()) return std::nullopt;
      return found->second;
    };
    for (std::uint32_t i = 0; i < op.port_count; ++i) {
      if (cell.problem.dtypes[i] == BP_NONE || (plan_.shapes[i].empty() && !is_atk_)) continue;
      const Result<std::vector<std::int64_t>> actual = shape_of(cell, i, lookup);
      std::string problem = actual ? "" : actual.error().message;
      if (actual && !plan_.shapes[i].empty()) {
        const Result<std::vector<std::int64_t>> written = evaluate_shape(plan_.shapes[i], lookup);
        if (!written) {
          problem = written.error().message;
        } else if (*written != *actual) {
          problem = fmt::format("port {} has the shape ({}) in the case and ({}) in operator {}", op.ports[i].name,
                                fmt::join(*written, ", "), fmt::join(*actual, ", "), op.name);
        }
      }
      if (problem.empty()) continue;
      if (!is_atk_) return fail_at(plan_.ports[i]->position, fmt::format("{} (cell {})", problem, cell.id));
      cell.skip_reason = fmt::format("{} ranks: {}", cell.problem.world, problem);
      return {};
    }
    return {};
  }

  // ATK does not state the world size: a world that the operator refuses while it accepts another is not the case's
  // fault. The default worlds are then left out, worlds from the command line are skipped with the reason. A dtype
  // combination that the operator does not have is skipped, too.
  void drop_refused_worlds(std::vector<Cell>& cells) const {
    std::vector<std::string> refused(cells.size());
    bool any_accepted = false;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      if (!cells[c].skip_reason.empty()) continue;
      if (accepts(*plan_.op, cells[c].problem, refused[c])) {
        any_accepted = true;
      } else if (const Problem plain = with_mode_dtypes(cells[c]); plain.dtypes != cells[c].problem.dtypes) {
        std::string why;
        if (accepts(*plan_.op, plain, why)) cells[c].skip_reason = refused[c];
      }
    }
    if (!any_accepted) return;
    std::vector<Cell> kept;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      // A default world in which the case's shapes are another problem.
      if (options_.ranks.empty() && refused[c].empty() && !cells[c].skip_reason.empty()) continue;
      if (!refused[c].empty() && cells[c].skip_reason.empty()) {
        if (options_.ranks.empty()) continue;
        cells[c].skip_reason = refused[c];
      }
      kept.push_back(std::move(cells[c]));
    }
    cells = std::move(kept);
  }

  // The cell's problem with the dtypes of its mode wherever the case wrote others.
  Problem with_mode_dtypes(const Cell& cell) const {
    Problem problem = cell.problem;
    const bp_operator& op = *plan_.op;
    for (const auto& [name, value] : cell.axes) {
      if (name != "dtype") continue;
      for (std::uint32_t m = 0; m < op.dtype_mode_count; ++m) {
        if (value != op.dtype_modes[m].name) continue;
        for (std::uint32_t i = 0; i < op.port_count; ++i) {
          if (problem.dtypes[i] != BP_NONE && op.dtype_modes[m].dtypes[i] != BP_NONE) {
            problem.dtypes[i] = op.dtype_modes[m].dtypes[i];
          }
        }
      }
    }
    return problem;
  }

  const Case& case_;
  const CasePlan plan_;
  const ExpandOptions& options_;
  const bool is_atk_;
};

// A case that cannot run here, under the names that it has in the file.
Cell unavailable(const Case& loaded) {
  Cell cell;
  cell.op_name = loaded.op;
  cell.standard = loaded.standard;
  cell.expect = loaded.expect;
  cell.allow_vacuous = loaded.allow_vacuous;
  cell.timeout_s = loaded.timeout_s;
  cell.case_name = loaded.name;
  cell.position = loaded.position;
  cell.skip_reason = loaded.skip_reason;
  cell.id = fmt::format("{}/-/{}", loaded.op, loaded.name);
  for (const bp_operator* op : registered_operators()) {
    if (loaded.op == op->name) cell.op = op;
  }
  return cell;
}

Result<void> check_options(const Suite& suite, const ExpandOptions& options) {
  if (options.shard_count < 1 || options.shard_index < 0 || options.shard_index >= options.shard_count) {
    return fail(Error::Kind::usage,
                fmt::format("shard {} of {} does not exist", options.shard_index + 1, options.shard_count));
  }
  for (const int ranks : options.ranks) {
    if (ranks < 1)
      return fail(Error::Kind::usage, fmt::format("{} is no number of ranks; it must be at least 1", ranks));
  }
  const bool any_available = std::any_of(suite.cases.begin(), suite.cases.end(),
                                         [](const Case& loaded) { return loaded.skip_reason.empty(); });
  if (!any_available) return {};
  const auto has = [](const Words& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (!options.impl.empty() && !has(suite_implementations(suite), options.impl)) {
    return fail(Error::Kind::usage,
                fmt::format("no operator of {} has an implementation {}{}", suite.path, quote(options.impl),
                            suggest(options.impl, suite_implementations(suite), "implementations")));
  }
  for (const auto& [name, value] : options.set) {
    if (has(suite_attributes(suite), name)) continue;
    return fail(Error::Kind::usage, fmt::format("no operator of {} has an attribute {}{}", suite.path, quote(name),
                                                suggest(name, suite_attributes(suite), "attributes")));
  }
  return {};
}

}  // namespace

Result<std::vector<Cell>> expand(const Suite& suite, const ExpandOptions& options) {
  if (const Result<void> fine = check_options(suite, options); !fine) return tl::unexpected<Error>(fine.error());
  std::regex filter;
  try {
    filter = std::regex(options.filter, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    return fail(Error::Kind::usage,
                fmt::format("filter {} is not a regular expression: {}", quote(options.filter), error.what()));
  }
  std::vector<Cell> selected;
  std::size_t points = 0;
  std::size_t matched = 0;
  for (const Case& loaded : suite.cases) {
    std::vector<Cell> cells;
    if (!loaded.skip_reason.empty()) {
      cells.push_back(unavailable(loaded));
    } else {
      Result<CasePlan> plan = plan_case(loaded, options);
      if (!plan) return tl::unexpected<Error>(plan.error());
      const std::string skip_reason = plan->skip_reason;
      CaseExpander expander(loaded, std::move(*plan), options, loaded.dialect == Dialect::atk);
      points += expander.points();
      if (points > kMaxSuitePoints) {
        return fail_at(loaded.position_of("axes"),
                       fmt::format("the suite has more than {} points; split it", kMaxSuitePoints));
      }
      if (!skip_reason.empty()) {
        cells.push_back(expander.skipped(skip_reason));
      } else {
        Result<std::vector<Cell>> expanded = expander.run();
        if (!expanded) return tl::unexpected<Error>(expanded.error());
        cells = std::move(*expanded);
      }
    }
    for (Cell& cell : cells) {
      if (!options.filter.empty() && !std::regex_search(cell.id, filter)) continue;
      if (matched++ % static_cast<std::size_t>(options.shard_count) == static_cast<std::size_t>(options.shard_index)) {
        selected.push_back(std::move(cell));
      }
    }
  }
  return selected;
}

}  // namespace batchproof
