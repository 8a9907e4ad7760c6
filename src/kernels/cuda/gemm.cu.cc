// SPDX-License-Identifier: Apache-2.0
//
// Driver of the matrix product: checks, tensor maps, launch.
#include "src/kernels/cuda/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "src/kernels/cuda/gemm_kernels.h"
#include "src/kernels/cuda/tensor_map.h"
#include "src/runtime/cuda_device.h"

namespace batchproof::cuda {
namespace {

tl::unexpected<Error> refuse(std::string message) { return fail(Error::Kind::operation, std::move(message)); }

// A matrix of 16-bit elements: rows of `inner` contiguous ones, `stride` apart. As the kernels' loads see it it is
// (column, row, block): with `blocked` a row is cut into blocks of 64 columns, so that a box takes several blocks and
// each lies in shared memory as the tensor core reads it; without there is one block.
struct MatrixView {
  const void* data;
  bp_dtype dtype;
  std::int64_t inner, outer, stride;
  bool blocked;
};

Result<CUtensorMap> encode(const MatrixView& v, unsigned rank, int box_columns, int box_rows, int box_blocks) {
  return encode_tensor_map(
      {.data = v.data,
       .dtype = v.dtype,
       .rank = rank,
       .sizes = {v.blocked ? std::int64_t{kBlockK} : v.inner, v.outer, v.blocked ? v.inner / kBlockK : 1, 1},
       .strides = {v.stride * 2, kBlockK * 2, 0},
       .box = {box_columns, box_rows, box_blocks, 1},
       .swizzled = box_columns == kBlockK});
}

const GemmInstance* find_instance(bp_dtype dtype, const GemmTile& tile, bool weight_mn) {
  static const std::vector<GemmInstance> tables[6] = {gemm_instances_bf16_narrow(),  gemm_instances_bf16_wide(),
                                                      gemm_instances_bf16_merging(), gemm_instances_fp16_narrow(),
                                                      gemm_instances_fp16_wide(),    gemm_instances_fp16_merging()};
  const int first = dtype == BP_BF16 ? 0 : 3;
  for (int i = first; i < first + 3; ++i) {
    for (const GemmInstance& instance : tables[i])
      if (instance.tile == tile && instance.weight_mn == weight_mn) return &instance;
  }
  return nullptr;
}

Store store_of(bp_dtype dtype) {
  switch (dtype) {
    case BP_FP32:
      return Store::fp32;
    case BP_BF16:
      return Store::bf16;
    case BP_FP16:
      return Store::fp16;
    default:
      return Store::none;
  }
}

bool aligned16(const void* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * 2 % 16 == 0;
}

bool weight_is_k_major(const CudaGemmCall& call) {
  // One column: its stride says nothing, so take the way that the copy engine reads.
  return call.w_row_stride == 1 && (call.n == 1 || aligned16(call.w, call.w_column_stride));
}

std::string check(const CudaGemmCall& call, const Schedule& schedule) {
  if (call.m < 0 || call.n < 0 || call.k < 0)
    return fmt::format("matrix product of m = {}, n = {}, k = {}: extents must be 0 or more", call.m, call.n, call.k);
  if (call.m > INT32_MAX / 2 || call.n > INT32_MAX / 2)
    return fmt::format("matrix product of m = {}, n = {}: at most {} are allowed", call.m, call.n, INT32_MAX / 2);
  if (call.dtype != BP_BF16 && call.dtype != BP_FP16) return "CUDA matrix product: inputs must be BF16 or FP16";
  if (store_of(call.y_dtype) == Store::none) return "CUDA matrix product: output must be FP32, BF16 or FP16";
  if (call.bias_dtype != BP_NONE && store_of(call.bias_dtype) == Store::none)
    return "CUDA matrix product: bias must be FP32, BF16 or FP16";
  if (schedule.reduction_length() != call.k)
    return fmt::format("schedule is for a reduction of {}, the problem's is {}", schedule.reduction_length(), call.k);
  return {};
}

GemmParams common_params(const CudaGemmCall& call, const KAxis& axis) {
  GemmParams p;
  p.axis = axis;
  p.y = call.y;
  p.y_stride = call.y_row_stride;
  p.bias = call.bias;
  p.bias_stride = call.bias_stride;
  p.bias_type = store_of(call.bias_dtype);
  p.y_type = store_of(call.y_dtype);
  p.m = static_cast<std::int32_t>(call.m);
  p.n = static_cast<std::int32_t>(call.n);
  const std::int64_t row_bytes = call.y_row_stride * (call.y_dtype == BP_FP32 ? 4 : 2);
  p.vector_store = reinterpret_cast<std::uintptr_t>(call.y) % 16 == 0 && row_bytes % 16 == 0;
  return p;
}

// Clusters that run at once; memoised, since the driver computes it anew at each call.
Result<int> active_clusters(const DeviceInfo& device, const GemmInstance& instance, int cluster, int shared) {
  static std::mutex mutex;
  static std::map<std::tuple<int, const void*, int, int>, int> known;
  const auto key = std::make_tuple(device.ordinal, instance.function, cluster, shared);
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (auto done = cuda_check(fmt::format("giving the matrix product {} bytes of shared memory", shared),
                             cudaFuncSetAttribute(instance.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  std::max(shared, device.block_shared_bytes)));
      !done)
    return tl::unexpected<Error>(done.error());
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(instance.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  if (auto done = cuda_check("asking how many clusters of the matrix product fit",
                             cudaOccupancyMaxActiveClusters(&count, instance.function, &config));
      !done)
    return tl::unexpected<Error>(done.error());
  if (count < 1) return refuse(fmt::format("a cluster of {} blocks of the matrix product does not fit", cluster));
  known[key] = count;
  return count;
}

GemmDevice plan_device(const DeviceInfo& info, int processors) {
  GemmDevice device;
  device.processors = processors > 0 ? std::min(processors, info.processors) : info.processors;
  device.block_shared_bytes = info.block_shared_bytes;
  device.processor_shared_bytes = info.processor_shared_bytes;
  const GemmInstance* widest = find_instance(BP_BF16, {128, 2, false, true}, false);
  for (int size = 1; info.major == 9 && size <= 8; ++size) {
    const Result<int> active = active_clusters(info, *widest, size, info.block_shared_bytes);
    device.clusters[size] = active ? *active : 1;
  }
  return device;
}

Result<void> launch_wgmma(const CudaGemmCall& call, const KAxis& axis, const GemmPlan& plan, const DeviceInfo& device,
                          const CudaGemmOptions& options) {
  const bool mn = !weight_is_k_major(call);
  const GemmInstance* found = find_instance(call.dtype, plan.tile, mn);
  if (found == nullptr) return refuse(fmt::format("no kernel for plan {}", plan.name()));
  const int columns = plan.step;
  const int cluster = plan.cluster_n * plan.cluster_k;
  // One row or column: its stride says nothing, so take one that the copy engine takes.
  const std::int64_t any_stride = call.k / 8 * 8 + 8;
  const bool blocked = axis.whole_blocks();
  auto w_map =
      mn ? encode({call.w, call.dtype, call.n, call.k, call.w_row_stride, false}, 3, kBlockK, kBlockK * plan.deep, 1)
         : encode({call.w, call.dtype, call.k, call.n, call.n == 1 ? any_stride : call.w_column_stride, blocked}, 3,
                  kBlockK, columns, plan.deep);
  if (!w_map) return tl::unexpected<Error>(w_map.error());
  // One tile of few rows: copy no more than those, in whole groups of eight.
  const int x_rows = plan.cluster_n == 1
                         ? static_cast<int>(std::min<std::int64_t>(plan.tile.rows(), (call.m + 7) / 8 * 8))
                         : plan.tile.rows();
  auto x_map = encode({call.x, call.dtype, call.k, call.m, call.m == 1 ? any_stride : call.x_row_stride, blocked}, 3,
                      kBlockK, x_rows / plan.cluster_n, plan.deep);
  if (!x_map) return tl::unexpected<Error>(x_map.error());
  GemmParams p = common_params(call, axis);
  p.tiles_m = static_cast<std::int32_t>((call.m + plan.tile.rows() - 1) / plan.tile.rows());
  p.groups_n = static_cast<std::int32_t>((call.n + columns * plan.cluster_n - 1) / (columns * plan.cluster_n));
  p.cluster_n = plan.cluster_n;
  p.cluster_k = plan.cluster_k;
  p.stages = plan.stages;
  p.extra_sums = plan.extra_sums;
  p.raster = plan.raster;
  p.keep_weights = p.tiles_m > 1;
  p.step = plan.step;
  p.x_rows = x_rows;
  p.weights_ready = options.weights_ready;
  p.deep = plan.deep;
  p.whole_blocks = blocked;
  p.prefetch = plan.prefetch;
  p.bulk_store = call.y_dtype != BP_FP32 && p.vector_store && plan.tile.stores_bulk() && plan.cluster_k == 1 &&
                 (plan.tile.by_rows || plan.step % 64 == 0);
  Result<CUtensorMap> y_map = CUtensorMap{};
  if (p.bulk_store)
    y_map =
        encode({call.y, call.y_dtype, call.n, call.m, call.m == 1 ? (call.n + 7) / 8 * 8 : call.y_row_stride, false}, 2,
               plan.tile.bulk_columns(), plan.tile.by_rows ? 64 : plan.tile.n, 1);
  if (!y_map) return tl::unexpected<Error>(y_map.error());
  const int shared = gemm_layout(plan.tile, plan.step, plan.deep, plan.stages, plan.extra_sums).total + 1024;
  const Result<int> active = active_clusters(device, *found, cluster, shared);
  if (!active) return tl::unexpected<Error>(active.error());
  std::int64_t clusters = std::int64_t{p.tiles_m} * p.groups_n;
  // Blocks that merge leave at once and the hardware starts the next; long walks are persistent.
  if (plan.cluster_k == 1) clusters = std::min<std::int64_t>(clusters, *active);
  if (options.processors > 0) {
    clusters = std::min<std::int64_t>(clusters, std::max(1, options.processors * plan.blocks / cluster));
  }
  p.clusters = static_cast<std::int32_t>(clusters);

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  config.blockDim = dim3(static_cast<unsigned>(found->threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = static_cast<cudaStream_t>(options.stream);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  void* arguments[4] = {&*w_map, &*x_map, &*y_map, &p};
  return cuda_check(
      fmt::format("launching the matrix product m = {}, n = {}, k = {}, plan {}", call.m, call.n, call.k, plan.name()),
      cudaLaunchKernelExC(&config, found->function, arguments));
}

}  // namespace

std::string wgmma_refusal(const CudaGemmCall& call) {
  const Result<DeviceInfo> device = current_device();
  if (!device) return device.error().message;
  if (device->major != 9)
    return fmt::format("wgmma needs compute capability 9.x, {} is {}.{}", device->name, device->major, device->minor);
  if (call.k == 0) return "nothing to reduce";
  if (call.x_column_stride != 1 || !aligned16(call.x, call.m == 1 ? 8 : call.x_row_stride))
    return "rows of x are not contiguous at multiples of 16 bytes";
  const bool mn = call.w_column_stride == 1 && aligned16(call.w, call.w_row_stride);
  const bool k_major = weight_is_k_major(call) && aligned16(call.w, call.n == 1 ? 8 : call.w_column_stride);
  if (!mn && !k_major) return "the weight is not contiguous along k or n at multiples of 16 bytes";
  return {};
}

GemmShape cuda_gemm_shape(const CudaGemmCall& call, const KAxis& axis) {
  return {call.m, call.n, axis, !weight_is_k_major(call)};
}

Result<GemmDevice> cuda_gemm_device() {
  const Result<DeviceInfo> device = current_device();
  if (!device) return tl::unexpected<Error>(device.error());
  return plan_device(*device, 0);
}

Result<GemmPlan> cuda_gemm_plan(const CudaGemmCall& call, const Schedule& schedule) {
  const Result<KAxis> axis = kernel_axis(schedule);
  if (!axis) return tl::unexpected<Error>(axis.error());
  const Result<DeviceInfo> device = current_device();
  if (!device) return tl::unexpected<Error>(device.error());
  return choose_gemm_plan(cuda_gemm_shape(call, *axis), plan_device(*device, 0));
}

Result<Schedule> fast_gemm_schedule(const CudaGemmCall& call) {
  const Result<DeviceInfo> device = current_device();
  if (!device) return tl::unexpected<Error>(device.error());
  Result<Schedule> best = Schedule::make(call.k, ChainPolicy{std::max<std::int64_t>(call.k, 1)});
  double least = 0;
  for (int split = 1; split <= 8; ++split) {
    const std::int64_t length = std::max<std::int64_t>(64, (call.k + split * 64 - 1) / (split * 64) * 64);
    const auto schedule = Schedule::make(call.k, ChainPolicy{length});
    if (!schedule || call.k == 0) break;
    const Result<KAxis> axis = kernel_axis(*schedule);
    if (!axis) return tl::unexpected<Error>(axis.error());
    const GemmDevice limits = plan_device(*device, 0);
    const GemmShape shape = cuda_gemm_shape(call, *axis);
    const double cost = gemm_plan_cost(choose_gemm_plan(shape, limits), shape, limits);
    if (split == 1 || cost < least) {
      least = cost;
      best = schedule;
    }
  }
  return best;
}

Result<CudaGemmPath> cuda_gemm(const CudaGemmCall& call, const Schedule& schedule, const CudaGemmOptions& options) {
  if (std::string error = check(call, schedule); !error.empty()) return refuse(std::move(error));
  if (call.m == 0 || call.n == 0) return options.path;
  const Result<KAxis> axis = kernel_axis(schedule);
  if (!axis) return tl::unexpected<Error>(axis.error());
  const Result<DeviceInfo> device = current_device();
  if (!device) return tl::unexpected<Error>(device.error());
  if (device->major < 8)
    return fail(Error::Kind::environment, fmt::format("{} is sm_{}{}: the matrix product needs sm_80", device->name,
                                                      device->major, device->minor));
  if (axis->slices > 16) return refuse(fmt::format("schedule {} has more than 16 slices", schedule.name()));
  if (options.path != CudaGemmPath::portable) {
    const std::string why = wgmma_refusal(call);
    if (why.empty()) {
      const GemmPlan plan =
          options.plan ? *options.plan
                       : choose_gemm_plan(cuda_gemm_shape(call, *axis), plan_device(*device, options.processors));
      if (auto done = launch_wgmma(call, *axis, plan, *device, options); !done)
        return tl::unexpected<Error>(done.error());
      return CudaGemmPath::wgmma;
    }
    if (options.path == CudaGemmPath::wgmma || options.plan) return refuse("the wgmma path cannot run this: " + why);
  }
  const PortableOperands operands{call.x,
                                  call.x_row_stride,
                                  call.x_column_stride,
                                  call.w,
                                  call.w_row_stride,
                                  call.w_column_stride,
                                  call.dtype == BP_BF16};
  if (auto done = cuda_check(
          fmt::format("launching the portable matrix product m = {}, n = {}, k = {}", call.m, call.n, call.k),
          launch_gemm_portable(operands, common_params(call, *axis), static_cast<cudaStream_t>(options.stream)));
      !done)
    return tl::unexpected<Error>(done.error());
  return CudaGemmPath::portable;
}

}  // namespace batchproof::cuda
