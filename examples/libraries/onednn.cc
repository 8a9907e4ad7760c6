// SPDX-License-Identifier: Apache-2.0
//
// oneDNN's matmul primitive in FP32, and in BF16 where the processor has it. https://github.com/oneapi-src/oneDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "library_matmul.h"

namespace {

const bp_implementation kImplementation = {
    "onednn-matmul", "the matmul primitive", nullptr, BP_MODE_INVARIANT, 0, nullptr, nullptr};

dnnl::memory::desc describe(const bp_tensor& tensor) {
  const auto type = tensor.dtype == BP_BF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  return {{tensor.shape[0], tensor.shape[1]}, type, dnnl::memory::dims{tensor.stride[0], tensor.stride[1]}};
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  omp_set_num_threads(context->threads);
  try {
    static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    static dnnl::stream stream(engine);
    const dnnl::matmul::primitive_desc plan(
        dnnl::matmul::desc(describe(tensors[0]), describe(tensors[1]), describe(tensors[2])), engine);
    dnnl::matmul(plan).execute(stream, {{DNNL_ARG_SRC, dnnl::memory(plan.src_desc(), engine, tensors[0].data)},
                                        {DNNL_ARG_WEIGHTS, dnnl::memory(plan.weights_desc(), engine, tensors[1].data)},
                                        {DNNL_ARG_DST, dnnl::memory(plan.dst_desc(), engine, tensors[2].data)}});
    stream.wait();
  } catch (const dnnl::error& error) {
    const bool missing = error.status == dnnl_unimplemented;
    return bp_fail(context->error, context->error_size, missing ? BP_ENVIRONMENT : BP_INTERNAL, "oneDNN: %s%s",
                   error.what(), missing ? " (this processor lacks what the dtype needs)" : "");
  } catch (...) {
    return bp_fail(context->error, context->error_size, BP_ENVIRONMENT, "oneDNN has no memory");
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

const bp_operator kTable = LIBRARY_TABLE("onednn", "oneDNN matmul", 2, &kImplementation, run);

}  // namespace

LIBRARY_EXPORT(kTable)
