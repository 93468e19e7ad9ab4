/* weft/averager.h: averaging of parameters' values every few steps: the second half of local SGD. */
#ifndef WEFT_AVERAGER_H
#define WEFT_AVERAGER_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"
#include "reducer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_averager weft_averager; /* averages parameters' values; one thread at a time */

/* A period and the ranks that average then. */
typedef struct weft_average_level {
  size_t struct_size;
  uint64_t period; /* steps between averages, at least 1 */
  weft_comm* comm; /* ranks that average, of the same context; default: weft_averager_create's */
} weft_average_level;
#define WEFT_AVERAGE_LEVEL_INIT {sizeof(weft_average_level), 0, NULL}

/* Options of weft_averager_create. */
typedef struct weft_averager_options {
  size_t struct_size;
  const weft_param* params; /* whose values (weft_param.parameter) are averaged in place; entries without a
                               gradient (WEFT_PARAM_BUFFER, for example) are left alone */
  uint64_t param_count;     /* at least 1 */
  uint64_t param_size;      /* sizeof(weft_param); default: params[0].struct_size */
  const weft_average_level* levels; /* periods ascend; the largest that divides the step is used: {4, the
                                       ranks of a host}, {16, all ranks} */
  uint64_t level_count;             /* at least 1 */
  uint64_t level_size;              /* sizeof(weft_average_level); default: levels[0].struct_size */
  uint64_t warmup;                  /* steps without averaging; the step after them averages. Default 0 */
  uint64_t first_step;              /* number of the first step, to resume a training. Default 0 */
  uint64_t chunk_bytes;             /* small values share messages of this size; default 25 MiB */
  int64_t timeout_ms;               /* of an average; default: the communicator's op_timeout_ms */
} weft_averager_options;
#define WEFT_AVERAGER_OPTIONS_INIT {sizeof(weft_averager_options), NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0}

/* Creates an averager. Collective over comm: the ranks compare parameters, periods and steps.
 * error: may be NULL.
 * Returns: WEFT_ERR_MISMATCH on every rank if they differ, naming the difference; WEFT_ERR_ARG for wrong
 * arguments of this rank (WEFT_ERR_MISMATCH on the others).
 * Ownership: the caller destroys *averager, which keeps the internals of its communicators alive; the values
 * are in use until then.
 * Threads: one thread at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_averager_create(weft_comm* comm, const weft_averager_options* options,
                                          weft_averager** averager, weft_error* error);

/* Counts an optimizer step, and averages if it is time to: step s averages over the last level whose period
 * divides s - warmup, if s >= warmup. Every rank calls it after every step. Blocks while it averages, in the
 * communicators' order of operations.
 * period: NULL, or receives the period of that level; 0: nothing was averaged. error: may be NULL.
 * Returns: the communicator's failure; some values may then be averaged, and the step does not count.
 * Threads: one thread at a time per averager and per communicator. Since 0.9 */
WEFT_API weft_status weft_averager_step(weft_averager* averager, uint64_t* period, weft_error* error);

/* Destroys an averager. Threads: one thread at a time. Since 0.9 */
WEFT_API weft_status weft_averager_destroy(weft_averager** averager);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_AVERAGER_H */
