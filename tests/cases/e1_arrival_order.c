/* SPDX-License-Identifier: Apache-2.0
 *
 * E1 and E4, kind 7: threads that hold a part of K each add into the same output as they arrive. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>
#define CASE_NAME "e1_arrival_order"
#define CASE_DEFECT "parts of K are added in order of arrival"
#include "case.h"

enum { kParts = 8 };

typedef struct Shared {
  Problem p;
  int started; /* under the lock: 1 when all threads exist */
  pthread_cond_t start;
  pthread_mutex_t lock; /* stands for the atomic add: the sum is free of races, its order is not */
} Shared;

typedef struct Part {
  Shared* shared;
  int64_t number;
} Part;

/* Stands for a device's scheduler. A machine of few processors that is busy may run the threads one after the other,
 * and then they arrive in the same order every time; a wait that no call shares with another prevents that. */
static void wait_for_a_turn(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  const struct timespec turn = {0, (long)(*state >> 33) % 100000};
  nanosleep(&turn, NULL);
}

static void* add_part(void* argument) {
  const Part* part = (const Part*)argument;
  Shared* shared = part->shared;
  const Problem* p = &shared->p;
  const int64_t begin = part->number * p->k / kParts, end = (part->number + 1) * p->k / kParts;
  pthread_mutex_lock(&shared->lock);
  while (!shared->started) pthread_cond_wait(&shared->start, &shared->lock);
  pthread_mutex_unlock(&shared->lock);
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t state = (uint64_t)now.tv_nsec * kParts + (uint64_t)part->number;
  for (int64_t i = 0; i < p->m * p->n; ++i) {
    /* Each part begins at another output, as thread blocks do, so that arrivals interleave. */
    const int64_t at = (i + part->number * 5) % (p->m * p->n);
    const float sum = chain(p, at / p->n, at % p->n, begin, end);
    wait_for_a_turn(&state);
    pthread_mutex_lock(&shared->lock);
    p->y[at] += sum;
    pthread_mutex_unlock(&shared->lock);
  }
  return NULL;
}

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  Shared shared = {.p = problem_of(tensors), .start = PTHREAD_COND_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};
  Part parts[kParts];
  pthread_t threads[kParts];
  memset(shared.p.y, 0, sizeof(float) * (size_t)(shared.p.m * shared.p.n));
  int started = 0;
  for (; started < kParts; ++started) {
    parts[started].shared = &shared;
    parts[started].number = started;
    if (pthread_create(&threads[started], NULL, add_part, &parts[started]) != 0) break;
  }
  /* Together, or the first would be through before the last exists. */
  pthread_mutex_lock(&shared.lock);
  shared.started = 1;
  pthread_cond_broadcast(&shared.start);
  pthread_mutex_unlock(&shared.lock);
  for (int i = 0; i < started; ++i) pthread_join(threads[i], NULL);
  if (started != kParts) return bp_fail(context->error, context->error_size, BP_ENVIRONMENT, "no more threads");
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT
