/* weft/recovery.h: how a job continues after a rank has failed: a communicator of the survivors, and reducers
 * that continue over it. docs/how-to/recover.md has the sequence of calls. */
#ifndef WEFT_RECOVERY_H
#define WEFT_RECOVERY_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"
#include "reducer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Communicators ------------------------------------------------------------------------------------- */

/* Options of weft_comm_shrink. */
typedef struct weft_shrink_options {
  size_t struct_size;
  int64_t timeout_ms; /* default: the communicator's init timeout */
  uint64_t flags;     /* WEFT_SHRINK_* */
} weft_shrink_options;
/* One rank of a communicator of two may continue alone. If the other one lives it may do so as well: neither
 * can tell a dead peer from one that it cannot reach. */
#define WEFT_SHRINK_LAST_OF_TWO UINT64_C(1)
#define WEFT_SHRINK_OPTIONS_INIT {sizeof(weft_shrink_options), 0, 0}

/* Creates a communicator of the survivors of a failed one, with the same options; ranks keep their order.
 * Collective over the survivors: each calls it once its own communicator has failed (weft_comm_abort fails
 * one that still works). They agree on the members by a majority of the ranks of the last communicator;
 * ranks that are lost during the call are left out as well. The old communicator stays failed: destroy it
 * when it is no longer needed. Over shm, allocated memory (weft_comm_info.arena_bytes) is needed a second
 * time until every survivor has destroyed the old communicator and excluded ranks have ended.
 * options, error: may be NULL.
 * Returns: WEFT_ERR_STATE while the communicator works, or if it was shrunk already; WEFT_ERR_MINORITY;
 * WEFT_ERR_TIMEOUT naming survivors that did not call it; WEFT_ERR_PEER_FAILED if the others continued
 * without this rank; WEFT_ERR_NOMEM, before any memory is taken, if the machine has too little for all
 * ranks; otherwise as weft_comm_create. Errors name ranks of the old communicator.
 * Ownership: the caller destroys *survivors. Threads: one thread at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_comm_shrink(weft_comm* comm, const weft_shrink_options* options,
                                      weft_comm** survivors, weft_error* error);

/* ---- Reducers ------------------------------------------------------------------------------------------ */

/* Progress of the synchronised steps, which count from 0. A step is finished when all its results are in
 * this rank's gradients. It is committed when it is known that they are in every rank's gradients: when
 * finish has returned with WEFT_FINISH_COMMIT, or when a collective of the next step has completed. */
typedef struct weft_verdict {
  size_t struct_size;
  uint64_t last_finished_step;  /* WEFT_NO_STEP if none */
  uint64_t last_committed_step; /* WEFT_NO_STEP if none; equal on all ranks after a rebind */
  uint64_t next_step;           /* number of the next synchronised step, or of the open one */
  uint8_t can_retry;   /* 1: what this rank contributes to next_step is kept, for weft_reducer_retry */
  uint8_t rolled_back; /* 1: next_step was finished on this rank, but not on all */
  uint8_t reserved[6];
} weft_verdict;
#define WEFT_VERDICT_INIT {sizeof(weft_verdict), 0, 0, 0, 0, 0, {0}}

/* Returns the progress of the steps. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_verdict(weft_reducer* reducer, weft_verdict* verdict);

/* Moves a reducer to another communicator of the same context, usually that of weft_comm_shrink. Parameters,
 * buckets, views and the hook's state are kept. Collective over its ranks, each with the same reducer. The
 * ranks agree on the last committed step: the last that all of them have finished. If a rank finished a
 * later step its verdict says rolled_back: undo what its gradients were used for. Drops accumulated local
 * steps that were not retained. Needs scratch_bytes and other_bytes (weft_reducer_stats) a second time
 * during the call.
 * error: may be NULL.
 * Returns: WEFT_ERR_ARG for a communicator of another context; WEFT_ERR_STATE inside a step, or if a stage
 * of its hook or a weft_reducer_ready has not returned; the failure of its hook; WEFT_ERR_MISMATCH if the
 * ranks bring different reducers; the communicator's failure, after which the reducer can be moved to
 * another one. An error of one rank is an error on all, which names that rank and its reason; the
 * communicator stays usable, and all may call again.
 * Threads: one thread at a time per communicator; no other call on the reducer but weft_reducer_query may be
 * running. Since 0.9 */
WEFT_API weft_status weft_reducer_rebind(weft_reducer* reducer, weft_comm* comm, weft_error* error);

/* Repeats the step that failed without computing it again: sums what the ranks contributed, now over the
 * ranks of the communicator, and finishes. The other ranks call either this, or begin, ready and finish.
 * Needs WEFT_REDUCER_RETAIN, with which gradients may become ready after the communicator has failed, until
 * finish. In copy mode results go to the gradients of that step, which are in use until the retry returns.
 * options: as for weft_reducer_finish.
 * Returns: WEFT_ERR_STATE if nothing is kept (weft_verdict.can_retry): without RETAIN, or if not all
 * gradients had become ready; otherwise as weft_reducer_finish.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_retry(weft_reducer* reducer, const weft_finish_options* options);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_RECOVERY_H */
