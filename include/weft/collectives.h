/* weft/collectives.h: collectives with blocks of different sizes, sparse arrays, groups of calls, messages
 * with tags. What core.h says about all collectives holds here too, unless a section says otherwise. */
#ifndef WEFT_COLLECTIVES_H
#define WEFT_COLLECTIVES_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Blocks of different sizes
 * counts: number of elements of each rank's block; an array of `size` entries, which may be 0. All ranks give
 *   the same counts, also those that hold one block only: a difference is WEFT_ERR_MISMATCH on all of them
 *   before data moves.
 * offsets: the element at which each block begins in the buffer that holds all of them; NULL: one after the
 *   other. May differ between ranks. Blocks that are written must not overlap (WEFT_ERR_ARG).
 * Both arrays are read during the call. Since 0.9 */

/* Gathers counts[r] elements of every rank r on all ranks: src holds counts[rank] elements.
 * In place: src == dst + offsets[rank]. */
WEFT_API weft_status weft_all_gather_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                       const uint64_t* offsets, weft_dtype dtype,
                                       const weft_coll_options* options, weft_request** request);
/* Reduces src over all ranks; dst receives block `rank` of the result, counts[rank] elements.
 * In place: dst == src + offsets[rank]. Other blocks of src are intact. */
WEFT_API weft_status weft_reduce_scatter_v(weft_comm* comm, const void* src, void* dst,
                                           const uint64_t* counts, const uint64_t* offsets, weft_dtype dtype,
                                           weft_op op, const weft_coll_options* options,
                                           weft_request** request);
/* Gathers counts[r] elements of every rank r at root. offsets and dst are used at root only.
 * In place at root: src == dst + offsets[rank]. */
WEFT_API weft_status weft_gather_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                   const uint64_t* offsets, weft_dtype dtype, int32_t root,
                                   const weft_coll_options* options, weft_request** request);
/* Sends block r of root's src to rank r. offsets and src are used at root only.
 * In place at root: dst == src + offsets[rank]. */
WEFT_API weft_status weft_scatter_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                    const uint64_t* offsets, weft_dtype dtype, int32_t root,
                                    const weft_coll_options* options, weft_request** request);
/* Sends block r of src to rank r; block r of dst comes from rank r. Each rank has its own counts:
 * src_counts[b] of rank a equals dst_counts[a] of rank b. A difference is WEFT_ERR_MISMATCH on all ranks
 * before data moves, and names the pair. Not in place. */
WEFT_API weft_status weft_all_to_all_v(weft_comm* comm, const void* src, const uint64_t* src_counts,
                                       const uint64_t* src_offsets, void* dst, const uint64_t* dst_counts,
                                       const uint64_t* dst_offsets, weft_dtype dtype,
                                       const weft_coll_options* options, weft_request** request);

/* ---- Reductions of the program ------------------------------------------------------------------------- */

/* Combines two arrays: into[i] becomes the combination of into[i] and from[i], in this order, for each item.
 * count: elements, a multiple of weft_reduction.unit. Both arrays are aligned to the dtype.
 * Returns: WEFT_OK; any other value fails the communicator with WEFT_ERR_HOOK.
 * Threads: one call at a time per operation, on a thread that waits in Weft or the progress thread, perhaps
 * with the library's locks held: it computes and returns, calls nothing of Weft and does not wait. */
typedef weft_status (*weft_reduce_fn)(void* user_data, const void* from, void* into, uint64_t count,
                                      weft_dtype dtype);

/* The reduction of WEFT_OP_USER, for weft_all_reduce, weft_reduce and weft_reduce_scatter of host memory and
 * any dtype. The inputs are combined in the order of the ranks, from the left, so the function must be
 * associative up to rounding and need not be commutative. All ranks receive equal bits. Copied by the call;
 * function and user_data are used until the operation is complete. Since 0.9 */
typedef struct weft_reduction {
  size_t struct_size;
  weft_reduce_fn combine; /* the same on all ranks, which cannot be checked */
  void* user_data;        /* for combine */
  uint64_t unit; /* elements of an item, which are never separated (a struct of them); count is a multiple.
                    Equal on all ranks; default 1 */
} weft_reduction;
#define WEFT_REDUCTION_INIT {sizeof(weft_reduction), NULL, NULL, 0}

/* ---- Sparse arrays ------------------------------------------------------------------------------------- */

/* Entries of a sparse array (COO), a gradient for example. Duplicates are allowed and add up. */
typedef struct weft_sparse {
  size_t struct_size;
  uint64_t count;         /* entries */
  const int64_t* indices; /* sparse_ndim rows of count each: row d holds the indices in dimension d */
  const void* values;     /* count blocks of the dense dimensions' elements, row-major */
} weft_sparse;
#define WEFT_SPARSE_INIT {sizeof(weft_sparse), 0, NULL, NULL}

/* Sums sparse arrays of one shape over all ranks.
 * src: read during the call.
 * shape: ndim extents. The indices name the leading sparse_ndim dimensions; a value is a whole sub-array of
 * the others.
 * dtype: a float or an integer type that can be reduced.
 * op: WEFT_OP_SUM or WEFT_OP_AVG. shape, dtype and op are equal on all ranks (WEFT_ERR_MISMATCH).
 * result: filled when the operation is complete: sorted by index, each index once, equal bits on all ranks.
 * It holds the whole array, zeros included, where that takes less communication.
 * Returns: WEFT_ERR_ARG, also for indices outside the shape; otherwise as all collectives.
 * Ownership: the caller releases *result with weft_sparse_release. Since 0.9 */
WEFT_API weft_status weft_sparse_all_reduce(weft_comm* comm, const weft_sparse* src, const int64_t* shape,
                                            int32_t ndim, int32_t sparse_ndim, weft_dtype dtype, weft_op op,
                                            const weft_coll_options* options, weft_sparse* result,
                                            weft_request** request);
/* Frees the memory of a result of weft_sparse_all_reduce, which becomes empty; does nothing if it is empty.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_sparse_release(weft_sparse* result);

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* Opens a group: until weft_group_end, this thread's collectives, sends and receives on the communicator are
 * checked and queued, and weft_group_end launches them together, in the order of the calls. Sends and
 * receives of a pair may therefore come in any order, also on one stream of a device: the calls wait for
 * earlier work on the stream, not for each other. A call without a request returns WEFT_OK once queued.
 * Deadlines count from weft_group_end. A call that is refused is not part of the group. An abort or a
 * destroy completes queued calls.
 * Returns: WEFT_ERR_STATE if a group is open. Calls of other threads and weft_comm_split return
 * WEFT_ERR_STATE while a group is open.
 * Threads: one thread at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_group_begin(weft_comm* comm);
/* Launches the calls of the group.
 * request: NULL: the call blocks until all calls of the group are complete, and returns the first failure
 * among them (those with requests of their own included). Otherwise *request completes then, with that
 * result.
 * Returns: WEFT_ERR_STATE without weft_group_begin.
 * Threads: one thread at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_group_end(weft_comm* comm, weft_request** request);

/* ---- Tagged messages -----------------------------------------------------------------------------------
 * Messages with a number, the tag. They match only each other, not weft_send and weft_recv. A receive names a
 * source and a tag, or accepts any. It takes the first message that fits, in the order in which its source
 * sent them. Messages with different tags do not wait for each other. A rank may send to itself. They are not
 * part of groups: calls between weft_group_begin and weft_group_end start at once.
 *
 * A message of up to 16 KiB is copied, and its send completes at once, whatever the receiver does. It leaves
 * while this rank is in calls, or at any time with WEFT_PROGRESS_THREAD. A longer message waits for its
 * receive. So may a shorter one that makes more than 128 KiB of messages to that rank (64 bytes for each
 * beside its data) which were not received; up to 256 KiB may be copied. After 4096 messages that wait, sends
 * to that rank wait for one of them.
 *
 * A deadline (WEFT_ERR_TIMEOUT), WEFT_ERR_MISMATCH, WEFT_ERR_INTERRUPTED and a rank that has left
 * (WEFT_ERR_PEER_FAILED) fail only the request, not the communicator; the exception is data that is being
 * moved and does not arrive within another second. The other rank continues: a message that its sender gave
 * up matches no receive, or fails its receive with WEFT_ERR_CANCELLED if a part of it had arrived. A send
 * whose receive gave up completes. A send that completed before its receiver left may never be received.
 * Messages whose sends are complete can be received after their sender has left (see weft_comm_destroy).
 *
 * options: as for all collectives; a stream of a device is WEFT_ERR_UNSUPPORTED.
 * Threads: any thread. The messages of one thread keep their order. Since 0.9 */
#define WEFT_ANY_SOURCE INT32_C(-1) /* peer of a receive: any rank, also the caller's */
#define WEFT_ANY_TAG UINT64_MAX     /* tag of a receive: any tag */

/* The message that a receive has taken. Filled before the request completes, also with WEFT_ERR_MISMATCH. */
typedef struct weft_message {
  size_t struct_size;
  int32_t source;    /* the sender's rank */
  uint32_t reserved; /* 0 */
  uint64_t tag;      /* the message's */
  uint64_t count;    /* elements that the sender sent */
} weft_message;
#define WEFT_MESSAGE_INIT {sizeof(weft_message), 0, 0, 0, 0}

/* Sends count elements to a rank. tag: 0 to UINT64_MAX - 1.
 * Returns: as weft_send; WEFT_ERR_MISMATCH if the send was still waiting when a receive that does not fit
 * took its message. */
WEFT_API weft_status weft_send_tagged(weft_comm* comm, const void* src, uint64_t count, weft_dtype dtype,
                                      int32_t peer, uint64_t tag, const weft_coll_options* options,
                                      weft_request** request);
/* Receives at most count elements.
 * peer: a rank or WEFT_ANY_SOURCE. tag: a tag or WEFT_ANY_TAG.
 * message: filled with what was received; may be NULL. Belongs to the library until the request completes.
 * Returns: as weft_recv; WEFT_ERR_MISMATCH if the message has another dtype or more than count elements,
 * which is then lost. */
WEFT_API weft_status weft_recv_tagged(weft_comm* comm, void* dst, uint64_t count, weft_dtype dtype,
                                      int32_t peer, uint64_t tag, weft_message* message,
                                      const weft_coll_options* options, weft_request** request);
/* Cancels a tagged send or receive: if the other rank has not matched it, the request completes with
 * WEFT_ERR_CANCELLED. Otherwise, also if it is complete, nothing happens.
 * Returns: WEFT_ERR_UNSUPPORTED for requests of other calls; WEFT_ERR_STATE from a callback.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_cancel(weft_request* request);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_COLLECTIVES_H */
