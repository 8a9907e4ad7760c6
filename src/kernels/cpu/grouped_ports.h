// SPDX-License-Identifier: Apache-2.0
//
// Tables of the operators that multiply every row by the weights of the expert that it chose: ports, attributes,
// implementations, and what follows from a problem alone. A form says which ports lie with a row's own rank and which
// with its expert.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_GROUPED_PORTS_H_
#define BATCHPROOF_SRC_KERNELS_CPU_GROUPED_PORTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/kernels/cpu/grouped_linear.h"
#include "src/kernels/cpu/linear_ports.h"

namespace batchproof {

// The ports of every such operator; its own ones follow.
enum GroupedPort : std::uint32_t {
  kGmmX,
  kGmmWeight,
  kGmmY,
  kMmX,
  kMmWeight,
  kMmY,
  kGmmXScale,
  kGmmWeightScale,
  kMmXScale,
  kMmWeightScale,
  kGroupedPorts
};

constexpr std::uint32_t kGroupedInputs = kLinearFloats | BP_DTYPE_BIT(BP_E4M3) | BP_DTYPE_BIT(BP_E5M2);

// ---- ports ----

// The tensors of the routed rows have M rows on the rows' own ranks. With the experts they have as many as the fullest
// rank receives, M where the routing is balanced.
constexpr bp_port grouped_rows(const char* name, bp_port_kind kind, const char* shape, const char* aliases) {
  bp_port port = row_port(name, kind, shape, BP_SHARDED, kind == BP_OUTPUT ? kLinearFloats : kGroupedInputs, aliases);
  if (kind == BP_ROW_INPUT) {
    port.reduction_axes = 1u << 1;
    port.reduction_group = "K";
  }
  return port;
}

constexpr bp_port grouped_optional(bp_port port) {
  port.flags |= BP_PORT_OPTIONAL;
  return port;
}

constexpr bp_port gmm_weight_port() {
  bp_port port = row_port("gmm_weight", BP_WEIGHT, "E, K, N", BP_SHARDED, kGroupedInputs, "gmmWeight");
  port.row_axis = -1;
  port.reduction_axes = 1u << 1;
  port.reduction_group = "K";
  port.flags = 0;
  port.transposed_by = "trans_gmm_weight";
  port.transposed_axes = 1u << 1 | 1u << 2;
  return port;
}

// One row for every TOPK routed rows: a token and its choices.
constexpr bp_port mm_x_port() {
  bp_port port = grouped_optional(grouped_rows("mm_x", BP_ROW_INPUT, "M / TOPK, K2", "mmX"));
  port.reduction_group = "K2";
  return port;
}

constexpr bp_port mm_weight_port() {
  bp_port port = row_port("mm_weight", BP_WEIGHT, "K2, N2", BP_PER_RANK, kGroupedInputs, "mmWeight");
  port.row_axis = -1;
  port.reduction_axes = 1u << 0;
  port.reduction_group = "K2";
  port.flags = BP_PORT_OPTIONAL;
  port.transposed_by = "trans_mm_weight";
  port.transposed_axes = 1u << 0 | 1u << 1;
  return port;
}

constexpr bp_port grouped_row_scale(const char* name, const char* of, const char* shape, const char* group,
                                    const char* aliases) {
  bp_port port = scale_port(name, of, shape, BP_E8M0, aliases);
  port.row_axis = 0;
  port.distribution = BP_SHARDED;
  port.reduction_axes = 1u << 1 | 1u << 2;
  port.reduction_block = kMxBlock;
  port.reduction_group = group;
  return port;
}

constexpr bp_port gmm_weight_scale_port() {
  bp_port port = scale_port("gmm_weight_scale", "gmm_weight", "E, ceil_div(K, 64), N, 2", BP_E8M0, "gmmWeightScale");
  port.distribution = BP_SHARDED;
  port.reduction_axes = 1u << 1 | 1u << 3;
  port.reduction_block = kMxBlock;
  port.reduction_group = "K";
  port.transposed_by = "trans_gmm_weight";
  port.transposed_axes = 1u << 1 | 1u << 2;
  return port;
}

constexpr bp_port mm_weight_scale_port() {
  bp_port port = scale_port("mm_weight_scale", "mm_weight", "ceil_div(K2, 64), N2, 2", BP_E8M0, "mmWeightScale");
  port.distribution = BP_PER_RANK;
  port.reduction_axes = 1u << 0 | 1u << 2;
  port.reduction_block = kMxBlock;
  port.reduction_group = "K2";
  port.transposed_by = "trans_mm_weight";
  port.transposed_axes = 1u << 0 | 1u << 1;
  return port;
}

// ---- axes, attributes, dtypes ----

inline constexpr bp_axis_decl kGroupedAxes[] = {{"M", "routed rows of one rank"},
                                                {"K", "columns of gmm_x"},
                                                {"N", "columns of gmm_weight"},
                                                {"E", "experts of one rank"},
                                                {"TOPK", "routed rows of one row of mm_x"},
                                                {"K2", "columns of mm_x"},
                                                {"N2", "columns of mm_weight"}};

inline constexpr bp_attr_decl kGroupedAttrs[] = {
    {"routing", BP_ATTR_STRING, "balanced",
     "the rows' experts: balanced, skewed, all_to_one, random; or a list, -1 for a row that is not sent"},
    {"routing_seed", BP_ATTR_INT, "0", "seed of the routings skewed and random"},
    {"capacity", BP_ATTR_INT, "0", "rows that an expert takes, the first ones, from a routing by name; 0: all"},
    {"send_counts", BP_ATTR_STRING, "", "rows that a rank sends, by the other rank and expert: in place of routing"},
    {"recv_counts", BP_ATTR_STRING, "", "rows that a rank receives, by the other rank and expert"},
    {"trans_gmm_weight", BP_ATTR_BOOL, "false", "gmm_weight is stored as (E, N, K) and passed as a transposed view"},
    {"trans_mm_weight", BP_ATTR_BOOL, "false", "mm_weight is stored as (N2, K2) and passed as a transposed view"},
    {"strict_limits", BP_ATTR_BOOL, "false", "accept only what the documents of the operator accept"}};

inline constexpr const char* kGroupedIgnoredAttrs = "group, hcom, ep_world_size, world_size, comm_mode";

// Dtypes of a mode for `Ports` ports: those of x, y, the scales. Ports behind kGroupedPorts follow x.
template <std::size_t Ports>
constexpr std::array<bp_dtype, Ports> grouped_mode(bp_dtype x, bp_dtype y, bp_dtype scale) {
  std::array<bp_dtype, Ports> dtypes = {x, x, y, x, x, y, scale, scale, scale, scale};
  for (std::size_t port = kGroupedPorts; port < Ports; ++port) dtypes[port] = x;
  return dtypes;
}

// ---- implementations ----

inline constexpr GroupedPlan kGroupedChain = {};
inline constexpr GroupedPlan kGroupedWitness = {2, GroupedDefect::none};
inline constexpr GroupedPlan kTileFromLoad = {kGemmSegment, GroupedDefect::tile_from_load};
inline constexpr GroupedPlan kStartsAtRank = {kGemmSegment, GroupedDefect::k_starts_at_rank};
inline constexpr GroupedPlan kEdgeTile = {kGemmSegment, GroupedDefect::edge_tile};
inline constexpr GroupedPlan kPaddedRowLeak = {kGemmSegment, GroupedDefect::padded_row_leak};
inline constexpr GroupedPlan kSharedTile = {kGemmSegment, GroupedDefect::shared_tile};
inline constexpr GroupedPlan kExpertScale = {kGemmSegment, GroupedDefect::expert_scale};

inline constexpr const char* kGroupedWitnessId = "cpu-fp32fma-chain2";

constexpr bp_implementation grouped_control(const char* id, const char* defect, const GroupedPlan& plan,
                                            const char* witness = kGroupedWitnessId) {
  return {id, "a deliberately variant grouped product", defect, BP_MODE_INVARIANT, 0, witness, &plan};
}

inline constexpr bp_implementation kGroupedImplementations[] = {
    {"cpu-fp32fma-chain256", "one product per expert: FP32 FMA, segments of 256 along K merged in order", nullptr,
     BP_MODE_INVARIANT, 0, kGroupedWitnessId, &kGroupedChain},
    {"cpu-fast", "own rows at once, the others apart, segment lengths by row counts: not invariant", nullptr,
     BP_MODE_FAST, 0, kGroupedWitnessId, &kGroupedChain},
    {"cpu-unfused", "the composition that the operator replaces: the exchange, and a product per expert in fast order",
     nullptr, BP_MODE_FAST, BP_IMPL_PEER, kGroupedWitnessId, &kGroupedChain},
    grouped_control("control-tile-from-load",
                    "the K block follows from the rows of the expert: 512 up to 4 rows, 128 up to 16, then 32",
                    kTileFromLoad),
    grouped_control("control-k-starts-at-rank", "the K walk of a row begins at the slice of the rank it belongs to",
                    kStartsAtRank),
    grouped_control("control-edge-tile",
                    "rows in the last tile of 8 of a rank's buffer, where it is not full, take K blocks of 32",
                    kEdgeTile),
    grouped_control("control-padded-row-leak",
                    "a tile of 16 is filled up with the rows behind the expert's last one, and 0 * those joins it",
                    kPaddedRowLeak),
    grouped_control("control-shared-tile",
                    "the K block of the shared expert follows from its rows: 512 up to 4 rows, 128 up to 16, then 32",
                    kSharedTile),
    // Rescaling in another order would move bytes for two reasons: K is permuted instead.
    grouped_control("control-expert-scale", "an expert's rows are scaled by the largest magnitude among them",
                    kExpertScale, nullptr),
    {kGroupedWitnessId, "as chain256 with segments of 2", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr,
     &kGroupedWitness}};

inline constexpr std::int64_t kGroupedThresholds[] = {13};

inline const GroupedPlan& grouped_plan(const bp_implementation* implementation) {
  return *static_cast<const GroupedPlan*>(implementation->data);
}

// What an implementation promises; controls claim what the invariant one does: that is their lie.
std::uint32_t grouped_promises(const bp_implementation* implementation, const bp_device* device);

// ---- what follows from a problem ----

struct GroupedForm {
  const char* output;                       // the name of kGmmY
  const char* row_counts;                   // the attribute with what a row's rank counts by (owner, expert)
  const char* owner_counts;                 // the attribute with what an expert's rank counts by (rank, expert)
  std::int64_t most_experts;                // of one rank, as documented
  std::vector<std::uint32_t> with_rows;     // ports that lie with a row's own rank
  std::vector<std::uint32_t> with_experts;  // ports that lie with its expert
};

// Every constraint, as one sentence; empty: accepted.
std::string grouped_problem_error(const bp_problem* problem, const GroupedForm& form);

// The routing of a problem that was accepted.
Result<Routing> grouped_routing(const bp_problem* problem, const GroupedForm& form);

bp_status grouped_shapes(const bp_problem* problem, const GroupedForm& form, bp_tensor* tensors, char* error,
                         std::size_t error_size);
std::size_t grouped_locate(const bp_problem* problem, const GroupedForm& form, std::int64_t row, bp_location* places,
                           std::size_t capacity);

inline Scaling grouped_scaling(const bp_dtype* dtypes) {
  return dtypes[kGmmXScale] != BP_NONE || dtypes[kGmmWeightScale] != BP_NONE ? Scaling::mx : Scaling::none;
}

// The product of the shared expert, or nothing: mm_y = mm_x . mm_weight.
Result<void> shared_expert(const bp_context* context, const bp_tensor* tensors, const GroupedPlan& plan);
Result<void> shared_expert_reference(const bp_context* context, const bp_tensor* tensors);
// What shared_expert checks before it computes.
Result<void> check_shared_expert(const bp_context* context, const bp_tensor* tensors);

// Bytes of `rows` rows, rounded up so that what follows is aligned.
std::size_t grouped_buffer(std::int64_t rows, std::size_t line);

// Rows [0, count) of a (rows, columns) or (rows, pairs, 2) tensor as a buffer without gaps: its own memory where it has
// none, else a copy in `room`. Fails where the elements of a row are not contiguous.
Result<RowBuffer> contiguous_rows(const char* name, const bp_tensor& tensor, std::int64_t count, char* room);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_GROUPED_PORTS_H_
