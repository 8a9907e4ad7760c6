// SPDX-License-Identifier: Apache-2.0
//
// The mHC kernels on a device: both paths and every cut give the same bytes, a row's bytes do not depend on its batch,
// the values are those of the CPU within rounding, 2,000 launches give the same bytes beside a busy stream.
//
//   mhc_check correct | every | repeat | flips | layers | sanitize
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "src/kernels/cuda/mhc_params.h"
#include "src/numeric/bf16.h"
#include "tests/gpu/clock.h"
#include "tests/gpu/mhc_case.h"
#include "tests/gpu/mhc_layers.h"

namespace batchproof::cuda::gpu {
namespace {

struct Shape {
  MhcForm form;
  std::int64_t hidden;
  bool norm;
};
std::string text(const Shape& s) { return fmt::format("{} H={}{}", name_of(s.form), s.hidden, s.norm ? " norm" : ""); }

struct Run {
  Shape shape;
  CudaMhcPath path = CudaMhcPath::automatic;
};
std::string text(const Run& r) {
  return text(r.shape) + (r.path == CudaMhcPath::product ? " by the product's kernels"
                          : r.path == CudaMhcPath::relay ? " by the kernel for many rows"
                                                         : "");
}

void run(const MhcCase& c, std::int64_t first, std::int64_t rows, const CudaMhcOptions& options) {
  must(cuda_mhc(c.call(first, rows), options));
}

template <class T>
std::vector<T> read(const void* from, std::size_t count) {
  std::vector<T> host(count);
  must("reading", cudaMemcpy(host.data(), from, count * sizeof(T), cudaMemcpyDefault));
  return host;
}

// Every cut of the product's own kernels that fits, each with a dependent launch as well.
template <class Body>
void for_each_product(CudaMhcOptions options, const Body& body) {
  options.path = CudaMhcPath::product;
  for (const bool dependent : {false, true}) {
    options.dependent = dependent;
    body(fmt::format("product as chosen{}", dependent ? ", dependent" : ""), options);
    for (const int few : {32, 64, 128, 256}) {
      CudaMhcOptions cut = options;
      cut.few_tokens = few;
      body(fmt::format("product of parts, {} tokens{}", few, dependent ? ", dependent" : ""), cut);
    }
    for (const int many : {1, 3, 8, 64}) {
      CudaMhcOptions cut = options;
      cut.many_shares = many;
      body(fmt::format("product of blocks, {} shares{}", many, dependent ? ", dependent" : ""), cut);
    }
  }
}

bool has_relay(const Shape& s) {
  return (s.form == MhcForm::pre || s.form == MhcForm::fused || s.form == MhcForm::fused_delayed) &&
         s.hidden % 64 == 0 && s.hidden <= kRelayBlocksMost * kMhcColumns;
}

// Every cut of the kernel for many rows: few thread blocks and many, as close to one another as they may be and far.
template <class Body>
void for_each_relay(CudaMhcOptions options, const Body& body) {
  options.path = CudaMhcPath::relay;
  for (const int shares : {0, 1, 3}) {
    for (const int ahead : {0, kRelayAheadLeast, 1000}) {
      options.many_shares = shares;
      options.ahead = ahead;
      body(fmt::format("many rows, {} shares, {} stages ahead", shares, ahead), options);
    }
  }
}

// Every path, every cut of the kernels, other orders, single rows.
void bytes(const Shape& s, std::int64_t rows, cudaStream_t stream, Score& score) {
  const MhcCase c(s.form, rows, s.hidden, s.norm);
  c.clear_outputs();
  CudaMhcOptions options;
  options.stream = stream;
  options.path = CudaMhcPath::portable;
  run(c, 0, rows, options);
  must("waiting", cudaStreamSynchronize(stream));
  const std::vector<Matrix> expected = c.kept();
  const auto same = [&](const char* what, const CudaMhcOptions& with, std::int64_t first, std::int64_t count) {
    c.clear_outputs();
    run(c, first, count, with);
    const std::uint64_t differing = c.differing(expected, first, count, stream);
    if (differing != 0)
      score.line(false, fmt::format("{} M={} {}: {} elements differ", text(s), rows, what, differing));
    return differing == 0;
  };
  bool ok = true;
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, rows / 2, rows - 1})
    if (row < rows) ok = same("portable, one row", options, row, 1) && ok;
  if (s.form != MhcForm::post && s.hidden > kMhcColumns) {  // a cluster has two thread blocks or more
    options.path = CudaMhcPath::cluster;
    ok = same("cluster", options, 0, rows) && ok;
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, rows / 3, rows - 1})
      if (row < rows) ok = same("cluster, one row", options, row, 1) && ok;
    if (rows > 20) ok = same("cluster, rows 3 to 20", options, 3, 17) && ok;
    for (const int cluster : {0, 1, 3, 8}) {
      for (const int slots : {0, 1, 2, 3, 8}) {
        for (const int lag : {0, 1, 2}) {
          CudaMhcOptions cut = options;
          cut.cluster = cluster;
          cut.slots = slots;
          cut.lag = lag;
          c.clear_outputs();
          if (!cuda_mhc(c.call(0, rows), cut)) continue;  // does not fit
          const std::uint64_t differing = c.differing(expected, 0, rows, stream);
          if (differing != 0) {
            ok = false;
            score.line(false, fmt::format("{} M={} clusters of {}, {} slots, lag {}: {} elements differ", text(s), rows,
                                          cluster, slots, lag, differing));
          }
        }
      }
    }
    CudaMhcOptions few = options;
    few.processors = 20;
    ok = same("20 processors", few, 0, rows) && ok;
  }
  // Whether a cut that fits gives the bytes, whatever its workspace held.
  const auto tried = [&](const std::string& name, const CudaMhcOptions& cut) {
    c.clear_outputs();
    must("poisoning the workspace",
         cudaMemset(c.call(0, rows).call.workspace, 0xFF, c.call(0, rows).call.workspace_bytes));
    must("waiting", cudaDeviceSynchronize());
    if (!cuda_mhc(c.call(0, rows), cut)) return false;
    const std::uint64_t differing = c.differing(expected, 0, rows, stream);
    if (differing != 0) {
      ok = false;
      score.line(false, fmt::format("{} M={} {}: {} elements differ", text(s), rows, name, differing));
    }
    return true;
  };
  int products = 0, relays = 0;
  if (s.form == MhcForm::pre || s.form == MhcForm::fused) {
    for_each_product(options,
                     [&](const std::string& name, const CudaMhcOptions& cut) { products += tried(name, cut); });
    if (products != (s.hidden % 64 == 0 ? 2 * 9 : 0)) ok = false;
  }
  if (s.form != MhcForm::post)
    for_each_relay(options, [&](const std::string& name, const CudaMhcOptions& cut) { relays += tried(name, cut); });
  if (relays != (has_relay(s) ? 9 : 0)) ok = false;
  // The order witness moves bytes.
  CudaMhcOptions reversed;
  reversed.stream = stream;
  reversed.reversed = true;
  c.clear_outputs();
  run(c, 0, rows, reversed);
  const std::uint64_t moved = c.differing(expected, 0, rows, stream);
  // BF16 outputs alone need many rows to show it.
  const bool alive = moved != 0 || (s.form == MhcForm::post && rows < 100);
  score.line(ok && alive, fmt::format("{} M={}: one set of bytes{}; {} elements move in the other order", text(s), rows,
                                      products + relays > 0
                                          ? fmt::format(", {} plans of the product, {} for many rows", products, relays)
                                          : "",
                                      moved));
}

// Against the CPU's FP32 recipe: mHC post byte by byte, the rest within rounding.
//   slow: logits of comb far apart, so that Sinkhorn still moves in its last pass
void values(const Shape& s, bool slow, Score& score) {
  constexpr std::int64_t kRows = 24;
  const MhcCase c(s.form, kRows, s.hidden, s.norm);
  c.clear_outputs();
  if (slow) {
    float base[24] = {};
    for (int i = 0; i < 16; ++i) base[8 + i] = i / 4 == i % 4 ? 7.0f : (i / 4 + 1) % 4 == i % 4 ? 3.0f : -4.0f;
    base[8 + 3] = 6.5f;
    must("writing base", cudaMemcpy(const_cast<float*>(c.call(0, 1).base), base, sizeof base, cudaMemcpyHostToDevice));
  }
  CudaMhcOptions options;
  run(c, 0, kRows, options);
  must("waiting", cudaDeviceSynchronize());
  CudaMhcCall device = c.call(0, kRows);
  MhcCall host = device.call;
  const auto h = static_cast<std::size_t>(s.hidden);
  std::vector<std::vector<std::uint16_t>> halves;
  std::vector<std::vector<float>> floats;
  const auto half = [&](const std::uint16_t* from, std::size_t count) -> std::uint16_t* {
    if (from == nullptr) return nullptr;
    halves.push_back(read<std::uint16_t>(from, count));
    return halves.back().data();
  };
  const auto full = [&](const float* from, std::size_t count) -> float* {
    if (from == nullptr) return nullptr;
    floats.push_back(read<float>(from, count));
    return floats.back().data();
  };
  // Outputs start as NaN, as the device's do: what either side leaves out is unequal to everything.
  const auto half_out = [&](const std::uint16_t* on_device, std::size_t count) -> std::uint16_t* {
    if (on_device == nullptr) return nullptr;
    halves.emplace_back(count, std::uint16_t{0xFFFF});
    return halves.back().data();
  };
  const auto full_out = [&](const float* on_device, std::size_t count) -> float* {
    if (on_device == nullptr) return nullptr;
    floats.emplace_back(count, std::numeric_limits<float>::quiet_NaN());
    return floats.back().data();
  };
  host.residual.data = half(host.residual.data, kRows * h * (host.broadcast ? 1 : 4));
  host.post.x = half(host.post.x, kRows * h);
  host.post.post.data = full(host.post.post.data, kRows * 4);
  host.post.comb.data = full(host.post.comb.data, kRows * 16);
  host.residual_out = half_out(host.residual_out, kRows * h * 4);
  const auto mixes = static_cast<std::size_t>(host.head ? 4 : 24);
  if (!host.post_only) {
    host.fn = full(host.fn, mixes * h * (host.broadcast ? 1 : 4));
    const auto scale = read<float>(device.scale, host.head ? 1 : 3), base = read<float>(device.base, mixes);
    std::copy(scale.begin(), scale.end(), host.scale);
    std::copy(base.begin(), base.end(), host.base);
    host.norm_weight = half(host.norm_weight, h);
    host.carried.data = full(host.carried.data, kRows * 4);
    host.pre_out.data = full_out(host.pre_out.data, kRows * 4);
    host.mean_out.data = half_out(host.mean_out.data, kRows * h);
    host.out.data = half_out(host.out.data, kRows * h);
    host.post_out.data = full_out(host.post_out.data, kRows * 4);
    host.comb_out.data = full_out(host.comb_out.data, kRows * 16);
    host.mixes_out.data = full_out(host.mixes_out.data, kRows * mixes);
    host.square_out.data = full_out(host.square_out.data, kRows);
  }
  host.path = {.tf32 = false, .constant = true};
  std::vector<char> workspace(mhc_workspace(kRows, s.hidden * 4, host.path) + 64);
  host.workspace = workspace.data();
  host.workspace_bytes = workspace.size();
  must(run_mhc(host));
  bool ok = true;
  std::string worst;
  const auto compare = [&](const char* what, std::vector<float> got, std::vector<float> want, double limit) {
    double most = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(got[i] - want[i]) / (std::abs(want[i]) + 0.05);
      ok = ok && error <= limit;                            // not so where it is NaN
      if (error > most || std::isnan(error)) most = error;  // NaN stays, so that the line shows it
    }
    worst += fmt::format(" {} {:.1e}", what, most);
  };
  const auto wide = [](const std::vector<std::uint16_t>& from) {
    std::vector<float> to(from.size());
    std::transform(from.begin(), from.end(), to.begin(), [](std::uint16_t v) { return bf16_to_float(v); });
    return to;
  };
  const auto halves_of = [&](const std::uint16_t* on_device, const std::uint16_t* on_host, std::size_t count,
                             const char* what, double limit) {
    if (on_device == nullptr) return;
    compare(what, wide(read<std::uint16_t>(on_device, count)),
            wide(std::vector<std::uint16_t>(on_host, on_host + count)), limit);
  };
  const auto floats_of = [&](const float* on_device, const float* on_host, std::size_t count, const char* what,
                             double limit) {
    if (on_device == nullptr) return;
    compare(what, read<float>(on_device, count), std::vector<float>(on_host, on_host + count), limit);
  };
  halves_of(device.call.residual_out, host.residual_out, kRows * h * 4, "residual", 0);  // the same bytes
  floats_of(device.call.mixes_out.data, host.mixes_out.data, kRows * mixes, "mixes", 1e-3);
  floats_of(device.call.square_out.data, host.square_out.data, kRows, "squares", 2e-6);
  floats_of(device.call.post_out.data, host.post_out.data, kRows * 4, "post", 2e-5);
  floats_of(device.call.comb_out.data, host.comb_out.data, kRows * 16, "comb", slow ? 1e-4 : 2e-5);
  floats_of(device.call.pre_out.data, host.pre_out.data, kRows * 4, "pre", 2e-5);
  halves_of(device.call.mean_out.data, host.mean_out.data, kRows * h, "mean", 0);
  halves_of(device.call.out.data, host.out.data, kRows * h, "out", 0.02);  // one step of BF16 is 2^-8
  score.line(ok, fmt::format("{}{}: against the CPU, most relative error:{}", text(s), slow ? " slow" : "", worst));
}

// NaN and infinity in other rows reach nobody.
void leaks(const Run& r, cudaStream_t stream, Score& score) {
  const Shape& s = r.shape;
  constexpr std::int64_t kRows = 40;
  const MhcCase c(s.form, kRows, s.hidden, s.norm);
  CudaMhcOptions options;
  options.path = r.path;
  options.stream = stream;
  run(c, 0, kRows, options);
  must("waiting", cudaStreamSynchronize(stream));
  const std::vector<Matrix> expected = c.kept();
  const CudaMhcCall call = c.call(0, kRows);
  const auto row = static_cast<std::size_t>(s.hidden) * (call.call.broadcast ? 1 : 4);
  std::vector<std::uint16_t> poison(row);
  for (std::size_t i = 0; i < row; ++i) poison[i] = i % 3 == 0 ? 0x7FC1 : i % 3 == 1 ? 0x7F80 : 0xFF80;
  auto* const residual = const_cast<std::uint16_t*>(call.call.residual.data);
  for (std::int64_t at = 0; at < kRows; ++at) {
    if (at == 5 || at == 38) continue;
    must("poisoning",
         cudaMemcpy(residual + at * call.call.residual.row, poison.data(), row * 2, cudaMemcpyHostToDevice));
  }
  run(c, 0, kRows, options);
  const std::uint64_t differing = c.differing(expected, 5, 1, stream) + c.differing(expected, 38, 1, stream);
  const std::uint64_t neighbours = c.differing(expected, 6, 1, stream);
  score.line(
      differing == 0 && neighbours != 0,
      fmt::format("{}: NaN and infinity in 38 of 40 rows: {} elements of the others differ", text(r), differing));
}

constexpr Shape kAll[] = {
    {MhcForm::pre, 4096, false},   {MhcForm::pre, 4096, true},           {MhcForm::pre, 7168, true},
    {MhcForm::pre, 5120, true},    {MhcForm::broadcast, 4096, true},     {MhcForm::broadcast, 7168, true},
    {MhcForm::fused, 4096, false}, {MhcForm::fused, 4096, true},         {MhcForm::fused, 7168, true},
    {MhcForm::fused, 5120, true},  {MhcForm::fused, 528, true},          {MhcForm::pre, 80, true},
    {MhcForm::pre, 576, false},    {MhcForm::broadcast, 576, true},      {MhcForm::head, 4096, false},
    {MhcForm::head, 7168, false},  {MhcForm::head, 272, false},          {MhcForm::post, 4096, false},
    {MhcForm::post, 528, false},   {MhcForm::fused_delayed, 4096, true}, {MhcForm::fused_delayed, 1040, false}};

int correct() {
  Score score;
  cudaStream_t stream;
  must("making a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const Counter reciprocals;
  must("comparing reciprocals",
       launch_mhc_reciprocals(reinterpret_cast<unsigned long long*>(reciprocals.get()), nullptr));
  score.line(reciprocals.value() == 0,
             fmt::format("{} of 75,497,472 reciprocals are not correctly rounded", reciprocals.value()));
  for (const Shape& s : kAll) values(s, false, score);
  for (const Shape& s : {Shape{MhcForm::pre, 4096, true}, Shape{MhcForm::fused, 7168, true}}) values(s, true, score);
  for (const Shape& s : kAll) leaks({s}, stream, score);
  for (const Shape& s : kAll)
    if (has_relay(s)) leaks({s, CudaMhcPath::relay}, stream, score);
  for (const Shape& s : kAll) {
    for (const std::int64_t rows : {1, 17, 130, 777}) bytes(s, rows, stream, score);
  }
  fmt::print("{} passed, {} failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

// Where bytes differ from those of a batch of `of` rows by `reference`, for every batch size up to `most`, each as the
// first rows and as the last ones of the large batch in turn, so that a row is at many places: all rows. Empty:
// nowhere.
std::string moved_at(const MhcCase& c, std::int64_t of, CudaMhcPath reference, CudaMhcPath path, std::int64_t most,
                     cudaStream_t stream) {
  CudaMhcOptions options;
  options.stream = stream;
  options.path = reference;
  c.clear_outputs();
  run(c, 0, of, options);
  must("waiting", cudaStreamSynchronize(stream));
  const std::vector<Matrix> expected = c.kept();
  const auto all = c.outputs();
  const Counter counter;
  options.path = path;
  std::string wrong;
  std::uint64_t before = 0;
  for (std::int64_t rows = 1; rows <= most; ++rows) {
    const std::int64_t first = rows % 2 == 0 ? 0 : of - rows;
    c.clear_rows_on(stream, first, rows);
    run(c, first, rows, options);
    for (std::size_t o = 0; o < all.size(); ++o) MhcCase::count(*all[o], expected[o], first, rows, counter, stream);
    if (rows % 1024 != 0 && rows != most) continue;
    must("waiting", cudaStreamSynchronize(stream));
    if (const std::uint64_t now = counter.value(); now != before) {
      wrong += fmt::format(" {} elements up to M={}", now - before, rows);
      before = now;
    }
  }
  return wrong;
}

// Every batch size from 1 to 16,384 has the bytes of the portable kernels; fast mode, which has not, is seen to move.
int every() {
  Score score;
  constexpr std::int64_t kMost = 16384, kControl = 600;
  cudaStream_t stream;
  must("making a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const Run& r : {Run{{MhcForm::fused, 4096, true}}, Run{{MhcForm::fused, 5120, true}},
                       Run{{MhcForm::fused, 7168, true}}, Run{{MhcForm::pre, 4096, true}},
                       Run{{MhcForm::pre, 5120, true}}, Run{{MhcForm::pre, 4096, true}, CudaMhcPath::product}}) {
    const MhcCase c(r.shape.form, kMost, r.shape.hidden, r.shape.norm);
    const std::string wrong = moved_at(c, kMost, CudaMhcPath::portable, r.path, kMost, stream);
    score.line(wrong.empty(), fmt::format("{}: every M from 1 to {}, all rows: {}", text(r), kMost,
                                          wrong.empty() ? "one set of bytes" : "moved:" + wrong));
  }
  const MhcCase control(MhcForm::pre, kControl, 4096, true);
  const std::string caught =
      moved_at(control, kControl, CudaMhcPath::occupancy, CudaMhcPath::occupancy, kControl, stream);
  score.line(!caught.empty(), fmt::format("control, fast mode: moved:{}", caught));
  fmt::print("{} passed, {} failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

// 2,000 launches beside a stream that keeps the memory busy, with and without dependent launch.
int repeat() {
  Score score;
  cudaStream_t stream, busy;
  must("making a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  must("making a stream", cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  const std::size_t load_bytes = std::size_t{256} << 20;
  const DeviceBuffer from = must(DeviceBuffer::make(load_bytes)), to = must(DeviceBuffer::make(load_bytes));
  must("clearing", cudaMemset(from.get(), 1, load_bytes));
  for (const Run& r :
       {Run{{MhcForm::fused, 4096, true}}, Run{{MhcForm::fused, 7168, true}}, Run{{MhcForm::pre, 4096, true}},
        Run{{MhcForm::broadcast, 4096, true}}, Run{{MhcForm::pre, 4096, true}, CudaMhcPath::product},
        Run{{MhcForm::pre, 5120, true}, CudaMhcPath::relay}, Run{{MhcForm::fused, 4096, true}, CudaMhcPath::relay}}) {
    const Shape& s = r.shape;
    for (const std::int64_t rows : {1, 64, r.path == CudaMhcPath::automatic ? 515 : 1100}) {
      for (const bool dependent : {false, true}) {
        const MhcCase c(s.form, rows, s.hidden, s.norm);
        CudaMhcOptions options;
        options.path = r.path;
        options.stream = stream;
        run(c, 0, rows, options);
        must("waiting", cudaStreamSynchronize(stream));
        const std::vector<Matrix> expected = c.kept();
        options.dependent = dependent;
        Counter counter;
        constexpr int launches = 2000;
        for (int i = 0; i < launches; ++i) {
          if (i % 16 == 0)
            must("loading", cudaMemcpyAsync(to.get(), from.get(), load_bytes, cudaMemcpyDeviceToDevice, busy));
          // Over right bytes a tile that is left out would not show. Not before every launch: a dependent one starts
          // while the kernel before it ends, which it cannot behind a memset. Of three, so that odd and even ones are
          // cleared.
          if (i % 3 != 0) c.clear_outputs_on(stream);
          run(c, 0, rows, options);
          const auto all = c.outputs();
          for (std::size_t o = 0; o < all.size(); ++o) MhcCase::count(*all[o], expected[o], 0, rows, counter, stream);
        }
        must("waiting", cudaStreamSynchronize(stream));
        must("waiting", cudaStreamSynchronize(busy));
        score.line(counter.value() == 0, fmt::format("{} M={}{}: {} launches, {} elements differ", text(r), rows,
                                                     dependent ? " dependent" : "", launches, counter.value()));
      }
    }
  }
  fmt::print("{} passed, {} failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

// Fast mode's bytes change at the row counts of the formula, for this device's processors, and nowhere else.
int flips() {
  Score score;
  cudaStream_t stream;
  must("making a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const int processors = must(current_device()).processors;
  constexpr std::int64_t kMost = 1300, kVictims = 32;
  for (const Shape& s :
       {Shape{MhcForm::pre, 4096, false}, Shape{MhcForm::pre, 7168, false}, Shape{MhcForm::fused, 4096, false},
        Shape{MhcForm::fused, 7168, false}, Shape{MhcForm::broadcast, 4096, true}}) {
    const MhcCase c(s.form, kMost, s.hidden, s.norm);
    const std::int64_t columns = s.form == MhcForm::broadcast ? s.hidden : 4 * s.hidden;
    const auto expected = expected_flips({1, s.hidden, columns, processors, s.form == MhcForm::fused, false}, 1, kMost);
    CudaMhcOptions options;
    options.stream = stream;
    options.path = CudaMhcPath::occupancy;
    options.assumed_processors = processors;
    std::vector<std::int64_t> found;
    std::vector<Matrix> before;
    std::int64_t rows_before = 0;
    for (std::int64_t rows = 1; rows <= kMost; ++rows) {
      // Around every expected row count, and every 16th.
      const auto near = [&](std::int64_t at) { return rows >= at - 2 && rows <= at + 1; };
      if (rows % 16 > 1 && std::none_of(expected.begin(), expected.end(), near)) continue;
      run(c, 0, rows, options);
      must("waiting", cudaStreamSynchronize(stream));
      if (rows_before > 0 && c.differing(before, 0, std::min(rows_before, kVictims), stream) != 0)
        found.push_back(rows);
      before = c.kept();
      rows_before = rows;
    }
    std::string list;
    for (const std::int64_t at : found) list += fmt::format(" {}", at);
    score.line(found == expected, fmt::format("{}, {} processors: fast mode flips at{}", text(s), processors, list));
  }
  fmt::print("{} passed, {} failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

// 86 sites in sequence, as a graph: a row of the last output alone and in batches, at several places; the chain's time.
int layers() {
  Score score;
  constexpr std::int64_t kMost = 257;
  const MhcLayers model(kMost);
  Clock clock;
  const auto row = [&](std::int64_t at) {
    must("waiting", cudaStreamSynchronize(clock.stream()));
    return read<std::uint16_t>(model.y().at(at), MhcLayers::kHidden);
  };
  const auto replay = [&](std::int64_t first, std::int64_t rows, bool dependent) {
    return clock.graph(1, 3, [&](int, cudaStream_t s) {
      model.run(first, rows, s, dependent);
      return true;
    });
  };
  constexpr std::int64_t kVictim = 131;
  replay(kVictim, 1, false);
  const auto alone = row(0);
  for (const std::int64_t rows : {2, 8, 16, 17, 64, 128, 129, 256}) {
    for (const std::int64_t place : {std::int64_t{0}, rows / 2, rows - 1}) {
      const std::int64_t first = kVictim - place;
      if (first < 0 || first + rows > kMost) continue;
      const double us = replay(first, rows, false);
      const bool plain = row(place) == alone;
      const double dependent = replay(first, rows, true);
      score.line(plain && row(place) == alone,
                 fmt::format("{} rows, the row at {}: {} sites and sublayers in {:.0f} us, with "
                             "dependent launch {:.0f} us",
                             rows, place, MhcLayers::kSites + 2, us, dependent));
    }
  }
  const bool finite = std::none_of(alone.begin(), alone.end(), [](std::uint16_t v) { return (v & 0x7F80) == 0x7F80; });
  replay(kVictim + 1, 1, false);
  score.line(finite && row(0) != alone, "the output is finite, and another row gives another one");
  fmt::print("{} passed, {} failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

// Small, for compute-sanitizer.
int sanitize() {
  for (const Shape& s :
       {Shape{MhcForm::fused, 1024, true}, Shape{MhcForm::pre, 576, true}, Shape{MhcForm::broadcast, 576, true},
        Shape{MhcForm::head, 512, false}, Shape{MhcForm::fused_delayed, 512, true}, Shape{MhcForm::post, 512, false}}) {
    for (const std::int64_t rows : {5, 50}) {
      const MhcCase c(s.form, rows, s.hidden, s.norm);
      CudaMhcOptions options;
      run(c, 0, rows, options);
      options.processors = 8;  // several tiles per cluster
      run(c, 0, rows, options);
      options.cluster = 2;  // two blocks of the reduction in a thread block, where there are three or more
      run(c, 0, rows, options);
      options.cluster = 0;
      options.path = CudaMhcPath::portable;
      run(c, 0, rows, options);
      options.path = CudaMhcPath::occupancy;
      if (s.form != MhcForm::head) run(c, 0, rows, options);
      if (has_relay(s)) {
        options.path = CudaMhcPath::relay;
        options.many_shares = 1;  // four stages a thread block
        run(c, 0, rows, options);
        options.many_shares = 0;
      }
      if (s.form == MhcForm::pre) {
        options.path = CudaMhcPath::product;
        options.few_tokens = 32;
        run(c, 0, rows, options);
        options.few_tokens = 0;
        options.many_shares = 3;
        run(c, 0, rows, options);
      }
      must("waiting", cudaDeviceSynchronize());
    }
  }
  fmt::print("done\n");
  return 0;
}

}  // namespace
}  // namespace batchproof::cuda::gpu

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "correct") return batchproof::cuda::gpu::correct();
  if (part == "every") return batchproof::cuda::gpu::every();
  if (part == "repeat") return batchproof::cuda::gpu::repeat();
  if (part == "flips") return batchproof::cuda::gpu::flips();
  if (part == "layers") return batchproof::cuda::gpu::layers();
  if (part == "sanitize") return batchproof::cuda::gpu::sanitize();
  std::fprintf(stderr, "usage: mhc_check correct | every | repeat | flips | layers | sanitize\n");
  return 2;
}
