// SPDX-License-Identifier: Apache-2.0
//
// Device test of the matrix product: bytes of every row against one reference for every batch size, position, plan,
// path, output dtype and way of storing the weight; the reference itself against the CPU model of the tensor core.
//
//   matmul_check correct | repeat | sanitize
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "src/kernels/cuda/tensor_core_model.h"
#include "src/kernels/cuda/tensor_core_rules.h"
#include "src/numeric/bf16.h"
#include "src/numeric/fp16.h"
#include "src/numeric/recipe.h"
#include "tests/gpu/case.h"

namespace batchproof::cuda::gpu {
namespace {

struct Setup {
  std::int64_t m, n, k;
  bp_dtype dtype = BP_BF16;
  bp_dtype y_dtype = BP_FP32;
  RecipeKind inputs = RecipeKind::normal;
  bool bias = false;
  bool tree = false;
  bool nan = false;          // two elements of row 1 are NaN, of unlike codes
  std::int64_t segment = 0;  // of a chain; 0: the schedule of the default implementation
  std::string name() const {
    return fmt::format("{} -> {}, n = {}, k = {}{}{}, {}", dtype == BP_BF16 ? "bf16" : "fp16",
                       y_dtype == BP_FP32   ? "fp32"
                       : y_dtype == BP_BF16 ? "bf16"
                                            : "fp16",
                       n, k, bias ? ", bias" : "",
                       tree  ? ", tree16"
                       : nan ? ", NaN"
                             : "",
                       inputs == RecipeKind::normal ? "normal" : "wide_exponent");
  }
};

class Product {
 public:
  explicit Product(const Setup& setup)
      : setup_(setup),
        x_(matrix(setup.m, setup.k, setup.dtype, (setup.k + 7) / 8 * 8)),
        w_(matrix(setup.n, setup.k, setup.dtype, (setup.k + 7) / 8 * 8)),
        w_mn_(matrix(setup.k, setup.n, setup.dtype, (setup.n + 7) / 8 * 8)),
        bias_(matrix(1, setup.n, BP_FP32)),
        reference_(matrix(setup.m, setup.n, setup.y_dtype)),
        y_(matrix(setup.m + 1, setup.n, setup.y_dtype, (setup.n + 7) / 8 * 8)),
        schedule_(must(setup.tree          ? Schedule::make(setup.k, TreePolicy{16, 16, kCudaTreeSegment})
                       : setup.segment > 0 ? Schedule::make(setup.k, ChainPolicy{setup.segment})
                                           : cuda_gemm_schedule(setup.k))) {
    fill(x_, setup.inputs, "x1");
    if (setup.nan) {
      const std::uint16_t codes[2] = {0x7FC1, 0xFFFF};
      must("planting NaN", cudaMemcpy(x_.at(1), codes, sizeof(codes), cudaMemcpyHostToDevice));
    }
    fill(w_, setup.inputs, "x2");
    fill(bias_, RecipeKind::normal, "bias");
    // The same weight stored (K, N).
    must(cuda_fill(
        {setup.inputs, setup.dtype, 1, name_hash("x2"), 0, setup.n, setup.k, w_mn_.memory.get(), 1, w_mn_.stride},
        nullptr));
    CudaGemmCall c = call(0, setup.m, false);
    c.y = reference_.memory.get();
    c.y_row_stride = reference_.stride;
    must(cuda_gemm(c, schedule_, {.path = CudaGemmPath::portable}));
  }

  CudaGemmCall call(std::int64_t row, std::int64_t m, bool weight_mn) const {
    CudaGemmCall c;
    c.m = m;
    c.n = setup_.n;
    c.k = setup_.k;
    c.dtype = setup_.dtype;
    c.x = x_.at(row);
    c.x_row_stride = x_.stride;
    c.w = weight_mn ? w_mn_.memory.get() : w_.memory.get();
    c.w_row_stride = weight_mn ? w_mn_.stride : 1;
    c.w_column_stride = weight_mn ? 1 : w_.stride;
    if (setup_.bias) {
      c.bias = bias_.memory.get();
      c.bias_dtype = BP_FP32;
    }
    c.y = y_.memory.get();
    c.y_dtype = setup_.y_dtype;
    c.y_row_stride = y_.stride;
    return c;
  }

  // Differing elements of rows [row, row + m), plus elements behind the last row that were written.
  std::uint64_t differing(std::int64_t row, std::int64_t m, bool weight_mn, CudaGemmOptions options) {
    poison_on(nullptr);
    count_.clear();
    must(cuda_gemm(call(row, m, weight_mn), schedule_, options));
    compare(row, m);
    std::uint64_t found = count_.value();
    // The row behind must still be poison: compare it with poison made anew in a row of its own.
    if (options.path != CudaGemmPath::portable && behind_.rows == 0) {
      behind_ = matrix(1, y_.stride, setup_.y_dtype);
      must("poisoning", cudaMemset(behind_.memory.get(), 0xFF, behind_.memory.bytes()));
    }
    if (behind_.rows != 0) {
      count_.clear();
      must(cuda_count_differing(y_.at(m), y_.stride, behind_.at(0), behind_.stride, 1, y_.stride,
                                bytes_of(setup_.y_dtype), count_.get(), nullptr));
      found += count_.value();
    }
    return found;
  }

  void poison_on(cudaStream_t stream) {
    must("poisoning", cudaMemsetAsync(y_.memory.get(), 0xFF, y_.memory.bytes(), stream));
  }

  void compare_on(cudaStream_t stream) {
    must(cuda_count_differing(y_.memory.get(), y_.stride, reference_.memory.get(), reference_.stride, setup_.m,
                              setup_.n, bytes_of(setup_.y_dtype), count_.get(), stream));
  }

  void compare(std::int64_t row, std::int64_t m) {
    must(cuda_count_differing(y_.memory.get(), y_.stride, reference_.at(row), reference_.stride, m, setup_.n,
                              bytes_of(setup_.y_dtype), count_.get(), nullptr));
  }

  // Outputs of a sample that differ from the CPU model, and the largest relative error against FP64.
  std::pair<int, double> against_model(int* total) {
    std::vector<std::uint16_t> x(static_cast<std::size_t>(x_.rows * x_.stride)),
        w(static_cast<std::size_t>(w_.rows * w_.stride));
    std::vector<float> y(static_cast<std::size_t>(setup_.m * setup_.n));
    must(x_.memory.download(x.data(), x.size() * 2));
    must(w_.memory.download(w.data(), w.size() * 2));
    must(reference_.memory.download(y.data(), y.size() * 4));
    const auto value = [&](std::uint16_t c) {
      return double{setup_.dtype == BP_BF16 ? bf16_to_float(c) : fp16_to_float(c)};
    };
    int differing = 0;
    double worst = 0;
    *total = 0;
    for (std::int64_t i = 0; i < setup_.m; i += std::max<std::int64_t>(1, setup_.m / 5)) {
      for (std::int64_t j = 0; j < setup_.n; j += std::max<std::int64_t>(1, setup_.n / 61)) {
        const std::uint16_t* a = &x[static_cast<std::size_t>(i * x_.stride)];
        const std::uint16_t* b = &w[static_cast<std::size_t>(j * w_.stride)];
        std::vector<float> sums;
        for (const Segment& s : schedule_.segments())
          sums.push_back(model_dot(setup_.dtype == BP_BF16 ? ModelType::bf16 : ModelType::fp16, a + s.begin,
                                   b + s.begin, static_cast<int>(s.end - s.begin), 16, wgmma_model(ModelType::bf16)));
        const float model = merge_segment_sums(schedule_, sums);
        double exact = 0, size = 0;
        for (std::int64_t q = 0; q < setup_.k; ++q) {
          exact += value(a[q]) * value(b[q]);
          size += std::fabs(value(a[q]) * value(b[q]));
        }
        const float got = y[static_cast<std::size_t>(i * setup_.n + j)];
        differing += std::memcmp(&model, &got, 4) != 0;
        if (size > 0) worst = std::max(worst, std::fabs(got - exact) / size);
        ++*total;
      }
    }
    return {differing, worst};
  }

  const Schedule& schedule() const { return schedule_; }
  Counter& count() { return count_; }
  const Matrix& x() const { return x_; }
  void reference_again(cudaStream_t stream) {
    CudaGemmCall c = call(0, setup_.m, false);
    c.y = reference_.memory.get();
    c.y_row_stride = reference_.stride;
    must(cuda_gemm(c, schedule_, {.stream = stream, .path = CudaGemmPath::portable}));
  }

 private:
  Setup setup_;
  Matrix x_, w_, w_mn_, bias_, reference_, y_, behind_;
  Schedule schedule_;
  Counter count_;
};

GemmDevice device_limits() { return must(cuda_gemm_device()); }

// one_of_a_kind: plans that differ in step, blocks or a further split of K are left out.
void every_plan(const Setup& setup, const std::vector<std::int64_t>& batches, Score& score,
                bool one_of_a_kind = false) {
  Product product(setup);
  std::uint64_t differing = 0;
  int plans = 0;
  std::string first;
  std::set<std::vector<int>> kinds;
  for (const bool mn : {false, true}) {
    for (const std::int64_t m : batches) {
      const KAxis axis = must(kernel_axis(product.schedule()));
      const GemmShape shape = cuda_gemm_shape(product.call(0, m, mn), axis);
      for (GemmPlan plan : gemm_plans(shape, device_limits())) {
        const std::vector<int> kind = {mn,        plan.tile.n,    plan.tile.groups,           plan.tile.by_rows,
                                       plan.deep, plan.cluster_n, std::min(plan.cluster_k, 2)};
        if (one_of_a_kind && !kinds.insert(kind).second) continue;
        plan.prefetch = plans % 3;
        const std::uint64_t found = product.differing(setup.m - m, m, mn, {.path = CudaGemmPath::wgmma, .plan = plan});
        if (found != 0 && first.empty())
          first = fmt::format("; first: {} m = {}{}, {} elements", plan.name(), m, mn ? " (K, N)" : "", found);
        differing += found;
        ++plans;
      }
    }
  }
  score.line(differing == 0 && plans > 0,
             fmt::format("every plan ({} runs): {}: {} elements differ{}", plans, setup.name(), differing, first));
}

void every_batch(const Setup& setup, Score& score) {
  Product product(setup);
  std::uint64_t differing = 0, moved = 0, chosen = 0;
  std::string first;
  const auto note = [&](std::uint64_t found, std::int64_t m, std::int64_t row) {
    if (found != 0 && first.empty()) first = fmt::format("; first: m = {} at row {}, {} elements", m, row, found);
    return found;
  };
  std::vector<std::int64_t> batches;
  for (std::int64_t m = 1; m <= std::min<std::int64_t>(300, setup.m); ++m) batches.push_back(m);
  for (const std::int64_t m : {384, 511, 512, 513, 768, 1023, 1024, 1025, 2048, 2049, 4096, 8192, 16384, 65535, 65536})
    if (m <= setup.m) batches.push_back(m);
  for (const std::int64_t m : batches) {
    differing += note(product.differing(0, m, false, {.weights_ready = m % 2 == 0}), m, 0);
    moved += note(product.differing(setup.m - m, m, false, {}), m, setup.m - m);
    if (m % 16 == 1)
      chosen +=
          note(product.differing(m % 7, std::min(m, setup.m - 7), false, {.processors = 1 + static_cast<int>(m % 90)}),
               m, m % 7);
  }
  std::uint64_t single = 0;
  for (std::int64_t row = 0; row < setup.m; row += std::max<std::int64_t>(1, setup.m / 97))
    single += note(product.differing(row, 1, false, {}), 1, row);
  score.line(differing + moved + chosen + single == 0,
             fmt::format("{} batch sizes up to {}: {}: {} elements differ at the front, {} at the end, {} under a "
                         "processor limit, {} alone{}",
                         batches.size(), setup.m, setup.name(), differing, moved, chosen, single, first));
}

int correct() {
  Score score;
  for (const bp_dtype dtype : {BP_BF16, BP_FP16}) {
    must(tensor_core_rules_hold(dtype));
    // The reference itself: one segment, two, the tree.
    for (const auto& [k, tree] : {std::pair{4096, false}, {9000, false}, {4096, true}}) {
      for (const RecipeKind inputs : {RecipeKind::normal, RecipeKind::wide_exponent}) {
        Setup setup{5, 200, k, dtype, BP_FP32, inputs, false, tree};
        Product product(setup);
        int total = 0;
        const auto [differing, worst] = product.against_model(&total);
        const std::int64_t longest = product.schedule().segments().front().end;
        score.line(
            // Each of a segment's steps cuts at most one unit of the 25 fraction bits that it keeps.
            differing == 0 && worst < static_cast<double>(longest) / 16 * 0x1p-25,
            fmt::format("reference: {}: {} of {} differ from the CPU model, error {:.1e} of the sum of magnitudes",
                        setup.name(), differing, total, worst));
      }
    }
    every_plan({300, 520, 3000, dtype, BP_FP32, RecipeKind::normal, true, false}, {1, 17, 128, 300}, score);
    every_plan({300, 264, 8256, dtype, BP_BF16, RecipeKind::wide_exponent, false, false}, {1, 8, 100, 300}, score);
    every_plan({300, 200, 1920, dtype, BP_FP32, RecipeKind::normal, true, false, false, 448}, {5, 70, 300}, score);
    every_plan({300, 128, 20000, dtype, BP_FP16, RecipeKind::normal, false, false}, {16, 65}, score);
    every_plan({600, 392, 448, dtype, dtype, RecipeKind::normal, true, false, true}, {24, 599, 600}, score);
    every_plan({300, 136, 1000, dtype, BP_FP16, RecipeKind::normal, true, false}, {2, 33, 193, 300}, score);
    every_plan({200, 328, 1280, dtype, BP_FP32, RecipeKind::normal, true, true}, {1, 16, 65, 200}, score);
    every_plan({200, 64, 32768, dtype, BP_FP16, RecipeKind::normal, false, true}, {3, 200}, score);
  }
  every_batch({1025, 2112, 7168, BP_BF16, BP_FP32}, score);
  every_batch({1025, 512, 2048, BP_FP16, BP_FP16, RecipeKind::wide_exponent, true}, score);
  every_batch({1025, 4096, 4096, BP_BF16, BP_BF16}, score);
  every_batch({8192, 1536, 1544, BP_BF16, BP_FP32}, score);
  every_batch({300, 384, 16384, BP_BF16, BP_FP32, RecipeKind::normal, true, true}, score);
  every_batch({65536, 136, 200, BP_BF16, BP_FP32}, score);
  // Extents that divide nothing: every tail.
  every_batch({300, 77, 333, BP_BF16, BP_FP32}, score);
  std::printf("%d passed, %d failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

// 1,000 repeats beside a busy second stream; graph replay after the inputs changed.
int repeat() {
  Score score;
  cudaStream_t stream, other;
  must("making a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  must("making a stream", cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  Product load({512, 2048, 4096, BP_BF16, BP_FP32});
  for (const Setup& setup : {Setup{1, 4096, 4096, BP_BF16, BP_BF16}, Setup{16, 2112, 7168, BP_FP16, BP_FP16},
                             Setup{64, 2112, 7168, BP_BF16, BP_FP32}, Setup{128, 4096, 4096, BP_BF16, BP_BF16},
                             Setup{257, 2112, 7168, BP_BF16, BP_BF16}, Setup{1024, 2112, 7168, BP_BF16, BP_FP32},
                             Setup{2048, 4096, 4096, BP_BF16, BP_BF16},
                             Setup{64, 512, 8192, BP_BF16, BP_FP32, RecipeKind::normal, true, true}}) {
    Product product(setup);
    must("waiting", cudaDeviceSynchronize());
    for (int i = 0; i < 1000; ++i) {
      if (i % 2 == 0) load.reference_again(other);
      // Over right bytes a tile that is left out would not show. Not before every launch: one starts while the kernel
      // before it ends, which it cannot behind a memset. Of three, so that odd and even ones are poisoned.
      if (i % 3 != 0) product.poison_on(stream);
      must(cuda_gemm(product.call(0, setup.m, false), product.schedule(), {.stream = stream}));
      product.compare_on(stream);
    }
    must("waiting", cudaDeviceSynchronize());
    const std::uint64_t differing = product.count().value();
    score.line(differing == 0, fmt::format("1000 repeats beside a busy stream: m = {}, {}: {} elements differ", setup.m,
                                           setup.name(), differing));

    // Capture, change the inputs, replay.
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must("capturing", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 3; ++i)
      must(cuda_gemm(product.call(0, setup.m, false), product.schedule(), {.stream = stream}));
    must("capturing", cudaStreamEndCapture(stream, &graph));
    must("instantiating", cudaGraphInstantiate(&exec, graph, 0));
    std::uint64_t replayed = 0;
    for (std::uint64_t seed = 2; seed < 12; ++seed) {
      fill(product.x(), RecipeKind::normal, "x1", seed);
      product.reference_again(nullptr);
      must("waiting", cudaDeviceSynchronize());
      product.count().clear();
      must("replaying", cudaGraphLaunch(exec, stream));
      product.compare_on(stream);
      must("waiting", cudaDeviceSynchronize());
      replayed += product.count().value();
    }
    must("destroying", cudaGraphExecDestroy(exec));
    must("destroying", cudaGraphDestroy(graph));
    score.line(replayed == 0, fmt::format("graph replay after the inputs changed: m = {}, {}: {} elements differ",
                                          setup.m, setup.name(), replayed));
  }
  // Errors have names.
  Product small({4, 64, 64, BP_BF16, BP_FP32});
  CudaGemmCall bad = small.call(0, 4, false);
  bad.k = 65;
  const auto refused = cuda_gemm(bad, small.schedule(), {});
  score.line(!refused && refused.error().message.find("65") != std::string::npos,
             "a wrong schedule is refused by name");
  const auto huge = DeviceBuffer::make(std::size_t{1} << 46);
  score.line(!huge && huge.error().message.find("out of memory") != std::string::npos,
             "out of memory: " + (huge ? "not reported" : huge.error().message));
  std::printf("%d passed, %d failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

// Every kernel once on small shapes, for compute-sanitizer.
int sanitize() {
  Score score;
  for (const bp_dtype dtype : {BP_BF16, BP_FP16}) {
    every_plan({40, 136, 2100, dtype, BP_BF16, RecipeKind::normal, true}, {40}, score, true);
    every_plan({40, 136, 2048, dtype, BP_BF16, RecipeKind::normal, true, false, false, 512}, {40}, score, true);
    every_plan({20, 72, 1024, dtype, BP_FP32, RecipeKind::normal, false, true}, {20}, score, true);
    every_plan({300, 136, 256, dtype, BP_FP16}, {300}, score, true);
  }
  return score.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace batchproof::cuda::gpu

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "correct") return batchproof::cuda::gpu::correct();
  if (part == "repeat") return batchproof::cuda::gpu::repeat();
  if (part == "sanitize") return batchproof::cuda::gpu::sanitize();
  std::fprintf(stderr, "usage: matmul_check correct | repeat | sanitize\n");
  return 2;
}
