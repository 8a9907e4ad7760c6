// SPDX-License-Identifier: Apache-2.0
//
// Eigen's matrix product over maps of the caller's memory. https://eigen.tuxfamily.org
#include <omp.h>

#include <Eigen/Core>

#include "library_matmul.h"

namespace {

const bp_implementation kImplementation = {"eigen-product", "y = x * w", nullptr, BP_MODE_INVARIANT, 0,
                                           nullptr,         nullptr};

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor &x = tensors[0], &w = tensors[1], &y = tensors[2];
  omp_set_num_threads(context->threads);
  Eigen::setNbThreads(context->threads);
  try {
    const Eigen::Map<const RowMajor> left(static_cast<const float*>(x.data), x.shape[0], x.shape[1]);
    const auto* weight = static_cast<const float*>(w.data);
    Eigen::Map<RowMajor> out(static_cast<float*>(y.data), y.shape[0], y.shape[1]);
    if (bp_attr_int(context->problem, "transpose_w") != 0) {
      out.noalias() = left * Eigen::Map<const ColMajor>(weight, w.shape[0], w.shape[1]);
    } else {
      out.noalias() = left * Eigen::Map<const RowMajor>(weight, w.shape[0], w.shape[1]);
    }
  } catch (...) {  // memory for the packed blocks
    return bp_fail(context->error, context->error_size, BP_ENVIRONMENT, "Eigen has no memory for its blocks");
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

const bp_operator kTable = LIBRARY_TABLE("eigen", "Eigen matrix product", 1, &kImplementation, run);

}  // namespace

LIBRARY_EXPORT(kTable)
