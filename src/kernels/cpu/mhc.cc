// SPDX-License-Identifier: Apache-2.0
//
// Driver of the mHC kernels: checks, partition over threads, scratch memory. Nothing here adds or multiplies but the
// merge of split sums.
#include "src/kernels/cpu/mhc.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/kernels/cpu/mhc_backend.h"
#include "src/kernels/cpu/strands.h"
#include "src/numeric/divide.h"
#include "src/numeric/host_device.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

using Kind = MhcPath::Kind;

constexpr std::int64_t kPartRows = 64;   // rows that one part walks: 64 * 4 * 4096 BF16 stay in a share of level 3
constexpr std::int64_t kFewRows = 16;    // up to here segments may be spread over threads
constexpr std::int64_t kPackParts = 16;  // pieces of the weights, packed in parallel

float canonical(float value) { return std::isnan(value) ? cast_bits<float>(0x7FC00000u) : value; }

Result<const MhcKernel*> kernel_of(const std::optional<Isa>& wanted) {
  const Result<Isa> isa = wanted ? Result<Isa>(*wanted) : selected_isa();
  if (!isa) return tl::unexpected<Error>(isa.error());
  const std::vector<Isa> available = available_isas();
  if (std::find(available.begin(), available.end(), *isa) == available.end())
    return fail(Error::Kind::environment, fmt::format("this processor has no {}", isa_name(*isa)));
#if defined(__x86_64__)
  if (*isa == Isa::avx512) return &kMhcAvx512;
  if (*isa == Isa::avx2) return &kMhcAvx2;
#endif
  return &kMhcPlain;
}

// Segments that are kept unmerged where few rows share the threads. Does not depend on the threads.
std::int64_t kept_segments(std::int64_t rows, std::int64_t columns, const MhcPath& path) {
  if (path.kind == Kind::external) return path.splits;
  if ((path.kind == Kind::chain || path.kind == Kind::splits) && rows <= kFewRows)
    return static_cast<std::int64_t>(product_bounds(path, columns).size()) - 1;
  return 0;
}

// The workspace: everything that parts share or own by row.
struct Areas {
  float* packed = nullptr;   // [columns, 24]
  float* sums = nullptr;     // [rows, 24]
  float* squares = nullptr;  // [rows]
  float* partial = nullptr;  // [rows, 24]
  float* strands = nullptr;  // [rows, 16]
  float* pre = nullptr;      // [rows, 4]
  float* kept_sums = nullptr;
  float* kept_squares = nullptr;
  std::size_t bytes = 0;
};

Areas areas_of(void* memory, std::int64_t rows, std::int64_t columns, const MhcPath& path) {
  Areas areas;
  std::size_t offset = 0;
  const auto take = [&](std::int64_t floats) {
    float* at = memory == nullptr ? nullptr : reinterpret_cast<float*>(static_cast<std::byte*>(memory) + offset);
    offset += (static_cast<std::size_t>(floats) * sizeof(float) + 63) / 64 * 64;
    return at;
  };
  const std::int64_t kept = kept_segments(rows, columns, path);
  areas.packed = take(columns * kMhcMixes);
  areas.sums = take(rows * kMhcMixes);
  areas.squares = take(rows);
  areas.partial = take(rows * kMhcMixes);
  areas.strands = take(rows * kStrands);
  areas.pre = take(rows * kMhcStreams);
  areas.kept_sums = take(kept * rows * kMhcMixes);
  areas.kept_squares = take(kept * rows);
  areas.bytes = offset;
  return areas;
}

// Per thread, grows, never shrinks; every element is written before it is read.
float* thread_scratch(std::int64_t floats) {
  thread_local std::vector<float> memory;
  if (static_cast<std::int64_t>(memory.size()) < floats) memory.resize(static_cast<std::size_t>(floats));
  return memory.data();
}

class Driver {
 public:
  Driver(const MhcCall& call, const MhcKernel& kernel) : call_(call), kernel_(kernel) {
    columns_ = call.broadcast ? call.hidden : kMhcStreams * call.hidden;
    areas_ = areas_of(call.workspace, call.rows, columns_, call.path);
    has_post_ = call.post.x != nullptr;
    streams_ = has_post_ && !call.path.unrounded ? stored() : call.residual;
  }

  Result<void> run() {
    if (call_.post_only) {
      each_part(kPartRows, [&](std::int64_t begin, std::int64_t end) { kernel_.post(post_args(begin, end)); });
      return {};
    }
    if (!call_.head &&
        (call_.path.kind == Kind::chain || call_.path.kind == Kind::descending || call_.path.kind == Kind::splits)) {
      bounds_ = product_bounds(call_.path, columns_);
      chunks_ = product_chunks(bounds_);
      pack();
    }
    if (!call_.head && call_.path.kind == Kind::threads) steps_ = thread_steps(call_.path, call_.hidden, columns_);
    if (!call_.head && call_.path.kind == Kind::external) {
      if (auto done = external(); !done) return done;
      each_part(kPartRows, [&](std::int64_t begin, std::int64_t end) {
        merge_kept(begin, end, call_.path.splits, 0.0f);
        finish(begin, end);
      });
      return {};
    }
    if (spreads_segments()) {
      spread();
      return {};
    }
    each_part(kPartRows, [&](std::int64_t begin, std::int64_t end) {
      if (has_post_ && !call_.path.unrounded) kernel_.post(post_args(begin, end));
      product(begin, end);
      finish(begin, end);
    });
    return {};
  }

 private:
  MhcStreams stored() const { return {call_.residual_out, call_.residual_out_row, call_.residual_out_stream}; }

  static MhcStreams from_row(const MhcStreams& streams, std::int64_t row) {
    return {streams.data + row * streams.row, streams.row, streams.stream};
  }

  // Parts start at multiples of the kernel's tile.
  template <class Body>
  void each_part(std::int64_t most, const Body& body) const {
    const std::int64_t threads = std::max(call_.threads, 1);
    const std::int64_t tile = kernel_.tile_rows;
    std::int64_t part = std::min(most, ceil_div(call_.rows, threads * 3));
    if (call_.rows <= threads * tile) part = ceil_div(call_.rows, threads);
    part = ceil_div(part, tile) * tile;
    parallel_for(call_.threads, ceil_div(call_.rows, part),
                 [&](std::int64_t p) { body(p * part, std::min((p + 1) * part, call_.rows)); });
  }

  MhcPostArgs post_args(std::int64_t begin, std::int64_t end) const {
    MhcPostArgs g = {};
    g.rows = end - begin;
    g.hidden = call_.hidden;
    g.x = call_.post.x + begin * call_.post.x_row;
    g.x_row = call_.post.x_row;
    g.residual = from_row(call_.residual, begin);
    g.post = call_.post.post.data + begin * call_.post.post.row;
    g.post_row = call_.post.post.row;
    g.post_stream = call_.post.post.first;
    g.comb = call_.post.comb.data + begin * call_.post.comb.row;
    g.comb_row = call_.post.comb.row;
    g.comb_i = call_.post.comb.first;
    g.comb_j = call_.post.comb.second;
    g.out = call_.residual_out + begin * call_.residual_out_row;
    g.out_row = call_.residual_out_row;
    g.out_stream = call_.residual_out_stream;
    g.reversed = call_.post.reversed;
    return g;
  }

  void pack() const {
    MhcPackArgs g = {};
    g.fn = call_.fn;
    g.fn_row = call_.fn_row;
    g.columns = columns_;
    g.descending = call_.path.kind == Kind::descending;
    g.tf32 = call_.path.tf32;
    g.packed = areas_.packed;
    const std::int64_t piece = ceil_div(ceil_div(columns_, kPackParts), 16) * 16;
    parallel_for(call_.threads, ceil_div(columns_, piece), [&](std::int64_t p) {
      MhcPackArgs own = g;
      own.begin = p * piece;
      own.end = std::min(own.begin + piece, columns_);
      kernel_.pack(own);
    });
  }

  // Chunks [c0, c1) of rows [begin, end), merged or kept.
  void product_of_chunks(std::int64_t begin, std::int64_t end, std::size_t c0, std::size_t c1, bool merge,
                         float* partial, float* strands) const {
    MhcProductArgs g = {};
    const MhcPostArgs post = has_post_ && call_.path.unrounded ? post_args(begin, end) : MhcPostArgs{};
    alignas(64) float values[kMhcTileRows * kMhcChunk];
    g.rows = end - begin;
    g.hidden = call_.hidden;
    g.columns = columns_;
    g.residual = from_row(streams_, begin);
    g.post = has_post_ && call_.path.unrounded ? &post : nullptr;
    g.packed = areas_.packed;
    g.chunks = chunks_.data() + c0;
    g.chunk_count = static_cast<std::int64_t>(c1 - c0);
    g.descending = call_.path.kind == Kind::descending;
    g.merge = merge;
    g.sums = (merge ? areas_.sums : areas_.kept_sums) + begin * kMhcMixes;
    g.squares = (merge ? areas_.squares : areas_.kept_squares) + begin;
    g.segment_sums = call_.rows * kMhcMixes;
    g.segment_squares = call_.rows;
    g.values = values;
    g.partial = partial;
    g.strands = strands;
    kernel_.product(g);
  }

  void product(std::int64_t begin, std::int64_t end) const {
    if (call_.head) return head_product(begin, end);
    if (call_.path.kind == Kind::threads) return threads_product(begin, end);
    product_of_chunks(begin, end, 0, chunks_.size(), true, areas_.partial + begin * kMhcMixes,
                      areas_.strands + begin * kStrands);
  }

  void head_product(std::int64_t begin, std::int64_t end) const {
    MhcHeadArgs g = {};
    g.rows = end - begin;
    g.hidden = call_.hidden;
    g.columns = columns_;
    g.residual = from_row(streams_, begin);
    g.fn = call_.fn;
    g.fn_row = call_.fn_row;
    g.segment = call_.head_segment;
    g.descending = call_.head_descending;
    g.sums = areas_.sums + begin * kMhcStreams;
    g.squares = areas_.squares + begin;
    kernel_.head(g);
  }

  void threads_product(std::int64_t begin, std::int64_t end) const {
    const std::int64_t rows = end - begin;
    const std::int64_t splits = call_.path.splits;
    const std::int64_t values = 2 * columns_;
    const std::int64_t partial = 4 * call_.path.threads;
    float* scratch = thread_scratch(values + partial + splits * rows * (kMhcMixes + 1));
    const MhcPostArgs post = has_post_ && call_.path.unrounded ? post_args(begin, end) : MhcPostArgs{};
    MhcThreadsArgs g = {};
    g.rows = rows;
    g.hidden = call_.hidden;
    g.columns = columns_;
    g.residual = from_row(streams_, begin);
    g.post = has_post_ && call_.path.unrounded ? &post : nullptr;
    g.fn = call_.fn;
    g.fn_row = call_.fn_row;
    g.threads = call_.path.threads;
    g.steps = steps_.data();
    g.splits = splits;
    g.steps_per_split = static_cast<std::int64_t>(steps_.size()) / splits;
    g.pairs = call_.path.pairs;
    g.values = scratch;
    g.partial = scratch + values;
    g.sums = g.partial + partial;
    g.squares = g.sums + splits * rows * kMhcMixes;
    kernel_.threads(g);
    merge_splits(g.sums, g.squares, rows, 0, rows, splits, begin, 0.0f);
  }

  // sums[row] = start + kept[0] + kept[1] + ...; kept rows [from, to) of `stride`.
  void merge_splits(const float* kept_sums, const float* kept_squares, std::int64_t stride, std::int64_t from,
                    std::int64_t to, std::int64_t splits, std::int64_t begin, std::optional<float> start) const {
    for (std::int64_t r = from; r < to; ++r) {
      const std::int64_t row = begin + r - from;
      for (int c = 0; c <= kMhcMixes; ++c) {
        const auto part = [&](std::int64_t s) {
          return c < kMhcMixes ? kept_sums[(s * stride + r) * kMhcMixes + c] : kept_squares[s * stride + r];
        };
        float total = start ? *start + part(0) : part(0);
        for (std::int64_t s = 1; s < splits; ++s) total = total + part(s);
        (c < kMhcMixes ? areas_.sums[row * kMhcMixes + c] : areas_.squares[row]) = total;
      }
    }
  }

  void merge_kept(std::int64_t begin, std::int64_t end, std::int64_t splits, std::optional<float> start) const {
    merge_splits(areas_.kept_sums, areas_.kept_squares, call_.rows, begin, end, splits, begin, start);
  }

  bool spreads_segments() const {
    return !call_.head && (call_.path.kind == Kind::chain || call_.path.kind == Kind::splits) &&
           call_.rows <= kFewRows && call_.threads > 1 &&
           call_.rows < static_cast<std::int64_t>(call_.threads) * kernel_.tile_rows;
  }

  // Few rows: every thread takes segments, whose sums are kept and merged in order.
  void spread() const {
    if (has_post_ && !call_.path.unrounded)
      each_part(1, [&](std::int64_t begin, std::int64_t end) { kernel_.post(post_args(begin, end)); });
    const auto segments = static_cast<std::int64_t>(bounds_.size()) - 1;
    const std::int64_t groups = std::min<std::int64_t>(segments, 2 * call_.threads);
    parallel_for(call_.threads, groups, [&](std::int64_t group) {
      const std::int64_t s0 = segments * group / groups;
      const std::int64_t s1 = segments * (group + 1) / groups;
      std::size_t c0 = 0;
      while (chunks_[c0].segment < s0) ++c0;
      std::size_t c1 = c0;
      while (c1 < chunks_.size() && chunks_[c1].segment < s1) ++c1;
      float partial[kFewRows * kMhcMixes], strands[kFewRows * kStrands];
      product_of_chunks(0, call_.rows, c0, c1, false, partial, strands);
    });
    merge_kept(0, call_.rows, segments, std::nullopt);
    each_part(1, [&](std::int64_t begin, std::int64_t end) { finish(begin, end); });
  }

  Result<void> external() const {
    const std::shared_ptr<const MhcBackend> backend = mhc_backend();
    if (backend == nullptr || !backend->product)
      return fail(Error::Kind::environment, "no external product is registered");
    if (has_post_)
      each_part(kPartRows, [&](std::int64_t begin, std::int64_t end) { kernel_.post(post_args(begin, end)); });
    const auto columns = static_cast<std::size_t>(columns_);
    const auto hidden = static_cast<std::size_t>(call_.hidden);
    std::vector<std::uint16_t> residual(static_cast<std::size_t>(call_.rows) * columns);
    std::vector<float> fn(columns * kMhcMixes);
    for (std::int64_t row = 0; row < call_.rows; ++row) {
      for (std::int64_t k = 0; k < columns_; k += call_.hidden)
        std::memcpy(residual.data() + row * columns_ + k,
                    streams_.data + row * streams_.row + k / call_.hidden * streams_.stream, hidden * 2);
    }
    for (std::int64_t c = 0; c < kMhcMixes; ++c)
      std::memcpy(fn.data() + c * columns_, call_.fn + c * call_.fn_row, columns * sizeof(float));
    const MhcProductShape shape = {call_.rows, columns_, call_.path.splits};
    return backend->product(shape, residual.data(), fn.data(), areas_.kept_sums, areas_.kept_squares);
  }

  void write_sums(std::int64_t begin, std::int64_t end) const {
    const int mixes = call_.head ? kMhcStreams : kMhcMixes;
    for (std::int64_t row = begin; row < end; ++row) {
      for (int c = 0; c < mixes && call_.mixes_out.data != nullptr; ++c)
        call_.mixes_out.data[row * call_.mixes_out.row + c * call_.mixes_out.first] =
            canonical(areas_.sums[row * mixes + c]);
      if (call_.square_out.data != nullptr)
        call_.square_out.data[row * call_.square_out.row] = canonical(areas_.squares[row]);
    }
  }

  void coefficients(std::int64_t begin, std::int64_t end) const {
    MhcCoefficientArgs g = {};
    g.rows = end - begin;
    g.sums = areas_.sums + begin * (call_.head ? kMhcStreams : kMhcMixes);
    g.squares = areas_.squares + begin;
    g.count = static_cast<float>(columns_);
    g.rms_eps = call_.rms_eps;
    g.pre_eps = call_.pre_eps;
    g.sinkhorn_eps = call_.sinkhorn_eps;
    g.post_mult = call_.post_mult;
    g.sinkhorn_repeat = call_.sinkhorn_repeat;
    g.scale = call_.scale;
    g.base = call_.base;
    g.pre_only = call_.head;
    g.pre = areas_.pre + begin * kMhcStreams;
    if (!call_.head) {
      g.post = call_.post_out.data + begin * call_.post_out.row;
      g.post_row = call_.post_out.row;
      g.post_stream = call_.post_out.first;
      g.comb = call_.comb_out.data + begin * call_.comb_out.row;
      g.comb_row = call_.comb_out.row;
      g.comb_i = call_.comb_out.first;
      g.comb_j = call_.comb_out.second;
    }
    kernel_.coefficients(g);
  }

  void collapse(std::int64_t begin, std::int64_t end) const {
    MhcCollapseArgs g = {};
    g.rows = end - begin;
    g.hidden = call_.hidden;
    g.residual = from_row(has_post_ ? stored() : call_.residual, begin);
    if (!call_.delayed) {
      g.pre = areas_.pre + begin * kMhcStreams;
      g.pre_row = kMhcStreams;
      g.pre_stream = 1;
    } else if (call_.carried.data != nullptr) {
      g.pre = call_.carried.data + begin * call_.carried.row;
      g.pre_row = call_.carried.row;
      g.pre_stream = call_.carried.first;
    }
    g.norm_weight = call_.norm_weight;
    g.norm_eps = call_.norm_eps;
    g.out = call_.out.data + begin * call_.out.row;
    g.out_row = call_.out.row;
    if (call_.mean_out.data != nullptr) {
      g.mean = call_.mean_out.data + begin * call_.mean_out.row;
      g.mean_row = call_.mean_out.row;
    }
    g.descending = call_.path.kind == Kind::descending || call_.head_descending;
    kernel_.collapse(g);
  }

  // From sums to outputs.
  void finish(std::int64_t begin, std::int64_t end) const {
    if (call_.change_sums) {
      call_.change_sums(
          {begin, end, from_row(streams_, begin), areas_.sums + begin * kMhcMixes, areas_.squares + begin});
    }
    write_sums(begin, end);
    coefficients(begin, end);
    for (std::int64_t row = begin; row < end && call_.delayed && call_.pre_out.data != nullptr; ++row) {
      for (int i = 0; i < kMhcStreams; ++i)
        call_.pre_out.data[row * call_.pre_out.row + i * call_.pre_out.first] = areas_.pre[row * kMhcStreams + i];
    }
    collapse(begin, end);
    if (!call_.broadcast) return;
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t i = 0; i < kMhcStreams; ++i)
        std::memcpy(call_.residual_out + row * call_.residual_out_row + i * call_.residual_out_stream,
                    call_.residual.data + row * call_.residual.row, static_cast<std::size_t>(call_.hidden) * 2);
    }
  }

  const MhcCall& call_;
  const MhcKernel& kernel_;
  std::int64_t columns_ = 0;
  Areas areas_;
  bool has_post_ = false;
  MhcStreams streams_;  // what the product reads
  std::vector<std::int64_t> bounds_;
  std::vector<MhcProductChunk> chunks_;
  std::vector<std::int64_t> steps_;
};

Result<void> check(const MhcCall& call) {
  const std::int64_t columns = call.broadcast ? call.hidden : kMhcStreams * call.hidden;
  if (call.rows < 0 || call.hidden < 16 || call.hidden % 16 != 0)
    return fail(Error::Kind::usage, fmt::format("H = {} must be a positive multiple of 16", call.hidden));
  if (call.post_only) return {};
  const MhcPath& path = call.path;
  const std::int64_t blocks = ceil_div(columns, kMhcBlockColumns);
  if (!call.head && (path.kind == Kind::splits || path.kind == Kind::external) &&
      (path.splits < 1 || path.splits > blocks))
    return fail(Error::Kind::usage,
                fmt::format("{} splits do not fit {} blocks of {} columns", path.splits, blocks, kMhcBlockColumns));
  if (!call.head && path.kind == Kind::threads && !path.unrounded && columns % path.threads != 0)
    return fail(Error::Kind::usage, fmt::format("{} columns are no multiple of {} threads", columns, path.threads));
  if (!call.head && path.kind == Kind::threads && path.unrounded && !path.drops_tail &&
      call.hidden % (path.splits * path.threads) != 0)
    return fail(Error::Kind::usage, fmt::format("H = {} is no multiple of {} splits times {} threads", call.hidden,
                                                path.splits, path.threads));
  if (call.workspace_bytes < mhc_workspace(call.rows, columns, path))
    return fail(Error::Kind::internal, fmt::format("the workspace has {} bytes, {} are needed", call.workspace_bytes,
                                                   mhc_workspace(call.rows, columns, path)));
  return {};
}

}  // namespace

std::size_t mhc_workspace(std::int64_t rows, std::int64_t columns, const MhcPath& path) {
  return areas_of(nullptr, rows, columns, path).bytes + 64;
}

Result<void> run_mhc(const MhcCall& call) {
  if (auto checked = check(call); !checked) return checked;
  const Result<const MhcKernel*> kernel = kernel_of(call.isa);
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  if (call.rows == 0) return {};
  MhcCall aligned = call;
  const auto address = reinterpret_cast<std::uintptr_t>(call.workspace);
  aligned.workspace = reinterpret_cast<void*>((address + 63) / 64 * 64);
  return Driver(aligned, **kernel).run();
}

}  // namespace batchproof
