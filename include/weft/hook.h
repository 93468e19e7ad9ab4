/* weft/hook.h: communication hooks: how a reducer communicates a bucket of gradients. Built-in hooks are made
 * by name, hooks of the program from a table of functions. docs/reference/hooks.md
 * and docs/how-to/write-a-hook.md explain them. */
#ifndef WEFT_HOOK_H
#define WEFT_HOOK_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_hook weft_hook; /* communicates buckets; one thread at a time */

/* ---- Buckets, as a hook sees them: made by the library, valid during the call -------------------------- */

/* A parameter of a bucket. */
typedef struct weft_bucket_param {
  size_t struct_size;
  uint64_t index;         /* in the reducer's list */
  const char* name;       /* as in weft_param */
  weft_dtype dtype;       /* of the gradient in the bucket, as it is communicated. Complex gradients are
                             pairs in an additional last dimension */
  int32_t ndim;           /* dimensions */
  const int64_t* shape;   /* ndim entries */
  const int64_t* strides; /* in elements, ndim entries */
  uint64_t offset;        /* first element in the bucket */
  uint64_t count;         /* elements */
  void* parameter;        /* weft_param.parameter */
} weft_bucket_param;

/* Entries of a sparse gradient, for hooks with WEFT_HOOK_SPARSE. An entry is a row with its values. The
 * number of a row is its indices in row-major order. */
typedef struct weft_bucket_entries {
  size_t struct_size;
  uint64_t row_count;    /* rows of the gradient */
  uint64_t row_elements; /* values of a row, of the bucket's dtype */
  uint64_t count;        /* entries; 0 in plan */
  int64_t* rows;         /* ascending, each once; NULL in plan */
  void* values;          /* count * row_elements; NULL in plan */
} weft_bucket_entries;

/* A bucket of gradients. buffer and scratch are valid during the step, all else during the call. */
typedef struct weft_bucket {
  size_t struct_size;
  uint32_t index;        /* of the bucket in the plan: 0 .. bucket_count - 1 */
  uint32_t bucket_count; /* the plan's buckets */
  uint8_t is_last;       /* 1: the last bucket that hooks see in a step */
  uint8_t reserved[3];
  weft_dtype dtype;                /* of the values in buffer */
  uint64_t count;                  /* elements in buffer */
  uint64_t step;                   /* synchronised steps before this one */
  double divisor;                  /* divisor of WEFT_OP_AVG in this step */
  int32_t rank;                    /* this rank, 0 .. size - 1 */
  int32_t size;                    /* world size */
  void* buffer;                    /* NULL in plan */
  void* scratch;                   /* scratch_bytes as planned; NULL in plan */
  uint64_t scratch_bytes;          /* as planned */
  uint64_t param_count;            /* entries of params */
  uint64_t param_size;             /* sizeof(weft_bucket_param) as the library knows it */
  const weft_bucket_param* params; /* in the bucket's order */
  weft_bucket_entries* entries;    /* of a sparse gradient, which has neither buffer nor count; else NULL */
  const uint64_t* shares;          /* of a sharded reducer, size + 1 entries: the hook leaves this rank the
                                      results of elements shares[rank] to shares[rank + 1] - 1 of buffer,
                                      others are undefined. NULL: the results of all elements */
} weft_bucket;

/* ---- Plan of a hook ------------------------------------------------------------------------------------ */

/* Memory that a collective of a hook reads or writes. */
typedef int32_t weft_space;
#define WEFT_SPACE_BUCKET 0  /* the bucket's buffer */
#define WEFT_SPACE_SCRATCH 1 /* the hook's scratch for this bucket */

/* count is the largest count; the stage before sets weft_stage.dynamic_count to what this rank needs, 0 to
 * count. The largest of all ranks' counts is the collective's; if it is 0 the collective does not take
 * place. Blocks of ranks lie at multiples of that count; elements beyond a rank's own count are sent as they
 * are in memory. Not with OPTIONAL; not in place in ALL_GATHER and REDUCE_SCATTER. */
#define WEFT_HOOK_COLLECTIVE_DYNAMIC UINT64_C(1)
/* The collective runs in some steps only: the stage before sets dynamic_count to count or, to leave it out,
 * to 0, equal on all ranks. */
#define WEFT_HOOK_COLLECTIVE_OPTIONAL UINT64_C(2)
/* The collective runs over the reducer's communicator, although the hook has its own. */
#define WEFT_HOOK_COLLECTIVE_WORLD UINT64_C(4)

/* A collective that a hook declares. Stage k runs before collective k, stage n after the last. Lies in an
 * array without element size: it never grows beyond its reserved fields. */
typedef struct weft_hook_collective {
  weft_coll coll;            /* ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL or BROADCAST */
  weft_dtype dtype;          /* of its elements */
  weft_op op;                /* for reductions */
  int32_t root;              /* for BROADCAST */
  uint64_t count;            /* as in the collective's call */
  weft_space src_space;      /* where its input is */
  weft_space dst_space;      /* where its result is */
  uint64_t src_offset_bytes; /* multiple of the dtype's size */
  uint64_t dst_offset_bytes; /* multiple of the dtype's size */
  uint64_t flags;            /* WEFT_HOOK_COLLECTIVE_* */
  uint64_t reserved[4];      /* 0 */
} weft_hook_collective;

#define WEFT_HOOK_COLLECTIVES 8 /* the most collectives of a bucket */

/* Plan of one bucket; filled by the hook's plan function. */
typedef struct weft_hook_plan {
  size_t struct_size;
  uint64_t scratch_bytes;       /* for this bucket; 64-byte aligned, zeroed once */
  weft_space result_space;      /* where the result is after the last stage; default WEFT_SPACE_BUCKET */
  uint32_t collective_count;    /* at most WEFT_HOOK_COLLECTIVES */
  uint64_t result_offset_bytes; /* of the result in its space */
  weft_hook_collective collectives[WEFT_HOOK_COLLECTIVES]; /* in order; stages run around them */
} weft_hook_plan;

/* ---- Stages -------------------------------------------------------------------------------------------- */

/* Identifies a stage that completes later, for weft_hook_stage_complete. */
typedef struct weft_stage_token {
  uint64_t bucket;     /* the bucket's index */
  uint64_t stage;      /* the stage's index */
  uint64_t generation; /* a completion of an older generation does nothing */
} weft_stage_token;

/* A stage that runs. */
typedef struct weft_stage {
  size_t struct_size;
  uint32_t index;  /* 0 .. collective_count */
  uint8_t pending; /* out: 1: the stage completes later */
  uint8_t reserved[3];
  uint64_t dynamic_count; /* out: the count of the DYNAMIC or OPTIONAL collective that follows */
  weft_stage_token token; /* for weft_hook_stage_complete */
  const uint64_t* counts; /* after a DYNAMIC collective: each rank's count, size entries; else NULL */
  uint64_t moved_count;   /* the largest of counts; 0: the collective did not take place */
} weft_stage;

/* ---- Custom hooks -------------------------------------------------------------------------------------- */

/* The hook also sees sparse gradients (weft_bucket.entries). For such a bucket it plans either nothing
 * (every rank keeps its own entries) or one ALL_REDUCE with SUM or AVG, of the bucket's dtype and with
 * nothing else set. Stage 0 may change values and remove entries (move the others to the front and lower
 * count); stage 1 sees the sums, equal on all ranks, and may change values. These stages cannot complete
 * later. Without the flag sparse gradients are averaged without the hook. */
#define WEFT_HOOK_SPARSE UINT64_C(1)
/* The hook obeys weft_bucket.shares, so it may be used with WEFT_REDUCER_SHARDED (without OWN_WHOLE). */
#define WEFT_HOOK_SHARES UINT64_C(2)

/* Functions of a custom hook. plan and stage are required, the others may be NULL. Calls of one hook never
 * overlap, also where reducers share it. stage and join run on the thread weft-worker of the context, in
 * WEFT_PROGRESS_CALLER inside Weft calls; the others run inside the program's calls. Convention 10 applies.
 * A stage that has not returned or been completed by the step's deadline fails the step on every rank, and
 * the error names it; its thread keeps bucket, scratch and hook until it returns
 * (docs/how-to/write-a-hook.md). A result other than WEFT_OK fails the step on every rank, with the text in
 * message: at most 256 bytes, zero-terminated. */
typedef struct weft_hook_table {
  size_t struct_size;
  const char* name; /* equal on all ranks; copied */
  /* Declares scratch memory and collectives of a bucket. */
  weft_status (*plan)(void* user_data, const weft_bucket* bucket, weft_hook_plan* plan, char* message);
  /* Computes between two collectives. */
  weft_status (*stage)(void* user_data, const weft_bucket* bucket, weft_stage* stage, char* message);
  /* Called when the bucket plan has changed: state kept by parameter stays valid, state kept by bucket does
   * not. plan follows for each bucket. Without this function buckets are re-planned only on the program's
   * request. */
  weft_status (*replan)(void* user_data, uint64_t bucket_count, char* message);
  /* Called when this rank has no data in a step: buffer is zero and is not read; stages run all the same. */
  weft_status (*join)(void* user_data, const weft_bucket* bucket, char* message);
  /* Called when the communicator has changed. A failure is that of weft_reducer_rebind on all ranks; calling
   * that again calls this again. */
  weft_status (*rebind)(void* user_data, int32_t rank, int32_t size, char* message);
  /* Writes the state. *size: capacity in, required size out; buffer: NULL to query the size. */
  weft_status (*save)(void* user_data, void* buffer, uint64_t* size, char* message);
  /* Restores the state. */
  weft_status (*load)(void* user_data, const void* buffer, uint64_t size, char* message);
  /* Called once, after the last call has returned; any thread. */
  void (*free_user_data)(void* user_data);
  uint64_t flags; /* WEFT_HOOK_SPARSE, WEFT_HOOK_SHARES */
} weft_hook_table;
#define WEFT_HOOK_TABLE_INIT \
  {sizeof(weft_hook_table), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0}

/* Creates a hook from a table of functions, which is copied.
 * Returns: WEFT_ERR_ARG for missing functions or unknown flags; WEFT_ERR_NOMEM. On failure user_data is not
 * freed.
 * Ownership: the caller destroys *hook. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_hook_create_custom(weft_context* context, const weft_hook_table* table,
                                             void* user_data, weft_hook** hook);

/* Completes a pending stage. A late or repeated completion does nothing.
 * result: other than WEFT_OK: the step fails on every rank.
 * message: NULL, or the text of a failure, zero-terminated; cut at 256 bytes.
 * Threads: any thread, also from callbacks. Since 0.9 */
WEFT_API weft_status weft_hook_stage_complete(weft_hook* hook, const weft_stage_token* token,
                                              weft_status result, const char* message);

/* ---- Built-in hooks ------------------------------------------------------------------------------------ */

/* Parameters of a built-in hook. */
typedef struct weft_hook_params {
  size_t struct_size;
  const char* options; /* "rank=4 start=100" (docs/reference/hooks.md); default: all defaults */
  weft_hook* inner;    /* for hooks around another hook (fp16, bf16): that hook; default allreduce */
  weft_error* error;   /* out: what is wrong with name or options; may be NULL */
  weft_comm* comm;   /* communicator of the hook, of the same context: some of the reducer's ranks, this rank
                        included. Averages are over its size; a failure of either communicator fails both;
                        reducers with such a hook cannot be rebound. Default: the reducer's */
  const void* saved; /* bytes of weft_hook_save: the hook continues with them. name may then be NULL: the hook
                        is the saved one, and options and inner are not given. Default: a new state */
  uint64_t saved_size; /* bytes */
} weft_hook_params;
#define WEFT_HOOK_PARAMS_INIT {sizeof(weft_hook_params), NULL, NULL, NULL, NULL, NULL, 0}

/* Creates a built-in hook.
 * name: one of docs/reference/hooks.md. Name and options are compared across ranks when a reducer is created.
 * params: a weft_hook_params, or NULL for defaults.
 * Returns: WEFT_ERR_ARG for unknown names, options or values; for saved state as weft_hook_load.
 * Ownership: the caller destroys *hook; reducers keep the hook that they use alive, and hooks their inner
 * hook.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_hook_create(weft_context* context, const char* name, const void* params,
                                      weft_hook** hook);

/* ---- State --------------------------------------------------------------------------------------------- */

/* Writes a hook's state (error feedback, factors, counters) of this rank; the format is in docs/dev/hooks.md.
 * Between steps only.
 * *size: capacity in, required size out; buffer: NULL to query the size. error: may be NULL.
 * Returns: WEFT_ERR_ARG if the buffer is too small; the failure of a custom hook's save; WEFT_ERR_STATE if a
 * stage of the hook does not return within 10 s.
 * Threads: one thread at a time. Since 0.9 */
WEFT_API weft_status weft_hook_save(weft_hook* hook, void* buffer, uint64_t* size, weft_error* error);
/* Restores saved state into a hook of the same name and options, before its reducer is created or between
 * steps. State of another rank restores counters and factors; error feedback starts anew.
 * Returns: WEFT_ERR_MISMATCH for another hook's state; WEFT_ERR_ARG for damaged bytes. The hook is then
 * unchanged.
 * Threads: one thread at a time. Since 0.9 */
WEFT_API weft_status weft_hook_load(weft_hook* hook, const void* buffer, uint64_t size, weft_error* error);
/* Creates the built-in hook whose state was saved, and restores the state. A hook that worked over its own
 * communicator needs weft_hook_create with weft_hook_params.saved and comm.
 * Returns: as weft_hook_create and weft_hook_load. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_hook_create_saved(weft_context* context, const void* buffer, uint64_t size,
                                            weft_hook** hook, weft_error* error);
/* Destroys the handle and sets it to NULL; the hook lives while a reducer or another hook uses it.
 * Threads: one thread at a time. Since 0.9 */
WEFT_API weft_status weft_hook_destroy(weft_hook** hook);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_HOOK_H */
