/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenBLAS sgemm through CBLAS, row-major. https://github.com/OpenMathLib/OpenBLAS */
#include <cblas.h>

#include "library_matmul.h"

static const bp_implementation kImplementation = {
    "openblas-sgemm", "cblas_sgemm", NULL, BP_MODE_INVARIANT, 0, NULL, NULL};

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor *x = &tensors[0], *w = &tensors[1], *y = &tensors[2];
  const int transposed = (int)bp_attr_int(context->problem, "transpose_w");
  openblas_set_num_threads(context->threads);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, (int)x->shape[0], (int)w->shape[1],
              (int)x->shape[1], 1.0f, (const float*)x->data, (int)x->stride[0], (const float*)w->data,
              (int)(transposed ? w->stride[1] : w->stride[0]), 0.0f, (float*)y->data, (int)y->stride[0]);
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

static const bp_operator kTable = LIBRARY_TABLE("openblas", "OpenBLAS sgemm", 1, &kImplementation, run);
LIBRARY_EXPORT(kTable)
