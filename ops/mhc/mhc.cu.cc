// SPDX-License-Identifier: Apache-2.0
//
// The mHC family on CUDA: what is promised, and the controls.
#include "src/kernels/cuda/mhc.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <atomic>

#include "batchproof/problem.h"
#include "ops/mhc/cuda.h"
#include "src/kernels/cuda/linear.h"
#include "src/kernels/cuda/tensor_core_rules.h"
#include "src/runtime/cuda_device.h"

namespace batchproof::mhc {
namespace {

using cuda::CudaMhcCall;
using cuda::CudaMhcOptions;
using cuda::CudaMhcPath;
using Cuda = Recipe::Cuda;
using Defect = Recipe::Defect;

// Why the current device cannot run the recipe; empty: it can.
std::string refusal(Form form, const Recipe& recipe) {
  const Result<cuda::DeviceInfo> device = cuda::current_device();
  if (!device) return device.error().message;
  if (form == Form::post) return "";  // no tensor cores: the same bytes on every generation
  const int generation = recipe.cuda == Cuda::sm80 ? 8 : 9;
  if (device->major != generation)
    return fmt::format("it is for compute capability {}.x, {} is {}.{}", generation, device->name, device->major,
                       device->minor);
  const Result<void> rules = cuda::tensor_core_rules_hold(BP_BF16);
  return rules ? "" : rules.error().message;
}

// Rows first, first + 2, ... of a call.
CudaMhcCall every_second_row(const CudaMhcCall& c, std::int64_t first) {
  CudaMhcCall part = c;
  MhcCall& m = part.call;
  m.rows = c.call.rows > first ? (c.call.rows - first + 1) / 2 : 0;
  const auto halve = [&](auto*& data, std::int64_t& row) {
    if (data != nullptr) data += first * row;
    row *= 2;
  };
  const auto halve_matrix = [&](MhcMatrix& matrix) { halve(matrix.data, matrix.row); };
  halve(m.residual.data, m.residual.row);
  halve(m.post.x, m.post.x_row);
  halve_matrix(m.post.post);
  halve_matrix(m.post.comb);
  halve(m.residual_out, m.residual_out_row);
  halve_matrix(m.carried);
  halve_matrix(m.pre_out);
  halve_matrix(m.post_out);
  halve_matrix(m.comb_out);
  halve(m.out.data, m.out.row);
  halve(m.mean_out.data, m.mean_out.row);
  halve_matrix(m.mixes_out);
  halve_matrix(m.square_out);
  return part;
}

// 0 * (first element of the next row of the streams) onto the layer input.
Result<void> leak(const CudaMhcCall& c, void* stream) {
  cuda::CudaGemmCall y;
  y.m = c.call.rows;
  y.n = c.call.hidden;
  y.y = c.call.out.data;
  y.y_dtype = BP_BF16;
  y.y_row_stride = c.call.out.row;
  return cuda::cuda_add_leak(y, c.call.rows - 1, c.call.residual.data + c.call.residual.row, BP_BF16,
                             c.call.residual.row, 0.0f, stream);
}

bool takes_reversed_order(Defect defect, const bp_context& context, std::int64_t rows) {
  static std::atomic<unsigned> calls{0};
  switch (defect) {
    case Defect::order_by_rows:
      return rows > kMhcSmallRows;
    case Defect::processors_order:
      return context.processors > 0 && context.processors < 100;
    case Defect::calls_order:
      return calls.fetch_add(1) % 2 != 0;
    default:
      return false;
  }
}

}  // namespace

std::size_t cuda_workspace_size(Form form, std::int64_t rows, std::int64_t hidden) {
  return form == Form::post ? 0 : cuda::cuda_mhc_workspace(rows, hidden);
}

std::uint32_t cuda_promises(Form form, const Recipe& recipe, bp_mode mode, const bp_device* device) {
  if (device == nullptr || device->memory != BP_MEMORY_CUDA || !refusal(form, recipe).empty()) return 0;
  constexpr std::uint32_t kAlways = BP_REPEAT | BP_NEIGHBOURS | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS |
                                    BP_HISTORY | BP_STREAM | BP_GRAPH | BP_PROCESSORS;
  return mode == BP_MODE_FAST ? kAlways : kAlways | BP_BATCH_SIZE;
}

Result<void> run_cuda(Form form, const Recipe& recipe, const bp_context* context, const MhcCall& call,
                      const CudaConstants& constants) {
  if (const std::string why = refusal(form, recipe); !why.empty())
    return fail(Error::Kind::operation, fmt::format("{} refuses this device: {}", context->implementation->id, why));
  const CudaMhcCall c{call, constants.scale, constants.base, constants.scale_step, constants.base_step};
  CudaMhcOptions options;
  options.stream = context->stream;
  options.processors = context->processors;
  options.reversed =
      recipe.plan == Recipe::Plan::descending || takes_reversed_order(recipe.defect, *context, call.rows);
  if (recipe.cuda != Cuda::sm90) options.path = CudaMhcPath::portable;
  if (recipe.plan == Recipe::Plan::occupancy || recipe.defect == Defect::occupancy) {
    options.path = CudaMhcPath::occupancy;
    options.assumed_processors = static_cast<int>(bp_attr_int(context->problem, "processors"));
  }
  if (recipe.defect == Defect::odd_rows_order) {
    if (auto even = cuda_mhc(every_second_row(c, 0), options); !even) return even;
    options.reversed = true;
    return cuda_mhc(every_second_row(c, 1), options);
  }
  auto done = cuda_mhc(c, options);
  return done && recipe.defect == Defect::nan_leak ? leak(c, context->stream) : done;
}

}  // namespace batchproof::mhc
