// SPDX-License-Identifier: Apache-2.0
//
// What the mHC device programs share: one operator's tensors in device memory, with the magnitudes of a checkpoint.
#ifndef BATCHPROOF_TESTS_GPU_MHC_CASE_H_
#define BATCHPROOF_TESTS_GPU_MHC_CASE_H_

#include <map>
#include <random>
#include <tuple>

#include "src/kernels/cuda/mhc.h"
#include "tests/gpu/case.h"

namespace batchproof::cuda::gpu {

enum class MhcForm { pre, broadcast, post, fused, head, fused_delayed };

inline const char* name_of(MhcForm form) {
  switch (form) {
    case MhcForm::pre:
      return "mhc_pre";
    case MhcForm::broadcast:
      return "mhc_pre_broadcast";
    case MhcForm::post:
      return "mhc_post";
    case MhcForm::fused:
      return "mhc_fused_post_pre";
    case MhcForm::head:
      return "hc_head";
    case MhcForm::fused_delayed:
      return "mhc_fused_post_pre_delayed";
  }
  return "";
}

class MhcCase {
 public:
  MhcCase(MhcForm form, std::int64_t rows, std::int64_t hidden, bool norm, std::uint64_t seed = 1)
      : form_(form), rows_(rows), hidden_(hidden) {
    const bool broadcast = form == MhcForm::broadcast, head = form == MhcForm::head;
    const bool fused = form == MhcForm::fused || form == MhcForm::fused_delayed;
    std::mt19937_64 random(seed);
    const int mixes = head ? 4 : 24;
    residual_ = matrix(rows, broadcast ? hidden : 4 * hidden, BP_BF16);
    fill(residual_, RecipeKind::normal, "residual", seed);
    if (fused || form == MhcForm::post) {
      x_ = matrix(rows, hidden, BP_BF16);
      fill(x_, RecipeKind::normal, "x", seed);
      post_in_ = host_normal(random, rows, 4, 0.5f, 1.0f);
      comb_in_ = host_normal(random, rows, 16, 0.1f, 0.25f);
    }
    if (fused || form == MhcForm::post || broadcast) residual_out_ = matrix(rows, 4 * hidden, BP_BF16);
    if (form != MhcForm::post) {
      fn_ = host_normal(random, mixes, broadcast ? hidden : 4 * hidden, 0.02f, 0.0f);
      const std::vector<float> scale = head ? std::vector<float>{2.0f} : std::vector<float>{2.0f, 0.02f, 0.25f};
      scale_ = upload(scale, 1, static_cast<std::int64_t>(scale.size()));
      base_ = host_normal(random, 1, mixes, 0.1f, 0.0f);
      out_ = matrix(rows, hidden, BP_BF16);
      mixes_ = matrix(rows, mixes, BP_FP32);
      square_ = matrix(rows, 1, BP_FP32);
      if (!head) {
        post_out_ = matrix(rows, 4, BP_FP32);
        comb_out_ = matrix(rows, 16, BP_FP32);
      }
      if (norm) {
        weight_ = matrix(1, hidden, BP_BF16);
        fill(weight_, RecipeKind::normal, "norm_weight", seed);
      }
      if (form == MhcForm::fused_delayed) {
        carried_ = host_normal(random, rows, 4, 0.3f, 0.5f);
        pre_out_ = matrix(rows, 4, BP_FP32);
        mean_ = matrix(rows, hidden, BP_BF16);
      }
      workspace_ = must(DeviceBuffer::make(cuda_mhc_workspace(rows, hidden)));
    }
    must("waiting", cudaDeviceSynchronize());
  }

  // Rows [first, first + rows) of the inputs, results at the same rows; `small`: mixes and the square sum as well.
  CudaMhcCall call(std::int64_t first, std::int64_t rows, bool small = true) const {
    CudaMhcCall c;
    MhcCall& m = c.call;
    m.rows = rows;
    m.hidden = hidden_;
    m.broadcast = form_ == MhcForm::broadcast;
    m.head = form_ == MhcForm::head;
    m.post_only = form_ == MhcForm::post;
    m.delayed = form_ == MhcForm::fused_delayed;
    m.residual = {u16(residual_, first), residual_.stride, m.broadcast ? 0 : hidden_};
    if (x_.rows > 0) {
      m.post.x = u16(x_, first);
      m.post.x_row = x_.stride;
      m.post.post = {f32(post_in_, first), 4, 1, 0};
      m.post.comb = {f32(comb_in_, first), 16, 4, 1};
    }
    m.residual_out = u16(residual_out_, first);
    m.residual_out_row = 4 * hidden_;
    m.residual_out_stream = hidden_;
    if (m.post_only) return c;
    m.fn = f32(fn_, 0);
    m.fn_row = fn_.stride;
    c.scale = f32(scale_, 0);
    c.base = f32(base_, 0);
    m.rms_eps = m.pre_eps = m.sinkhorn_eps = m.norm_eps = 1e-6f;
    m.post_mult = 2.0f;
    m.sinkhorn_repeat = 20;
    m.norm_weight = u16(weight_, 0);
    if (m.delayed) {
      m.carried = {f32(carried_, first), 4, 1, 0};
      m.pre_out = {f32(pre_out_, first), 4, 1, 0};
      m.mean_out = {u16(mean_, first), hidden_};
    }
    m.out = {u16(out_, first), hidden_};
    m.post_out = {f32(post_out_, first), 4, 1, 0};
    m.comb_out = {f32(comb_out_, first), 16, 4, 1};
    if (small) {
      m.mixes_out = {f32(mixes_, first), mixes_.stride, 1, 0};
      m.square_out = {f32(square_, first), 1, 0, 0};
    }
    m.workspace = workspace_.get();
    m.workspace_bytes = workspace_.bytes();
    return c;
  }

  std::vector<const Matrix*> outputs() const {
    std::vector<const Matrix*> all;
    for (const Matrix* m : {&residual_out_, &out_, &mixes_, &square_, &post_out_, &comb_out_, &pre_out_, &mean_})
      if (m->rows > 0) all.push_back(m);
    return all;
  }
  void clear_outputs() const {
    for (const Matrix* m : outputs()) must("clearing", cudaMemset(m->memory.get(), 0xFF, m->memory.bytes()));
    must("waiting", cudaDeviceSynchronize());  // the runs are on streams that do not wait for this one
  }
  // The same in the order of the stream that the runs are on; nothing waits.
  void clear_outputs_on(cudaStream_t stream) const {
    for (const Matrix* m : outputs())
      must("clearing", cudaMemsetAsync(m->memory.get(), 0xFF, m->memory.bytes(), stream));
  }
  // Rows [first, first + rows) alone.
  void clear_rows_on(cudaStream_t stream, std::int64_t first, std::int64_t rows) const {
    for (const Matrix* m : outputs())
      must("clearing", cudaMemsetAsync(m->at(first), 0xFF,
                                       static_cast<std::size_t>(rows * m->stride * bytes_of(m->dtype)), stream));
  }
  // A copy of the outputs, to compare later runs with.
  std::vector<Matrix> kept() const {
    std::vector<Matrix> copies;
    for (const Matrix* m : outputs()) {
      copies.push_back(matrix(m->rows, m->columns, m->dtype));
      must("copying",
           cudaMemcpy(copies.back().memory.get(), m->memory.get(), m->memory.bytes(), cudaMemcpyDeviceToDevice));
    }
    must("waiting", cudaStreamSynchronize(nullptr));  // later runs are on streams that do not wait for this one
    return copies;
  }
  // Elements of rows [first, first + rows) that differ from the copy's.
  std::uint64_t differing(const std::vector<Matrix>& copies, std::int64_t first, std::int64_t rows,
                          cudaStream_t stream) const {
    Counter counter;
    const auto all = outputs();
    for (std::size_t i = 0; i < all.size(); ++i) count(*all[i], copies[i], first, rows, counter, stream);
    must("waiting", cudaStreamSynchronize(stream));
    return counter.value();
  }
  static void count(const Matrix& a, const Matrix& b, std::int64_t first, std::int64_t rows, const Counter& counter,
                    cudaStream_t stream) {
    must(cuda_count_differing(a.at(first), a.stride, b.at(first), b.stride, rows, a.columns, bytes_of(a.dtype),
                              counter.get(), stream));
  }

  // Least bytes that the call moves: every tensor once.
  double floor_bytes(std::int64_t rows) const {
    double bytes = 0;
    for (const Matrix* m : {&residual_, &x_, &post_in_, &comb_in_, &residual_out_, &out_, &post_out_, &comb_out_})
      if (m->rows > 0) bytes += static_cast<double>(rows * m->columns * bytes_of(m->dtype));
    if (fn_.rows > 0) bytes += static_cast<double>(fn_.memory.bytes());
    return bytes;
  }
  // The same of the product alone: streams and weights in, a row's sums out.
  double product_floor_bytes(std::int64_t rows) const {
    return static_cast<double>(rows * (residual_.columns * 2 + 25 * 4)) + static_cast<double>(fn_.memory.bytes());
  }

 private:
  static std::uint16_t* u16(const Matrix& m, std::int64_t row) {
    return m.rows == 0 ? nullptr : reinterpret_cast<std::uint16_t*>(m.at(row));
  }
  static float* f32(const Matrix& m, std::int64_t row) {
    return m.rows == 0 ? nullptr : reinterpret_cast<float*>(m.at(row));
  }
  static Matrix upload(const std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
    Matrix m = matrix(rows, columns, BP_FP32);
    must(m.memory.upload(values.data(), values.size() * 4));
    return m;
  }
  static Matrix host_normal(std::mt19937_64& random, std::int64_t rows, std::int64_t columns, float deviation,
                            float mean) {
    // Many cases of one shape are made, to leave the L2 between them: the same numbers serve all.
    static std::map<std::tuple<std::int64_t, float, float>, std::vector<float>> made;
    std::vector<float>& values = made[{rows * columns, deviation, mean}];
    if (values.empty()) {
      std::normal_distribution<float> normal(mean, deviation);
      values.resize(static_cast<std::size_t>(rows * columns));
      for (float& v : values) v = normal(random);
    }
    return upload(values, rows, columns);
  }

  MhcForm form_;
  std::int64_t rows_, hidden_;
  Matrix residual_, x_, post_in_, comb_in_, residual_out_, fn_, scale_, base_, weight_, carried_;
  Matrix out_, mixes_, square_, post_out_, comb_out_, pre_out_, mean_;
  DeviceBuffer workspace_;
};

}  // namespace batchproof::cuda::gpu

#endif  // BATCHPROOF_TESTS_GPU_MHC_CASE_H_
