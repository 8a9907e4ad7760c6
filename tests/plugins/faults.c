/* SPDX-License-Identifier: Apache-2.0
 *
 * A correct operator with one implementation per way to misbehave; the id says which. The STRING attribute `fault_in`
 * makes a function other than run crash: "validate", "infer_shapes", "locate" or "promises". */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gather_matmul.h"

#define INVARIANT(id, defect) {id, NULL, defect, BP_MODE_INVARIANT, 0, "descending", NULL}

static const bp_implementation kImplementations[] = {
    INVARIANT("good", NULL),
    {"descending", "K descending", NULL, BP_MODE_INVARIANT, BP_IMPL_WITNESS, NULL, NULL},
    INVARIANT("null", "writes to address 0"),
    INVARIANT("divide", "SIGFPE"),
    INVARIANT("abort", "says why on stderr and aborts"),
    INVARIANT("stack", "recurses without end"),
    INVARIANT("killed", "SIGKILL"),
    INVARIANT("exit", "exit(3)"),
    INVARIANT("quick-exit", "_exit(4)"),
    INVARIANT("hang", "never returns"),
    INVARIANT("after-output", "writes 1 byte behind y"),
    INVARIANT("before-output", "writes 1 byte before y"),
    INVARIANT("slack-output", "writes 300 bytes behind y"),
    INVARIANT("far-output", "writes 70000 bytes behind y"),
    INVARIANT("input", "changes x"),
    INVARIANT("before-input", "writes 4 bytes before w"),
    INVARIANT("after-workspace", "writes 1 byte behind the workspace"),
    INVARIANT("far-workspace", "writes 1000 bytes behind the workspace"),
    INVARIANT("rounding", "leaves rounding toward zero"),
    INVARIANT("handler", "leaves a handler for SIGUSR1"),
    INVARIANT("mask", "leaves SIGUSR2 blocked"),
    INVARIANT("prints", "prints a lot"),
    INVARIANT("closes", "closes every descriptor"),
    INVARIANT("scribbles", "writes to every descriptor"),
    INVARIANT("leaves-child", "ends while a child keeps its descriptors"),
    INVARIANT("fails", "returns an error"),
    INVARIANT("first-process", "returns errors in the first process that makes the file FAULTS_MARK"),
};

static int is(const bp_context* context, const char* id) { return strcmp(context->implementation->id, id) == 0; }

static void on_signal(int signal) { (void)signal; }

/* Volatile, so that no compiler sees what is done here. */
static volatile int g_zero = 0;
static int recurse(volatile char* from) {
  volatile char room[4096];
  if (g_zero != 0) return 0;
  room[0] = from[0];
  return recurse(room) + room[0];
}

static void misbehave(const bp_context* context, const bp_tensor* tensors) {
  volatile unsigned char* y = (volatile unsigned char*)tensors[2].data;
  const int64_t y_bytes = (tensors[2].shape[0] - 1) * tensors[2].stride[0] * 4 + tensors[2].shape[1] * 4;
  volatile unsigned char* workspace = (volatile unsigned char*)context->workspace;
  if (is(context, "null")) *(volatile int*)(intptr_t)g_zero = 1;
  if (is(context, "divide")) raise(SIGFPE);
  if (is(context, "abort")) {
    fputs("first line\nthe table of twiddle factors is empty\n", stderr);
    abort();
  }
  if (is(context, "stack")) {
    volatile char room = (char)g_zero;
    recurse(&room);
  }
  if (is(context, "killed")) kill(getpid(), SIGKILL);
  if (is(context, "exit")) exit(3);
  if (is(context, "quick-exit")) _exit(4);
  if (is(context, "hang")) {
    for (;;) pause();
  }
  if (is(context, "after-output")) y[y_bytes] ^= 1u;
  if (is(context, "before-output")) y[-1] ^= 1u;
  if (is(context, "slack-output")) y[y_bytes + 299] ^= 1u;
  if (is(context, "far-output")) y[y_bytes + 69999] = 1;
  if (is(context, "input")) ((volatile float*)tensors[0].data)[3] = 7.0f;
  if (is(context, "before-input")) ((volatile float*)tensors[1].data)[-1] = 7.0f;
  if (is(context, "after-workspace")) workspace[context->workspace_bytes] ^= 1u;
  if (is(context, "far-workspace")) workspace[context->workspace_bytes + 999] = 1;
  if (is(context, "rounding")) fesetround(FE_TOWARDZERO);
  if (is(context, "handler")) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    sigaction(SIGUSR1, &action, NULL);
  }
  if (is(context, "mask")) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
  }
  if (is(context, "prints")) {
    for (int i = 0; i < 20000; ++i) printf("line %d of a talkative operator\n", i);
  }
  if (is(context, "closes")) {
    for (int fd = 0; fd < 65536; ++fd) close(fd);
  }
  if (is(context, "scribbles")) {
    for (int fd = 3; fd < 4096; ++fd) {
      if (write(fd, "not a message, but long enough to be read as one", 48) < 0) continue;
    }
  }
  if (is(context, "leaves-child")) {
    if (fork() == 0) {
      sleep(30);
      _exit(0);
    }
    _exit(5);
  }
}

static int is_first_process(void) {
  static int is_first = -1;
  if (is_first < 0) {
    const int mark = open(getenv("FAULTS_MARK"), O_CREAT | O_EXCL | O_WRONLY, 0600);
    is_first = mark >= 0;
    if (mark >= 0) close(mark);
  }
  return is_first;
}

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (is(context, "fails"))
    return bp_fail(context->error, context->error_size, BP_INTERNAL, "no plan\nfor %d\x80 ranks", context->world);
  if (is(context, "first-process") && context->rank == 0 && is_first_process())
    return bp_fail(context->error, context->error_size, BP_INTERNAL, "no process ran before this one");
  const bp_status status = matmul_run(context, tensors);
  if (status != BP_OK) return status;
  misbehave(context, tensors);
  return BP_OK;
}

static void crash_if(const bp_problem* problem, const char* function) {
  if (strcmp(bp_attr_string(problem, "fault_in"), function) == 0) *(volatile int*)(intptr_t)g_zero = 1;
}

static bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  crash_if(problem, "validate");
  return matmul_validate(problem, error, error_size);
}

static uint32_t promises(const bp_implementation* implementation, const bp_problem* problem, const bp_device* device) {
  crash_if(problem, "promises");
  return matmul_promises(implementation, problem, device);
}

static bp_status infer_shapes(const bp_problem* problem, bp_tensor* tensors, char* error, size_t error_size) {
  (void)error;
  (void)error_size;
  crash_if(problem, "infer_shapes");
  const int64_t m = bp_axis_value(problem, "M"), k = bp_axis_value(problem, "K"), n = bp_axis_value(problem, "N");
  const int64_t shapes[3][2] = {{m, k}, {k, n}, {m * problem->world, n}};
  for (int port = 0; port < 3; ++port) {
    tensors[port].ndim = 2;
    tensors[port].shape[0] = shapes[port][0];
    tensors[port].shape[1] = shapes[port][1];
  }
  return BP_OK;
}

/* Row r: row r % M of x on rank r / M, row r of y on every rank. `fault_in` "places": a port that does not exist. */
static size_t locate(const bp_problem* problem, int64_t row, bp_location* places, size_t capacity) {
  crash_if(problem, "locate");
  const int64_t m = bp_axis_value(problem, "M");
  const size_t count = 1 + (size_t)problem->world;
  if (capacity >= 1) places[0] = (bp_location){0, (int32_t)(row / m), row % m};
  for (size_t i = 1; i < count && i < capacity; ++i) places[i] = (bp_location){2, (int32_t)i - 1, row};
  if (strcmp(bp_attr_string(problem, "fault_in"), "places") == 0) places[0].rank = problem->world;
  return count;
}

static const bp_attr_decl kAttrs[] = {{"fault_in", BP_ATTR_STRING, "", "the function that crashes"}};

static const bp_operator kTable = {MATMUL_TABLE("faults", BP_OP_THREAD_SAFE, kImplementations, run)};
static bp_operator g_table;
static const bp_operator* const kTables[] = {&g_table};

const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  (void)harness_abi_version;
  g_table = kTable;
  g_table.attr_count = 1;
  g_table.attrs = kAttrs;
  g_table.validate = validate;
  g_table.promises = promises;
  g_table.infer_shapes = infer_shapes;
  g_table.locate = locate;
  *count = 1;
  return kTables;
}
