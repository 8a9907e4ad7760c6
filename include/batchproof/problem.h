/* SPDX-License-Identifier: Apache-2.0
 *
 * Small helpers for reading a bp_problem and for reporting an error. Plain C99, header only. */
#ifndef BATCHPROOF_PROBLEM_H_
#define BATCHPROOF_PROBLEM_H_

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "batchproof/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Value of an axis; -1 where the problem has none of that name (extents are never negative). */
static inline int64_t bp_axis_value(const bp_problem* problem, const char* name) {
  for (uint32_t i = 0; i < problem->axis_count; ++i) {
    if (strcmp(problem->axes[i].name, name) == 0) return problem->axes[i].value;
  }
  return -1;
}

/* NOLINTBEGIN(modernize-use-nullptr): a header of C */
/* The attribute, or NULL. */
static inline const bp_attr* bp_find_attr(const bp_problem* problem, const char* name) {
  for (uint32_t i = 0; i < problem->attr_count; ++i) {
    if (strcmp(problem->attrs[i].name, name) == 0) return &problem->attrs[i];
  }
  return NULL;
}

/* A BOOL or INT attribute; 0 where absent. */
static inline int64_t bp_attr_int(const bp_problem* problem, const char* name) {
  const bp_attr* attr = bp_find_attr(problem, name);
  return attr != NULL ? attr->i : 0;
}

/* A STRING attribute; "" where absent. */
static inline const char* bp_attr_string(const bp_problem* problem, const char* name) {
  const bp_attr* attr = bp_find_attr(problem, name);
  return attr != NULL && attr->s != NULL ? attr->s : "";
}

/* Writes one sentence into `error` and returns `status`: `return bp_fail(error, size, BP_INVALID, "...", ...);` */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
static inline bp_status
bp_fail(char* error, size_t error_size, bp_status status, const char* format, ...) {
  if (error != NULL && error_size > 0) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, error_size, format, args);
    va_end(args);
  }
  return status;
}

/* Records what really ran (C7). */
static inline void bp_executed(const bp_context* context, const char* id) {
  if (context->executed != NULL && context->executed_size > 0) {
    snprintf(context->executed, context->executed_size, "%s", id);
  }
}
/* NOLINTEND(modernize-use-nullptr) */

#ifdef __cplusplus
}
#endif

#endif /* BATCHPROOF_PROBLEM_H_ */
