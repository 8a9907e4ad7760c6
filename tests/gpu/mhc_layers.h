// SPDX-License-Identifier: Apache-2.0
//
// A whole model's mHC sites in sequence: the broadcast form first, then two fused sites per layer less one, post and
// head last, with a matrix product as the sublayer between two sites.
#ifndef BATCHPROOF_TESTS_GPU_MHC_LAYERS_H_
#define BATCHPROOF_TESTS_GPU_MHC_LAYERS_H_

#include "src/schedule/schedule.h"
#include "tests/gpu/mhc_case.h"

namespace batchproof::cuda::gpu {

class MhcLayers {
 public:
  static constexpr std::int64_t kHidden = 4096;
  static constexpr int kSites = 86;               // of 43 layers
  static constexpr std::int64_t kSegment = 2048;  // of a sublayer's product
  static constexpr int kWeights = 6;              // sets that the sites take in turn; more than the L2 holds

  explicit MhcLayers(std::int64_t most)
      : first_(MhcForm::broadcast, 1, kHidden, true), last_(MhcForm::head, 1, kHidden, false) {
    for (int i = 0; i < kWeights; ++i) {
      sites_.emplace_back(MhcForm::fused, 1, kHidden, true, static_cast<std::uint64_t>(i + 1));
      products_.push_back(matrix(kHidden, kHidden, BP_BF16));
      fill(products_.back(), RecipeKind::normal, "sublayer", static_cast<std::uint64_t>(i + 1));
    }
    embedding_ = matrix(most, kHidden, BP_BF16);
    fill(embedding_, RecipeKind::normal, "embedding");
    for (int i = 0; i < 2; ++i) {
      streams_[i] = matrix(most, 4 * kHidden, BP_BF16);
      post_[i] = matrix(most, 4, BP_FP32);
      comb_[i] = matrix(most, 16, BP_FP32);
    }
    input_ = matrix(most, kHidden, BP_BF16);
    x_ = matrix(most, kHidden, BP_BF16);
    y_ = matrix(most, kHidden, BP_BF16);
    workspace_ = must(DeviceBuffer::make(cuda_mhc_workspace(most, kHidden)));
    must("waiting", cudaDeviceSynchronize());
  }

  // Rows [first, first + rows) of the embedding; y's rows [0, rows).
  void run(std::int64_t first, std::int64_t rows, cudaStream_t stream, bool dependent) const {
    CudaMhcOptions options;
    options.stream = stream;
    options.dependent = dependent;
    CudaMhcCall c = first_.call(0, 1, false);
    c.call.residual = {reinterpret_cast<std::uint16_t*>(embedding_.at(first)), kHidden, 0};
    place(&c, rows, 0);
    must(cuda_mhc(c, options));
    int now = 0;
    for (int site = 1; site < kSites; ++site, now ^= 1) {
      sublayer(rows, site, stream);
      c = sites_[static_cast<std::size_t>(site % kWeights)].call(0, 1, false);
      from(&c, now);
      place(&c, rows, now ^ 1);
      must(cuda_mhc(c, options));
    }
    sublayer(rows, kSites, stream);
    c.call.post_only = true;
    from(&c, now);
    place(&c, rows, now ^ 1);
    must(cuda_mhc(c, options));
    c = last_.call(0, 1, false);
    c.call.residual = {u16(streams_[now ^ 1]), 4 * kHidden, kHidden};
    place(&c, rows, now);
    c.call.residual_out = nullptr;
    c.call.out = {u16(y_), kHidden};
    must(cuda_mhc(c, options));
  }

  const Matrix& y() const { return y_; }

 private:
  static std::uint16_t* u16(const Matrix& m) { return reinterpret_cast<std::uint16_t*>(m.at(0)); }
  static float* f32(const Matrix& m) { return reinterpret_cast<float*>(m.at(0)); }

  // A layer input is about the weight of its norm large; the product keeps that size.
  void sublayer(std::int64_t rows, int site, cudaStream_t stream) const {
    CudaGemmCall p;
    p.m = rows;
    p.n = p.k = kHidden;
    p.x = input_.at(0);
    p.x_row_stride = kHidden;
    p.w = products_[static_cast<std::size_t>(site % kWeights)].at(0);
    p.w_row_stride = 1;
    p.w_column_stride = kHidden;
    p.y = x_.at(0);
    p.y_dtype = BP_BF16;
    p.y_row_stride = kHidden;
    const Schedule schedule = must(Schedule::make(kHidden, ChainPolicy{kSegment}));
    const auto done = cuda_gemm(p, schedule, {.stream = stream});
    if (!done) stop(done.error());
  }
  void from(CudaMhcCall* c, int now) const {
    c->call.residual = {u16(streams_[now]), 4 * kHidden, kHidden};
    c->call.post.x = u16(x_);
    c->call.post.x_row = kHidden;
    c->call.post.post = {f32(post_[now]), 4, 1, 0};
    c->call.post.comb = {f32(comb_[now]), 16, 4, 1};
  }
  void place(CudaMhcCall* c, std::int64_t rows, int next) const {
    c->call.rows = rows;
    c->call.residual_out = u16(streams_[next]);
    c->call.post_out = {f32(post_[next]), 4, 1, 0};
    c->call.comb_out = {f32(comb_[next]), 16, 4, 1};
    c->call.out = {u16(input_), kHidden};
    c->call.workspace = workspace_.get();
    c->call.workspace_bytes = workspace_.bytes();
  }

  MhcCase first_, last_;
  std::vector<MhcCase> sites_;
  std::vector<Matrix> products_;
  Matrix embedding_, streams_[2], post_[2], comb_[2], input_, x_, y_;
  DeviceBuffer workspace_;
};

}  // namespace batchproof::cuda::gpu

#endif  // BATCHPROOF_TESTS_GPU_MHC_LAYERS_H_
