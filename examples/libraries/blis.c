/* SPDX-License-Identifier: Apache-2.0
 *
 * BLIS sgemm through its typed interface, which takes strides. https://github.com/flame/blis */
#include <blis.h>

#include "library_matmul.h"

static const bp_implementation kImplementation = {"blis-sgemm", "bli_sgemm", NULL, BP_MODE_INVARIANT, 0, NULL, NULL};

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor *x = &tensors[0], *w = &tensors[1], *y = &tensors[2];
  float one = 1.0f, zero = 0.0f;
  bli_thread_set_num_threads(context->threads);
  bli_sgemm(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, x->shape[0], w->shape[1], x->shape[1], &one, (float*)x->data,
            x->stride[0], x->stride[1], (float*)w->data, w->stride[0], w->stride[1], &zero, (float*)y->data,
            y->stride[0], y->stride[1]);
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

static const bp_operator kTable = LIBRARY_TABLE("blis", "BLIS sgemm", 1, &kImplementation, run);
LIBRARY_EXPORT(kTable)
