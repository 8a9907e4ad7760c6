// SPDX-License-Identifier: Apache-2.0
//
// The mHC operators on a CUDA device: parameters, which kernel, how many thread blocks.
#include "src/kernels/cuda/mhc.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "src/kernels/cuda/mhc_params.h"
#include "src/kernels/cuda/tensor_map.h"
#include "src/numeric/divide.h"
#include "src/runtime/cuda_device.h"

namespace batchproof::cuda {
namespace {

MhcKernelForm form_of(const MhcCall& call) {
  if (call.head) return MhcKernelForm::head;
  if (call.broadcast) return MhcKernelForm::broadcast;
  return call.post.x != nullptr ? MhcKernelForm::fused : MhcKernelForm::pre;
}

MhcDeviceMatrix matrix(const MhcMatrix& m) { return {m.data, m.row, m.first, m.second}; }

bool on_16(const void* at, std::int64_t row, std::int64_t stream, std::int64_t element) {
  return at == nullptr ||
         (reinterpret_cast<std::uintptr_t>(at) % 16 == 0 && row * element % 16 == 0 && stream * element % 16 == 0);
}

// Partial sums [rows, parts, kMhcSumStride].
void set_parts(MhcLaunch* g, int parts) {
  g->parts = parts;
  g->group = 1;
  g->partial_row = static_cast<std::int64_t>(parts) * kMhcSumStride;
  g->partial_step = kMhcSumStride;
}

MhcLaunch launch_of(const CudaMhcCall& c, bool reversed) {
  const MhcCall& call = c.call;
  MhcLaunch g{};
  g.rows = call.rows;
  g.hidden = static_cast<int>(call.hidden);
  g.blocks = static_cast<int>(ceil_div(call.hidden, kMhcColumns));
  g.residual = call.residual.data;
  g.residual_row = call.residual.row;
  g.residual_stream = call.residual.stream;
  g.x = call.post.x;
  g.x_row = call.post.x_row;
  g.post_in = matrix(call.post.post);
  g.comb_in = matrix(call.post.comb);
  g.residual_out = call.residual_out;
  g.residual_out_row = call.residual_out_row;
  g.residual_out_stream = call.residual_out_stream;
  g.fn = call.fn;
  g.fn_row = call.fn_row;
  g.scale = c.scale;
  g.base = c.base;
  g.scale_step = c.scale_step;
  g.base_step = c.base_step;
  g.per_element = 1.0f / static_cast<float>(call.broadcast ? call.hidden : kMhcStreams * call.hidden);
  g.per_column = 1.0f / static_cast<float>(call.hidden);
  g.rms_eps = call.rms_eps;
  g.pre_eps = call.pre_eps;
  g.sinkhorn_eps = call.sinkhorn_eps;
  g.norm_eps = call.norm_eps;
  g.post_mult = call.post_mult;
  g.sinkhorn_repeat = call.sinkhorn_repeat;
  g.norm_weight = call.norm_weight;
  g.delayed = call.delayed;
  g.carried = matrix(call.carried);
  g.pre_out = matrix(call.pre_out);
  g.post_out = matrix(call.post_out);
  g.comb_out = matrix(call.comb_out);
  g.out = call.out.data;
  g.out_row = call.out.row;
  g.mean = call.mean_out.data;
  g.mean_row = call.mean_out.row;
  g.mixes_out = matrix(call.mixes_out);
  g.square_out = matrix(call.square_out);
  g.reversed = reversed;
  g.wide = on_16(g.residual, g.residual_row, g.residual_stream, 2) && on_16(g.x, g.x_row, 0, 2) &&
           on_16(g.residual_out, g.residual_out_row, g.residual_out_stream, 2) && on_16(g.fn, g.fn_row, 0, 4) &&
           on_16(g.norm_weight, 0, 0, 2) && on_16(g.out, g.out_row, 0, 2) && on_16(g.mean, g.mean_row, 0, 2);
  g.partial = static_cast<float*>(call.workspace);
  set_parts(&g, g.blocks);
  return g;
}

// Clusters that the current device holds at once; 0: none. Asked once for each shape of a thread block.
int capacity(MhcKernelForm form, const MhcShape& shape, int blocks) {
  static std::mutex mutex;
  static std::map<std::tuple<int, MhcKernelForm, int, int, int>, int> known;
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::tuple(device, form, shape.cluster, shape.slots, blocks);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  int clusters = 0;
  if (mhc_cluster_capacity(form, shape, blocks, &clusters) != cudaSuccess) {
    cudaGetLastError();
    clusters = 0;
  }
  return known[key] = clusters;
}

// Nothing where the device cannot run the cluster kernel.
std::optional<MhcShape> shape_of(MhcKernelForm form, const MhcLaunch& g, const CudaMhcOptions& options,
                                 const DeviceInfo& device) {
  if (device.major != 9 || !g.wide || g.reversed) return std::nullopt;
  MhcShapeRequest r;
  r.form = form;
  r.rows = g.rows;
  r.blocks = g.blocks;
  r.processors = options.processors;
  r.block_shared_bytes = device.block_shared_bytes;
  r.cluster = options.cluster;
  r.slots = options.slots;
  r.lag = options.lag;
  r.capacity = [&](const MhcShape& s) { return capacity(form, s, g.blocks); };
  return choose_mhc_shape(r);
}

bool can_run_product(MhcKernelForm form, const MhcLaunch& g, const DeviceInfo& device) {
  // Of the fused form the product reads what mhc_post has written.
  const bool has_streams = form == MhcKernelForm::pre || (form == MhcKernelForm::fused && g.residual_out != nullptr);
  return has_streams && device.major == 9 && g.wide && !g.reversed && g.hidden % 64 == 0;
}

// Of streams [rows, 4, hidden] that begin at multiples of 16 bytes, with hidden a multiple of 64: a block of the
// reduction of kStageTokens rows. One row: its stride says nothing.
Result<CUtensorMap> map_streams(const MhcLaunch& g, const std::uint16_t* data, std::int64_t row, std::int64_t stream) {
  constexpr int kGroup = 64;  // columns that are 128 bytes, the width of the swizzle
  if (g.rows == 1) row = kMhcStreams * std::int64_t{g.hidden};
  return encode_tensor_map({.data = data,
                            .dtype = BP_BF16,
                            .rank = 4,
                            .sizes = {kGroup, g.hidden / kGroup, g.rows, kMhcStreams},
                            .strides = {kGroup * 2, row * 2, stream * 2},
                            .box = {kGroup, kMhcColumns / kGroup, kStageTokens, kMhcStreams},
                            .swizzled = true});
}

// The product of mhc_pre, of the fused form behind mhc_post; g.parts and g.group become what it leaves.
Result<void> run_product(MhcKernelForm form, MhcLaunch* g, const CudaMhcOptions& options, int processors,
                         const DeviceInfo& device) {
  if (!can_run_product(form, *g, device))
    return fail(
        Error::Kind::operation,
        fmt::format(
            "the product alone is for mhc_pre and the fused form, in the usual order, on compute capability 9.x, with "
            "hidden a multiple of 64 and rows that begin at multiples of 16 bytes; hidden is {}, {} is "
            "{}.{}",
            g->hidden, device.name, device.major, device.minor));
  MhcProductRequest r;
  r.rows = g->rows;
  r.blocks = g->blocks;
  r.processors = processors;
  r.few_tokens = options.few_tokens;
  r.many_shares = options.many_shares;
  const auto plan = choose_mhc_product(r);
  if (!plan)
    return fail(Error::Kind::operation, fmt::format("{} holds no plan for the product of {} rows of {} columns",
                                                    device.name, g->rows, g->hidden));
  // [parts, rows, kMhcSumStride]: a thread block's sums lie together.
  g->parts = plan->partials(g->blocks);
  g->group = plan->group();
  g->partial_row = kMhcSumStride;
  g->partial_step = g->rows * kMhcSumStride;
  const auto stream = static_cast<cudaStream_t>(options.stream);
  if (form == MhcKernelForm::fused) {
    if (auto done = cuda_check("launching mhc_post", launch_mhc_post(*g, processors, stream)); !done) return done;
    g->residual = g->residual_out;
    g->residual_row = g->residual_out_row;
    g->residual_stream = g->residual_out_stream;
  }
  if (plan->few)
    return cuda_check("launching the mHC product for few rows",
                      launch_mhc_product_few(*g, *plan, options.dependent, stream));
  const auto streams = map_streams(*g, g->residual, g->residual_row, g->residual_stream);
  if (!streams) return tl::unexpected<Error>(streams.error());
  return cuda_check("launching the mHC product",
                    launch_mhc_product_many(*g, *streams, *plan, options.dependent, stream));
}

// Nothing where the device or the call does not fit.
std::optional<MhcRelayPlan> relay_of(MhcKernelForm form, const MhcLaunch& g, const CudaMhcOptions& options,
                                     int processors, const DeviceInfo& device) {
  if (!can_run_product(form, g, device)) return std::nullopt;
  MhcRelayRequest r;
  r.form = form;
  r.rows = g.rows;
  r.blocks = g.blocks;
  r.processors = processors;
  r.shares = options.many_shares;
  r.ahead = options.ahead;
  return choose_mhc_relay(r);
}

Result<void> run_relay(MhcKernelForm form, const MhcLaunch& g, const MhcRelayPlan& plan, cudaStream_t stream) {
  MhcRelayMaps maps{};
  const auto set = [](const Result<CUtensorMap>& from, CUtensorMap* to) -> Result<void> {
    if (!from) return tl::unexpected<Error>(from.error());
    *to = *from;
    return {};
  };
  if (auto done = set(map_streams(g, g.residual, g.residual_row, g.residual_stream), &maps.streams); !done) return done;
  if (form == MhcKernelForm::fused) {
    if (auto done = set(map_streams(g, g.residual_out, g.residual_out_row, g.residual_out_stream), &maps.streams_out);
        !done)
      return done;
    const std::int64_t row = g.rows == 1 ? g.hidden : g.x_row;
    if (auto done = set(encode_tensor_map({.data = g.x,
                                           .dtype = BP_BF16,
                                           .rank = 3,
                                           .sizes = {g.hidden, g.rows, 1},
                                           .strides = {row * 2, row * g.rows * 2},
                                           .box = {kMhcColumns, kStageTokens, 1},
                                           .swizzled = false}),
                        &maps.x);
        !done)
      return done;
  }
  auto* const complete = reinterpret_cast<std::uint32_t*>(g.partial + mhc_relay_floats(g.rows, g.blocks).sums);
  return cuda_check("launching the mHC kernel for many rows", launch_mhc_relay(form, g, maps, plan, complete, stream));
}

int processors_of(const CudaMhcOptions& options, const DeviceInfo& device) {
  return options.processors > 0 ? std::min(options.processors, device.processors) : device.processors;
}

// Nothing where the sizes are fine for every path.
std::optional<Error> check(const MhcCall& call) {
  if (call.rows < 0 || call.hidden <= 0 || call.hidden % 16 != 0 || call.hidden > (std::int64_t{1} << 24))
    return Error{Error::Kind::usage, fmt::format("mHC on a device: {} rows of {} columns; hidden must be a positive "
                                                 "multiple of 16",
                                                 call.rows, call.hidden)};
  return std::nullopt;
}
std::optional<Error> check_workspace(const MhcCall& call) {
  const std::size_t needed = cuda_mhc_workspace(call.rows, call.hidden);
  if (call.workspace_bytes >= needed) return std::nullopt;
  return Error{Error::Kind::internal, fmt::format("mHC on a device: a workspace of {} bytes where {} are needed",
                                                  call.workspace_bytes, needed)};
}

// Fast mode: one partial sum per split, then the coefficients.
Result<void> run_occupancy(MhcKernelForm form, MhcLaunch g, const CudaMhcOptions& options, int processors,
                           cudaStream_t stream) {
  if (form == MhcKernelForm::head) return fail(Error::Kind::internal, "hc_head has one dispatch, whatever the mode");
  const std::int64_t columns = form == MhcKernelForm::broadcast ? g.hidden : 4 * static_cast<std::int64_t>(g.hidden);
  const MhcPath path =
      default_dispatch({g.rows, g.hidden, columns, options.assumed_processors, form == MhcKernelForm::fused, false});
  set_parts(&g, static_cast<int>(path.splits));
  cudaError_t status = cudaSuccess;
  if (path.kind == MhcPath::Kind::threads) {
    status = launch_mhc_small(g, stream);
  } else {
    if (form == MhcKernelForm::fused) status = launch_mhc_post(g, processors, stream);
    if (status == cudaSuccess) status = launch_mhc_split(form, g, stream);
  }
  if (status == cudaSuccess) status = launch_mhc_finish(form, g, processors, stream);
  return cuda_check("launching the default dispatch of mHC", status);
}

}  // namespace

std::size_t cuda_mhc_workspace(std::int64_t rows, std::int64_t hidden) {
  // A block has 256 columns of h; a split at least four K blocks of all columns, and there is at least one.
  const std::int64_t blocks = ceil_div(hidden, kMhcColumns);
  const std::int64_t parts = std::max<std::int64_t>({blocks, occupancy_splits(1 << 20, 4 * hidden, 1), 8});
  const std::int64_t sums = std::max(rows * parts, mhc_product_sums(rows, blocks)) * kMhcSumStride;
  const MhcRelayFloats relay = mhc_relay_floats(rows, blocks);
  return static_cast<std::size_t>(std::max(sums, relay.sums + relay.complete)) * sizeof(float);
}

Result<CudaMhcSums> cuda_mhc_product(const CudaMhcCall& c, const CudaMhcOptions& options) {
  if (auto error = check(c.call)) return tl::unexpected<Error>(*error);
  if (auto error = check_workspace(c.call)) return tl::unexpected<Error>(*error);
  if (c.call.rows == 0) return CudaMhcSums{1, 1};
  const Result<DeviceInfo> device = current_device();
  if (!device) return tl::unexpected<Error>(device.error());
  MhcLaunch g = launch_of(c, options.reversed);
  const int processors = processors_of(options, *device);
  if (auto done = run_product(form_of(c.call), &g, options, processors, *device); !done)
    return tl::unexpected<Error>(done.error());
  return CudaMhcSums{g.parts, g.group};
}

Result<void> cuda_mhc(const CudaMhcCall& c, const CudaMhcOptions& options) {
  const MhcCall& call = c.call;
  if (call.rows == 0) return {};
  if (auto error = check(call)) return tl::unexpected<Error>(*error);
  const Result<DeviceInfo> device = current_device();
  if (!device) return tl::unexpected<Error>(device.error());
  const int processors = processors_of(options, *device);
  const auto stream = static_cast<cudaStream_t>(options.stream);
  MhcLaunch g = launch_of(c, options.reversed);
  if (call.post_only) return cuda_check("launching mhc_post", launch_mhc_post(g, processors, stream));
  const MhcKernelForm form = form_of(call);
  const bool automatic = options.path == CudaMhcPath::automatic;
  if (automatic || options.path == CudaMhcPath::relay) {
    const auto relay = relay_of(form, g, options, processors, *device);
    if (relay && (!automatic || mhc_relay_pays(g.rows, g.blocks, options.dependent))) {
      if (auto error = check_workspace(call)) return tl::unexpected<Error>(*error);
      return run_relay(form, g, *relay, stream);
    }
    if (!automatic)
      return fail(
          Error::Kind::operation,
          fmt::format("the kernel for many rows is for mhc_pre and the fused form, in the usual order, on compute "
                      "capability 9.x, with hidden a multiple of 64 up to {} and rows that begin at multiples of 16 "
                      "bytes; hidden is {}, {} is {}.{} with {} processors to use",
                      kRelayBlocksMost * kMhcColumns, g.hidden, device->name, device->major, device->minor,
                      processors));
  }
  if (automatic || options.path == CudaMhcPath::cluster) {
    if (const auto shape = shape_of(form, g, options, *device))
      return cuda_check("launching the mHC cluster kernel",
                        launch_mhc_cluster(form, g, *shape, options.dependent, stream));
    if (!automatic)
      return fail(Error::Kind::operation,
                  fmt::format("{} holds no cluster that fits {} columns of four streams", device->name, call.hidden));
  }
  if (auto error = check_workspace(call)) return tl::unexpected<Error>(*error);
  if (options.path == CudaMhcPath::occupancy) return run_occupancy(form, g, options, processors, stream);
  if (options.path == CudaMhcPath::product) {
    if (auto done = run_product(form, &g, options, processors, *device); !done) return done;
  } else if (auto done = cuda_check("launching the mHC product", launch_mhc_product(form, g, processors, stream));
             !done) {
    return done;
  }
  return cuda_check("launching the mHC coefficients", launch_mhc_finish(form, g, processors, stream));
}

}  // namespace batchproof::cuda
