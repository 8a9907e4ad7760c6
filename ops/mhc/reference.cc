// SPDX-License-Identifier: Apache-2.0
//
// The family in FP64, as the formulas say, without a rounding point: outputs are FP64 tensors.
#include <algorithm>
#include <cmath>
#include <vector>

#include "batchproof/problem.h"
#include "ops/mhc/form.h"
#include "ops/mhc/path.h"
#include "ops/mhc/tensors.h"
#include "src/numeric/bf16.h"

namespace batchproof::mhc {
namespace {

constexpr std::int64_t kStreams = kMhcStreams;

double bf16_at(const bp_tensor* t, std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) {
  return bf16_to_float(static_cast<const std::uint16_t*>(
      t->data)[i * t->stride[0] + j * t->stride[1] + (t->ndim > 2 ? k * t->stride[2] : 0)]);
}
double fp32_at(const bp_tensor* t, std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) {
  return static_cast<const float*>(
      t->data)[i * t->stride[0] + (t->ndim > 1 ? j * t->stride[1] : 0) + (t->ndim > 2 ? k * t->stride[2] : 0)];
}
void put(const bp_tensor* t, double value, std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) {
  if (t == nullptr) return;
  static_cast<double*>(
      t->data)[i * t->stride[0] + (t->ndim > 1 ? j * t->stride[1] : 0) + (t->ndim > 2 ? k * t->stride[2] : 0)] = value;
}

double attr(const bp_problem* problem, const char* name) {
  const bp_attr* found = bp_find_attr(problem, name);
  return found != nullptr ? found->f : 0.0;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Logits become (nearly) doubly stochastic; repeat - 1 row passes between repeat column passes.
void sinkhorn(double (&c)[4][4], double eps, std::int64_t repeat) {
  for (auto& row : c) {
    const double top = *std::max_element(row, row + 4);
    double sum = 0;
    for (double& value : row) sum += value = std::exp(value - top);
    for (double& value : row) value = value / sum + eps;
  }
  for (std::int64_t pass = 0; pass < repeat; ++pass) {
    for (int i = 0; pass > 0 && i < 4; ++i) {
      const double sum = c[i][0] + c[i][1] + c[i][2] + c[i][3] + eps;
      for (double& value : c[i]) value /= sum;
    }
    for (int j = 0; j < 4; ++j) {
      const double sum = c[0][j] + c[1][j] + c[2][j] + c[3][j] + eps;
      for (auto& row : c) row[j] /= sum;
    }
  }
}

class Row {
 public:
  Row(Form form, const Tensors& tensors, const bp_problem* problem, std::int64_t hidden)
      : form_(form), tensors_(tensors), problem_(problem), hidden_(hidden) {
    streams_.resize(static_cast<std::size_t>(kStreams * hidden));
  }

  void compute(std::int64_t t) {
    load(t);
    if (form_ == Form::post) return;
    mixes(t);
    collapse(t);
  }

 private:
  double& stream(std::int64_t i, std::int64_t h) { return streams_[static_cast<std::size_t>(i * hidden_ + h)]; }

  // The streams that the rest sees.
  void load(std::int64_t t) {
    const bp_tensor* x = tensors_.find("x");
    const bp_tensor* residual = tensors_.find("residual");
    const bp_tensor* out = tensors_.find("residual_out");
    for (std::int64_t h = 0; h < hidden_; ++h) {
      for (std::int64_t j = 0; j < kStreams; ++j) {
        double value = is_broadcast(form_) ? bf16_at(x, t, h) : bf16_at(residual, t, j, h);
        if (has_post(form_)) {
          value = fp32_at(tensors_.find("post_mix"), t, j) * bf16_at(x, t, h);
          for (std::int64_t i = 0; i < kStreams; ++i)
            value += fp32_at(tensors_.find("comb_mix"), t, i, j) * bf16_at(residual, t, i, h);
        }
        stream(j, h) = value;
        put(out, value, t, j, h);
      }
    }
  }

  void mixes(std::int64_t t) {
    const std::int64_t columns = is_broadcast(form_) ? hidden_ : kStreams * hidden_;
    const bp_tensor* fn = is_broadcast(form_) ? tensors_.find("fn_broadcast") : tensors_.find("fn");
    const int count = form_ == Form::head ? 4 : kMhcMixes;
    double squares = 0;
    for (std::int64_t k = 0; k < columns; ++k) {
      const double value = streams_[static_cast<std::size_t>(k)];
      squares += value * value;
    }
    const double r = 1.0 / std::sqrt(squares / static_cast<double>(columns) + attr(problem_, "rms_eps"));
    double logit[kMhcMixes];
    for (int c = 0; c < count; ++c) {
      double sum = 0;
      for (std::int64_t k = 0; k < columns; ++k) sum += streams_[static_cast<std::size_t>(k)] * fp32_at(fn, c, k);
      put(tensors_.find("mixes"), sum, t, c);
      logit[c] = sum * r *
                     fp32_at(tensors_.find("hc_scale"), c < 4   ? 0
                                                        : c < 8 ? 1
                                                                : 2) +
                 fp32_at(tensors_.find("hc_base"), c);
    }
    put(tensors_.find("square_sum"), squares, t);
    for (int i = 0; i < 4; ++i) {
      pre_[i] = sigmoid(logit[i]) + attr(problem_, "hc_pre_eps");
      put(tensors_.find("pre_mix_out"), pre_[i], t, i);
    }
    if (form_ == Form::head) return;
    const bool fused = is_fused(form_);
    double comb[4][4];
    for (int i = 0; i < 4; ++i) {
      put(tensors_.find(fused ? "post_mix_out" : "post_mix"), sigmoid(logit[4 + i]) * attr(problem_, "post_mult"), t,
          i);
      for (int j = 0; j < 4; ++j) comb[i][j] = logit[8 + 4 * i + j];
    }
    sinkhorn(comb, attr(problem_, "hc_sinkhorn_eps"), bp_attr_int(problem_, "sinkhorn_repeat"));
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) put(tensors_.find(fused ? "comb_mix_out" : "comb_mix"), comb[i][j], t, i, j);
    }
  }

  void collapse(std::int64_t t) {
    const bp_tensor* carried = tensors_.find("pre_mix");
    const bp_tensor* weight = tensors_.find("norm_weight");
    const bp_tensor* out = tensors_.find(form_ == Form::head ? "y" : "layer_input");
    double pre[4];
    for (int i = 0; i < 4; ++i) {
      pre[i] = pre_[i];
      if (is_delayed(form_)) pre[i] = carried != nullptr ? fp32_at(carried, t, i) : i == 0 ? 1.0 : 0.0;
    }
    std::vector<double> u(static_cast<std::size_t>(hidden_));
    double squares = 0;
    for (std::int64_t h = 0; h < hidden_; ++h) {
      double& value = u[static_cast<std::size_t>(h)];
      double sum = 0;
      for (int i = 0; i < 4; ++i) {
        // An absent carried mix is the identity: stream 0, whatever the others hold.
        if (pre[i] != 0.0) value += pre[i] * stream(i, h);
        sum += stream(i, h);
      }
      squares += value * value;
      put(tensors_.find("streams_mean"), sum / 4, t, h);
    }
    const double g = 1.0 / std::sqrt(squares / static_cast<double>(hidden_) + attr(problem_, "norm_eps"));
    for (std::int64_t h = 0; h < hidden_; ++h) {
      const double w = weight != nullptr
                           ? bf16_to_float(static_cast<const std::uint16_t*>(weight->data)[h * weight->stride[0]])
                           : 1.0;
      put(out, weight != nullptr ? u[static_cast<std::size_t>(h)] * g * w : u[static_cast<std::size_t>(h)], t, h);
    }
  }

  Form form_;
  const Tensors& tensors_;
  const bp_problem* problem_;
  std::int64_t hidden_;
  std::vector<double> streams_;
  double pre_[4] = {};
};

}  // namespace

bp_status reference(Form form, const bp_operator& table, const bp_context* context, const bp_tensor* tensor_array) {
  const bp_status valid = validate(form, table, context->problem, context->error, context->error_size);
  if (valid != BP_OK) return valid;
  const Tensors tensors(table, tensor_array);
  const Extents extents = extents_of(form, context->problem);
  Row row(form, tensors, context->problem, extents.hidden);
  for (std::int64_t t = 0; t < extents.rows; ++t) row.compute(t);
  return BP_OK;
}

}  // namespace batchproof::mhc
