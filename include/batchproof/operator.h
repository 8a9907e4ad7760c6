/* SPDX-License-Identifier: Apache-2.0
 *
 * The operator table: the one interface between batchproof and an operator. Plain C99, used alike by the built-in
 * operators, by a user's shared library and by Python; the built-ins have no other door.
 *
 * An operator describes its tensors ("ports") and gives functions. The harness builds inputs from the description,
 * calls `run` on every rank, and compares output rows byte by byte. A table that leaves an optional function NULL
 * gets the behaviour that its ports describe.
 *
 * Strings and arrays belong to the table and live as long as the library does. No exception may cross this interface.
 * Every struct that the harness passes begins with its size, so that a newer harness can serve an older operator.
 */
#ifndef BATCHPROOF_OPERATOR_H_
#define BATCHPROOF_OPERATOR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_ABI_VERSION 1u
#define BP_MAX_DIMS 6

/* ---- status ------------------------------------------------------------------------------------------------- */

typedef int32_t bp_status;
enum {
  BP_OK = 0,
  BP_INVALID = 1,     /* the problem or a tensor is outside what the operator accepts; nothing was computed */
  BP_REFUSED = 2,     /* invariant mode would have reached an implementation not promised invariant */
  BP_ENVIRONMENT = 3, /* a device or library that was asked for is missing */
  BP_COMM = 4,        /* another rank failed or was lost */
  BP_INTERNAL = 5     /* the operator found itself inconsistent */
};

/* ---- dtypes ------------------------------------------------------------------------------------------------- */

typedef int32_t bp_dtype;
enum {
  BP_NONE = 0, /* an optional port that is absent */
  BP_FP64 = 1,
  BP_FP32 = 2,
  BP_BF16 = 3,
  BP_FP16 = 4,
  BP_E4M3 = 5, /* OCP FP8 E4M3: no infinity, NaN = S.1111.111 */
  BP_E5M2 = 6, /* OCP FP8 E5M2 */
  BP_E8M0 = 7, /* OCP MX scale: 2^(v-127), 255 = NaN */
  BP_INT8 = 8,
  BP_INT32 = 9,
  BP_INT64 = 10,
  BP_UINT8 = 11,
  BP_INT4 = 12, /* two per byte, low nibble first, along the last axis */
  BP_E2M1 = 13  /* OCP FP4, packed like BP_INT4 */
};
#define BP_DTYPE_BIT(dtype) (1u << (unsigned)(dtype))

/* ---- relations: what may change while the bytes of a row may not (docs/relations.md) -------------------------- */

enum {
  BP_REPEAT = 1u << 0,
  BP_NEIGHBOURS = 1u << 1,
  BP_BATCH_SIZE = 1u << 2,
  BP_POSITION = 1u << 3,
  BP_CROSS_RANK = 1u << 4,
  BP_WORLD_SIZE = 1u << 5,
  BP_COMM_MODE = 1u << 6,
  BP_POISON = 1u << 7,
  BP_ROUTING = 1u << 8,
  BP_ALIGNMENT = 1u << 9,
  BP_THREADS = 1u << 10,
  BP_PROCESSORS = 1u << 11,
  BP_HISTORY = 1u << 12,
  BP_STREAM = 1u << 13,
  BP_GRAPH = 1u << 14
};

/* ---- a problem: one point of the operator's axes, with attributes and dtypes ---------------------------------- */

typedef struct bp_axis {
  const char* name;
  int64_t value;
} bp_axis;

typedef int32_t bp_attr_type;
enum { BP_ATTR_BOOL = 1, BP_ATTR_INT = 2, BP_ATTR_FLOAT = 3, BP_ATTR_STRING = 4 };

typedef struct bp_attr {
  const char* name;
  bp_attr_type type;
  int64_t i; /* BOOL (0 or 1) and INT */
  double f;  /* FLOAT */
  const char* s;
} bp_attr;

typedef struct bp_problem {
  uint32_t struct_size;
  int32_t world; /* number of ranks */
  uint32_t axis_count;
  const bp_axis* axes;
  uint32_t attr_count;
  const bp_attr* attrs;   /* every declared attribute is present, with its default where the user gave none */
  const bp_dtype* dtypes; /* one per port; BP_NONE: absent */
} bp_problem;

/* ---- tensors ------------------------------------------------------------------------------------------------- */

typedef int32_t bp_memory;
enum { BP_MEMORY_HOST = 0, BP_MEMORY_CUDA = 1, BP_MEMORY_OPAQUE = 2 };

typedef struct bp_tensor {
  void* data;     /* may be NULL where the port is absent or an extent is zero */
  bp_dtype dtype; /* BP_NONE: the port is absent */
  bp_memory memory;
  int32_t ndim;
  int64_t shape[BP_MAX_DIMS];  /* per rank */
  int64_t stride[BP_MAX_DIMS]; /* in elements; a transposed view is a permutation of the strides */
} bp_tensor;

/* ---- ports --------------------------------------------------------------------------------------------------- */

typedef int32_t bp_port_kind;
enum {
  BP_ROW_INPUT = 1, /* carries rows: each row belongs to one logical row's identity */
  BP_WEIGHT = 2,    /* shared by all rows */
  BP_SCALE = 3,     /* scales of the port `scale_of`; carries rows iff row_axis >= 0 */
  BP_OUTPUT = 4
};

typedef int32_t bp_distribution;
enum {
  BP_REPLICATED = 0, /* the same content on every rank */
  BP_PER_RANK = 1,   /* each rank has its own; cross_rank makes them equal */
  BP_SHARDED = 2     /* rank r holds slice r of axis `sharded_axis` */
};

enum {
  BP_PORT_OPTIONAL = 1u << 0,
  BP_PORT_PADDED = 1u << 1 /* the operator accepts a leading dimension larger than the row */
};

/* Several ports of a table may have one name: alternative forms of the same tensor (scales per tensor, per token, per
 * block). Then all are optional and every dtype mode has at most one of them. */
typedef struct bp_port {
  const char* name;
  bp_port_kind kind;
  const char* shape;           /* per rank, over the axes, W and + - * / ceil_div(a,b): "M, ceil_div(K, 64), 2" */
  int32_t row_axis;            /* the axis that counts rows; -1: none */
  uint32_t reduction_axes;     /* bit a set: axis a runs along the reduction; several bits flatten in axis order */
  int32_t reduction_block;     /* how many reduction indices one entry covers: 1, or 32 / 128 for block scales */
  const char* reduction_group; /* ports of one group are permuted together; NULL: none */
  const char* scale_of;        /* SCALE: the port it scales */
  bp_distribution distribution;
  int32_t sharded_axis;
  uint32_t dtypes; /* BP_DTYPE_BIT mask of what may be stored */
  /* OUTPUT: stored dtypes for which no order of summation can move bytes. ROW_INPUT, WEIGHT: dtypes with which that
   * holds for every output (integers that accumulate exactly). */
  uint32_t order_exact_dtypes;
  uint32_t flags;
  const char* transposed_by; /* BOOL attribute: when true the two axes of transposed_axes swap in storage (strides) */
  uint32_t transposed_axes;  /* bit mask of exactly two axes; 0 where transposed_by is NULL */
  const char* aliases;       /* comma list of other names that case files use for this port */
  int32_t row_block;         /* SCALE: rows that one entry along row_axis covers; 0 and 1: one */
} bp_port;

typedef struct bp_axis_decl {
  const char* name;
  const char* summary;
} bp_axis_decl;

/* A STRING attribute named `routing` says which experts the rows choose: a comma list with the expert of logical row 0,
 * 1, ..., counted over all ranks, -1 for a row that meets none. The harness writes such a list, so that an expert stays
 * with its row wherever the row is; any other text is the operator's own way of routing, which it shows in `locate`. */
typedef struct bp_attr_decl {
  const char* name;
  bp_attr_type type;
  const char* default_value; /* as text: "true", "0", "1e-6", "aiv" */
  const char* summary;
} bp_attr_decl;

typedef struct bp_dtype_mode {
  const char* name;       /* value of the `dtype` axis: "bf16", "mxfp8" */
  const bp_dtype* dtypes; /* one per port, for ports that are present; BP_NONE: this mode cannot have the port */
} bp_dtype_mode;

/* ---- implementations ------------------------------------------------------------------------------------------ */

typedef int32_t bp_mode;
enum { BP_MODE_INVARIANT = 0, BP_MODE_FAST = 1 };

typedef int32_t bp_comm_mode;
enum { BP_COMM_OFF = 0, BP_COMM_ON = 1, BP_COMM_STRICT = 2 };

enum {
  BP_IMPL_WITNESS = 1u << 0, /* exists only as another order of summation; not listed, not selected */
  BP_IMPL_PEER = 1u << 1,    /* the unfused composition that users would write instead: the second result and the
                                yardstick of the standards acc, perf and mem; runs by its id, never as a default */
  /* Runs on a CUDA device (--device cuda): tensors and workspace are memory of the current device (BP_MEMORY_CUDA),
   * made and filled by the harness; the context's stream is a cudaStream_t, and run enqueues on it without waiting.
   * Without this flag an implementation runs on the host, or on memory of the table's own `alloc`. Built-in operators
   * only; a plug-in brings its own memory. */
  BP_IMPL_CUDA = 1u << 2
};

typedef struct bp_implementation {
  const char* id;      /* backend, arithmetic recipe, schedule: "cpu-fp32fma-chain256" */
  const char* summary; /* one sentence */
  const char* defect;  /* NULL, or what is wrong with this deliberately variant control */
  bp_mode mode;        /* the mode under which it may be selected; the first of a mode is that mode's default */
  uint32_t flags;
  const char* order_witness; /* id of the same arithmetic in another order; NULL: the reduction axis is permuted */
  const void* data;          /* the operator's own */
} bp_implementation;

/* ---- communication -------------------------------------------------------------------------------------------- */

typedef int32_t bp_reduce_order;
enum {
  BP_REDUCE_RANK_ORDER = 0, /* acc = 0; acc += value of rank q, q ascending, in FP32; one rounding at the end */
  BP_REDUCE_TREE = 1        /* balanced binary tree over the ranks, FP32; world must be a power of two */
};

/* Every function is collective: all ranks call it with matching arguments. Sizes are in bytes unless said.
 * `stream` is the device stream that orders the work, NULL on the host. A status other than BP_OK means that the
 * operation did not happen on this rank and that the operator should return it. */
typedef struct bp_comm {
  uint32_t struct_size;
  int32_t rank;
  int32_t world;
  void* handle; /* the backend's own communicator (ncclComm_t, MPI_Comm *); NULL for threads */
  void* self;
  bp_status (*barrier)(const struct bp_comm*, void* stream);
  bp_status (*all_gather)(const struct bp_comm*, const void* send, void* recv, size_t bytes_per_rank, void* stream);
  /* count: elements that each rank receives */
  bp_status (*reduce_scatter)(const struct bp_comm*, const void* send, void* recv, size_t count, bp_dtype dtype,
                              bp_reduce_order order, void* stream);
  bp_status (*all_reduce)(const struct bp_comm*, const void* send, void* recv, size_t count, bp_dtype dtype,
                          bp_reduce_order order, void* stream);
  bp_status (*all_to_all)(const struct bp_comm*, const void* send, void* recv, size_t bytes_per_peer, void* stream);
  /* arrays of `world` entries */
  bp_status (*all_to_all_v)(const struct bp_comm*, const void* send, const size_t* send_bytes,
                            const size_t* send_offsets, void* recv, const size_t* recv_bytes,
                            const size_t* recv_offsets, void* stream);
} bp_comm;

/* ---- one call on one rank -------------------------------------------------------------------------------------- */

typedef struct bp_context {
  uint32_t struct_size;
  int32_t rank;
  int32_t world;
  int32_t threads;    /* CPU threads this rank may use, >= 1; must not change bytes */
  int32_t processors; /* streaming multiprocessors it may use, 0 = all; must not change bytes */
  bp_mode mode;
  bp_comm_mode comm_mode;
  const bp_problem* problem;
  const bp_implementation* implementation;
  const bp_comm* comm; /* never NULL */
  void* stream;
  void* workspace; /* workspace_size bytes, content unspecified */
  size_t workspace_bytes;
  char* executed; /* write here the id of what really ran (C7) */
  size_t executed_size;
  char* error; /* on failure: one sentence */
  size_t error_size;
} bp_context;

/* Where a logical output row, or the input rows that belong to it, lives. */
typedef struct bp_location {
  uint32_t port;
  int32_t rank;
  int64_t index; /* along the port's row axis */
} bp_location;

typedef struct bp_device {
  uint32_t struct_size;
  bp_memory memory;
  int32_t ordinal;
  int32_t processors;
  const char* name;
} bp_device;

enum {
  BP_OP_THREAD_SAFE = 1u << 0, /* ranks may run as threads of one process */
  BP_OP_GRAPH_SAFE = 1u << 1   /* a call may be captured into a device graph */
};

typedef struct bp_operator {
  uint32_t abi_version; /* BP_ABI_VERSION */
  uint32_t struct_size; /* sizeof(bp_operator) */
  const char* name;
  const char* summary;
  const char* rows;           /* number of logical output rows over all ranks, as an expression: "W * M" */
  const char* row_count_axis; /* the axis that batch_size varies: "M" */
  const char* aliases;        /* comma list of names that case files use: "AllGatherMatmul, AllGatherMatmulV2" */
  const char* ignored_attrs;  /* comma list of attributes that case files carry and that have no meaning here */
  uint32_t flags;
  uint32_t port_count;
  const bp_port* ports;
  uint32_t axis_count;
  const bp_axis_decl* axes;
  uint32_t attr_count;
  const bp_attr_decl* attrs;
  uint32_t dtype_mode_count;
  const bp_dtype_mode* dtype_modes;
  uint32_t implementation_count;
  const bp_implementation* implementations;
  uint32_t threshold_count; /* row counts at which the operator changes tiles, grid or path */
  const int64_t* thresholds;

  /* BP_OK, or BP_INVALID with one sentence in error: every constraint of the operator. */
  bp_status (*validate)(const bp_problem*, char* error, size_t error_size);
  /* Bytes of workspace that `run` needs on this rank. NULL: none. */
  size_t (*workspace_size)(const bp_implementation*, const bp_problem*, int32_t rank);
  /* Compute. `tensors` has one entry per port. Called on every rank at once. */
  bp_status (*run)(const bp_context*, const bp_tensor* tensors);
  /* As run, in FP64: outputs are BP_FP64 tensors. NULL: no accuracy check. */
  bp_status (*reference)(const bp_context*, const bp_tensor* tensors);
  /* Relations that the implementation promises for this problem on this device: a mask of BP_REPEAT, ... */
  uint32_t (*promises)(const bp_implementation*, const bp_problem*, const bp_device*);
  /* Optional; NULL: the ports' shapes as written. Fills ndim and shape of every port. */
  bp_status (*infer_shapes)(const bp_problem*, bp_tensor* tensors, char* error, size_t error_size);
  /* Optional; NULL: from the ports' row axis and distribution. All places of logical row `row`; returns how many there
   * are, writes at most `capacity`. A row need not be in every port. A place in a weight that is sharded along its
   * first axis says which slice the row meets: its expert. */
  size_t (*locate)(const bp_problem*, int64_t row, bp_location*, size_t capacity);
  /* Optional memory of the operator's own; all four or none. Sizes in bytes; copy directions: 0 to device, 1 to host.
   */
  void* (*alloc)(size_t bytes, int32_t rank);
  void (*release)(void*, int32_t rank);
  bp_status (*copy)(void* to, const void* from, size_t bytes, int32_t direction, int32_t rank);
  bp_status (*synchronise)(int32_t rank);
} bp_operator;

/* A shared library exports this one function: it returns its tables and their number. */
typedef const bp_operator* const* (*bp_operators_function)(uint32_t harness_abi_version, uint32_t* count);
#define BP_OPERATORS_SYMBOL "batchproof_operators"

#ifdef __cplusplus
}
#endif

#endif /* BATCHPROOF_OPERATOR_H_ */
