// SPDX-License-Identifier: Apache-2.0
//
// What every table of the family calls: validate, run, promises.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "batchproof/problem.h"
#include "ops/mhc/controls.h"
#include "ops/mhc/cuda.h"
#include "ops/mhc/form.h"
#include "ops/mhc/path.h"
#include "ops/mhc/tensors.h"
#include "src/kernels/cpu/linear.h"
#include "src/kernels/cpu/mhc.h"

namespace batchproof::mhc {
namespace {

using Defect = Recipe::Defect;
using Plan = Recipe::Plan;

constexpr std::int64_t kMostHidden = std::int64_t{1} << 20;
constexpr std::int64_t kMostRepeats = 1000;

const Recipe& recipe_of(const bp_implementation* implementation) {
  return *static_cast<const Recipe*>(implementation->data);
}

float attr_float(const bp_problem* problem, const char* name) {
  const bp_attr* attr = bp_find_attr(problem, name);
  return attr != nullptr ? static_cast<float>(attr->f) : 0.0f;
}

bp_status check_eps(const bp_problem* problem, const char* name, char* error, std::size_t size) {
  const bp_attr* attr = bp_find_attr(problem, name);
  if (attr == nullptr || (std::isfinite(attr->f) && attr->f >= 0)) return BP_OK;
  return bp_fail(error, size, BP_INVALID, "%s = %g must be finite and at least 0", name, attr->f);
}

MhcMatrix matrix(const bp_tensor* tensor) {
  MhcMatrix out;
  if (tensor == nullptr) return out;
  out.data = static_cast<float*>(tensor->data);
  out.row = tensor->stride[0];
  out.first = tensor->ndim > 1 ? tensor->stride[1] : 0;
  out.second = tensor->ndim > 2 ? tensor->stride[2] : 0;
  return out;
}

MhcRows rows_of(const bp_tensor* tensor) {
  if (tensor == nullptr) return {};
  return {static_cast<std::uint16_t*>(tensor->data), tensor->stride[0]};
}

void set_inputs(Form form, const Tensors& tensors, MhcCall* call) {
  call->broadcast = is_broadcast(form);
  call->head = form == Form::head;
  call->delayed = is_delayed(form);
  call->post_only = form == Form::post;
  const bp_tensor* x = tensors.find("x");
  const bp_tensor* residual = tensors.find("residual");
  if (call->broadcast) {
    call->residual = {data_of<const std::uint16_t>(x), x->stride[0], 0};
  } else {
    call->residual = {data_of<const std::uint16_t>(residual), residual->stride[0], residual->stride[1]};
  }
  if (has_post(form)) {
    call->post.x = data_of<const std::uint16_t>(x);
    call->post.x_row = x->stride[0];
    call->post.post = matrix(tensors.find("post_mix"));
    call->post.comb = matrix(tensors.find("comb_mix"));
  }
  if (const bp_tensor* out = tensors.find("residual_out")) {
    call->residual_out = data_of<std::uint16_t>(out);
    call->residual_out_row = out->stride[0];
    call->residual_out_stream = out->stride[1];
  }
  if (call->post_only) return;
  const bp_tensor* fn = call->broadcast ? tensors.find("fn_broadcast") : tensors.find("fn");
  call->fn = data_of<const float>(fn);
  call->fn_row = fn->stride[0];
  call->norm_weight = data_of<const std::uint16_t>(tensors.find("norm_weight"));
  if (call->delayed) call->carried = matrix(tensors.find("pre_mix"));
}

// Read on the host: the CPU's kernels take them by value.
void set_constants(const Tensors& tensors, MhcCall* call) {
  if (call->post_only) return;
  const bp_tensor* scale = tensors.find("hc_scale");
  for (std::int64_t i = 0; i < scale->shape[0]; ++i) call->scale[i] = data_of<const float>(scale)[i * scale->stride[0]];
  const bp_tensor* base = tensors.find("hc_base");
  for (std::int64_t i = 0; i < base->shape[0]; ++i) call->base[i] = data_of<const float>(base)[i * base->stride[0]];
}

CudaConstants cuda_constants(const Tensors& tensors) {
  const bp_tensor* scale = tensors.find("hc_scale");
  const bp_tensor* base = tensors.find("hc_base");
  if (scale == nullptr) return {};
  return {data_of<const float>(scale), data_of<const float>(base), scale->stride[0], base->stride[0]};
}

void set_outputs(Form form, const Tensors& tensors, MhcCall* call) {
  if (call->post_only) return;
  if (!call->head) {
    call->post_out = matrix(is_fused(form) ? tensors.find("post_mix_out") : tensors.find("post_mix"));
    call->comb_out = matrix(is_fused(form) ? tensors.find("comb_mix_out") : tensors.find("comb_mix"));
  }
  call->out = rows_of(call->head ? tensors.find("y") : tensors.find("layer_input"));
  call->pre_out = matrix(tensors.find("pre_mix_out"));
  call->mean_out = rows_of(tensors.find("streams_mean"));
  call->mixes_out = matrix(tensors.find("mixes"));
  call->square_out = matrix(tensors.find("square_sum"));
}

void set_parameters(const bp_problem* problem, MhcCall* call) {
  call->rms_eps = attr_float(problem, "rms_eps");
  call->pre_eps = attr_float(problem, "hc_pre_eps");
  call->sinkhorn_eps = attr_float(problem, "hc_sinkhorn_eps");
  call->norm_eps = attr_float(problem, "norm_eps");
  call->post_mult = attr_float(problem, "post_mult");
  call->sinkhorn_repeat = static_cast<int>(bp_attr_int(problem, "sinkhorn_repeat"));
}

}  // namespace

bp_status validate(Form form, const bp_operator& table, const bp_problem* problem, char* error, std::size_t size) {
  const std::int64_t rows = bp_axis_value(problem, "M");
  const std::int64_t hidden = bp_axis_value(problem, "H");
  if (problem->world != 1)
    return bp_fail(error, size, BP_INVALID, "W = %d: %s runs on one rank", problem->world, table.name);
  if (rows < 0) return bp_fail(error, size, BP_INVALID, "M = %lld must be at least 0", static_cast<long long>(rows));
  const std::int64_t unit = is_broadcast(form) ? 64 : 16;
  if (hidden < unit || hidden % unit != 0 || hidden > kMostHidden) {
    return bp_fail(error, size, BP_INVALID, "H = %lld must be a positive multiple of %lld, at most %lld",
                   static_cast<long long>(hidden), static_cast<long long>(unit), static_cast<long long>(kMostHidden));
  }
  for (std::uint32_t i = 0; i < table.port_count; ++i) {
    const bp_port& port = table.ports[i];
    const bp_dtype dtype = problem->dtypes[i];
    if (dtype == BP_NONE) {
      if ((port.flags & BP_PORT_OPTIONAL) == 0) return bp_fail(error, size, BP_INVALID, "%s is missing", port.name);
    } else if ((port.dtypes & BP_DTYPE_BIT(dtype)) == 0) {
      return bp_fail(error, size, BP_INVALID, "%s has a dtype that %s does not take", port.name, table.name);
    }
  }
  for (const char* name : {"rms_eps", "hc_pre_eps", "hc_sinkhorn_eps", "norm_eps"}) {
    if (check_eps(problem, name, error, size) != BP_OK) return BP_INVALID;
  }
  if (const bp_attr* mult = bp_find_attr(problem, "post_mult"); mult != nullptr && !std::isfinite(mult->f))
    return bp_fail(error, size, BP_INVALID, "post_mult = %g must be finite", mult->f);
  if (bp_find_attr(problem, "sinkhorn_repeat") != nullptr) {
    const std::int64_t repeat = bp_attr_int(problem, "sinkhorn_repeat");
    if (repeat < 1 || repeat > kMostRepeats)
      return bp_fail(error, size, BP_INVALID, "sinkhorn_repeat = %lld must be from 1 to %lld",
                     static_cast<long long>(repeat), static_cast<long long>(kMostRepeats));
  }
  if (bp_find_attr(problem, "processors") != nullptr && bp_attr_int(problem, "processors") < 1)
    return bp_fail(error, size, BP_INVALID, "processors = %lld must be at least 1",
                   static_cast<long long>(bp_attr_int(problem, "processors")));
  return BP_OK;
}

std::size_t workspace_size(Form form, const bp_implementation* implementation, const bp_problem* problem) {
  if (form == Form::post) return 0;
  const Extents extents = extents_of(form, problem);
  if (extents.rows < 0 || extents.hidden < 16) return 0;
  if (recipe_of(implementation).cuda != Recipe::Cuda::none) {
#ifdef BATCHPROOF_HAVE_CUDA
    return cuda_workspace_size(form, extents.rows, extents.hidden);
#else
    return 0;
#endif
  }
  std::size_t most = 0;
  for (const MhcPath& path : possible_paths(form, recipe_of(implementation), extents))
    most = std::max(most, mhc_workspace(extents.rows, extents.columns, path));
  return most;
}

std::uint32_t promises(Form form, const bp_implementation* implementation, const bp_problem* problem,
                       const bp_device* device) {
  if (recipe_of(implementation).cuda != Recipe::Cuda::none) {
#ifdef BATCHPROOF_HAVE_CUDA
    return cuda_promises(form, recipe_of(implementation), implementation->mode, device);
#else
    return 0;
#endif
  }
  if (device != nullptr && device->memory != BP_MEMORY_HOST) return 0;
  const Extents extents = extents_of(form, problem);
  // A control says what an honest implementation says: that is its lie.
  if (implementation->defect != nullptr) return promised_by(MhcPath{.constant = true}, extents);
  return promised_by(path_of(form, recipe_of(implementation), extents, implementation->mode), extents);
}

namespace {

// Runs the body and lets no exception out; an error begins with the operator's name.
bp_status report(const bp_context* context, const bp_operator& table, const std::function<Result<void>()>& body) {
  const bp_status status = operator_call(context, [&]() -> Result<void> {
    Result<void> done = body();
    if (done) return done;
    return fail(done.error().kind, std::string(table.name) + ": " + done.error().message);
  });
  if (status == BP_OK) bp_executed(context, context->implementation->id);
  return status;
}

Result<void> run_on_device(Form form, const Recipe& recipe, const bp_context* context, const MhcCall& call,
                           const CudaConstants& constants) {
#ifdef BATCHPROOF_HAVE_CUDA
  return run_cuda(form, recipe, context, call, constants);
#else
  (void)form, (void)recipe, (void)call, (void)constants;
  return fail(Error::Kind::environment,
              std::string(context->implementation->id) + " is not in this build: it has no CUDA");
#endif
}

}  // namespace

bp_status run(Form form, const bp_operator& table, const bp_context* context, const bp_tensor* tensor_array) {
  char* error = context->error;
  const std::size_t size = context->error_size;
  const bp_problem* problem = context->problem;
  if (validate(form, table, problem, error, size) != BP_OK) return BP_INVALID;
  const Tensors tensors(table, tensor_array);
  const Recipe& recipe = recipe_of(context->implementation);
  const bool on_device = recipe.cuda != Recipe::Cuda::none;
  if (on_device && context->mode == BP_MODE_INVARIANT && context->implementation->mode == BP_MODE_FAST) {
    return bp_fail(error, size, BP_REFUSED, "%s: invariant mode refuses %s: its splits follow the tokens", table.name,
                   context->implementation->id);
  }
  if (tensors.check(on_device ? BP_MEMORY_CUDA : BP_MEMORY_HOST, error, size) != BP_OK) return BP_INVALID;
  const Extents extents = extents_of(form, problem);
  const MhcPath path = path_of(form, recipe, extents, context->mode);
  if (context->implementation->defect == nullptr && !on_device) {
    const std::string why = refusal(form, context->implementation->id, path, extents, context->mode);
    if (!why.empty()) return bp_fail(error, size, BP_REFUSED, "%s: %s", table.name, why.c_str());
  }

  MhcCall call;
  call.rows = extents.rows;
  call.hidden = extents.hidden;
  set_inputs(form, tensors, &call);
  set_outputs(form, tensors, &call);
  set_parameters(problem, &call);
  call.workspace = context->workspace;
  call.workspace_bytes = context->workspace_bytes;
  if (on_device) {
    return report(context, table, [&] { return run_on_device(form, recipe, context, call, cuda_constants(tensors)); });
  }
  set_constants(tensors, &call);
  call.path = path;
  const bool reversed =
      recipe.plan == Plan::descending || (recipe.defect == Defect::order_by_rows && extents.rows > kMhcSmallRows);
  call.post.reversed = reversed;
  call.head_descending = reversed && call.head;
  apply_defect(recipe, &call);
  call.threads = context->threads;
  return report(context, table, [&] { return run_mhc(call); });
}

}  // namespace batchproof::mhc
