/* weft/reducer.h: gradient synchronisation of a list of parameters. docs/tutorials/gradients.md explains a
 * step with examples. */
#ifndef WEFT_REDUCER_H
#define WEFT_REDUCER_H

#include <stddef.h>
#include <stdint.h>

#include "collectives.h"
#include "core.h"
#include "device.h"
#include "hook.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_reducer weft_reducer; /* synchronises gradients; each call says from which threads */

/* ---- Parameters ---------------------------------------------------------------------------------------- */

/* A parameter of the model, in the order of definition. */
typedef struct weft_param {
  size_t struct_size;
  const char* name;             /* unique; equal on all ranks */
  weft_dtype dtype;             /* F16, BF16, F32, F64, C64 or C128; any if it has no gradient */
  int32_t ndim;                 /* 0 to 16 */
  const int64_t* shape;         /* ndim entries >= 0; NULL for ndim 0 (one element) */
  const int64_t* strides;       /* in elements; default: row-major */
  weft_device_kind device_kind; /* where its gradient and its value are; default host */
  int32_t device;               /* this rank's own index; ranks compare which parameters share a device */
  uint64_t flags;               /* WEFT_PARAM_* */
  void* gradient;               /* where its gradient is, from create to destroy. Copy mode: for
                                   weft_reducer_ready with NULL and for the result of an absent parameter;
                                   default none. In place: required. May differ between ranks */
  void* parameter;              /* its value, laid out by strides. create copies rank 0's to all ranks; hooks
                                   and the calls that broadcast, compare or gather values use it. On all ranks
                                   or on none. Default: none */
  uint32_t uses;                /* how often it becomes ready in a step (shared weights, checkpointing); the
                                   last call hands the gradient over. Equal on all ranks; default 1. See
                                   WEFT_REDUCER_STATIC */
  uint32_t sparse_ndim;         /* WEFT_PARAM_SPARSE: leading dimensions that indices name; default 1 */
} weft_param;
/* Its gradients are sparse (weft_reducer_ready_sparse). It has its own bucket; strides and gradient are not
 * set. */
#define WEFT_PARAM_SPARSE UINT64_C(1)
/* State of the model without a gradient: broadcast, never reduced. Any dtype; needs `parameter`. */
#define WEFT_PARAM_STATE_ONLY UINT64_C(2)
/* A buffer, such as a running mean: as STATE_ONLY, and broadcast when steps begin (WEFT_REDUCER_BUFFERS). */
#define WEFT_PARAM_BUFFER UINT64_C(4)
/* The reducer ignores it: not compared, in no bucket, never broadcast. It keeps its index. Only its name is
 * read, for errors. */
#define WEFT_PARAM_IGNORED UINT64_C(8)
#define WEFT_PARAM_INIT {sizeof(weft_param), NULL, 0, 0, NULL, NULL, 0, 0, 0, NULL, NULL, 0, 0}

/* Where gradients live. */
typedef int32_t weft_gradient_mode;
#define WEFT_GRADIENT_COPY 1 /* ready copies them into buckets, results are copied back; default */
#define WEFT_GRADIENT_VIEW 2 /* the program computes them in weft_reducer_grad_view's memory: no copy */
/* As VIEW, in memory of the program: each gradient lies at weft_param.gradient, on the host, without gaps,
 * and is reduced there. A bucket is one piece of memory, so gradients that share one are adjacent in the
 * order of the list; a bucket ends where they are not. On all ranks or on none. Memory of weft_comm_alloc is
 * the fastest. */
#define WEFT_GRADIENT_IN_PLACE 3

/* ---- Options ------------------------------------------------------------------------------------------- */

/* Called when a bucket's result is in the gradients, or will not be: once for every bucket of a synchronised
 * step, perhaps after finish has returned. Any thread but the progress thread, one at a time per reducer. */
typedef void (*weft_bucket_fn)(void* user_data, uint64_t step, uint32_t bucket, weft_status status);

/* A bucket plan of the program: the parameters of each bucket and the order in which buckets are launched.
 * Every parameter is in one bucket; those of a bucket have one dtype and one device. Copied. */
typedef struct weft_plan {
  size_t struct_size;
  uint64_t bucket_count;  /* at least 1 */
  const uint64_t* sizes;  /* parameters of each bucket; bucket_count entries >= 1 */
  const uint64_t* params; /* the buckets' parameters one after the other, in the order of their layout */
} weft_plan;
#define WEFT_PLAN_INIT {sizeof(weft_plan), 0, NULL, NULL}

/* Rule by which a re-plan chooses where buckets end (docs/explanation/buckets.md). */
typedef int32_t weft_planner;
#define WEFT_PLANNER_DEFAULT 0 /* the default of the field that names the planner */
#define WEFT_PLANNER_LIMITS 1  /* at bucket_limits, in the order of readiness */
/* Where a model of the step leaves least communication after the last gradient. The re-plan measures the
 * cost of all-reduces (some tenths of a second). */
#define WEFT_PLANNER_MODEL 2
#define WEFT_PLANNER_NONE 3 /* weft_reducer_options.replan only: never re-plans by itself */

/* Divisor of sums, besides micro_batches. All but WORLD need WEFT_REDUCER_UNEVEN. */
typedef int32_t weft_divide;
#define WEFT_DIVIDE_WORLD 0   /* number of ranks */
#define WEFT_DIVIDE_ACTIVE 1  /* number of ranks that have data in this step */
#define WEFT_DIVIDE_WEIGHTS 2 /* sum of the ranks' weights (number of samples, say): a weighted mean */

/* Says who adds up the micro-batches of LOCAL steps. docs/how-to/accumulate.md explains the choice. */
typedef int32_t weft_accumulation;
/* Not chosen. The view modes then mean PROGRAM. LOCAL steps in copy mode, with sparse gradients or with
 * WEFT_REDUCER_COPY_STRAYS are refused, because a gradient's values do not show what was meant. */
#define WEFT_ACCUMULATION_UNSET 0
/* The program: ready hands over the sum of all micro-batches since the last synchronised step (PyTorch's
 * .grad under no_sync, without clearing it). LOCAL steps copy nothing. A parameter that was ready in a LOCAL
 * step and is absent from the synchronised one contributes what lies where its result goes. */
#define WEFT_ACCUMULATION_PROGRAM 1
/* The reducer, in copy mode only: every ready hands over the gradient of its micro-batch alone, so the
 * program clears gradients before each micro-batch. */
#define WEFT_ACCUMULATION_REDUCER 2

#define WEFT_ROOT_LAST_ACTIVE -1 /* as a root: the highest rank that has data */

/* Options of weft_reducer_create. */
typedef struct weft_reducer_options {
  size_t struct_size;
  const weft_param* params;      /* param_count entries, equal on all ranks */
  uint64_t param_count;          /* at least 1 */
  uint64_t param_size;           /* sizeof(weft_param); default: params[0].struct_size */
  weft_gradient_mode mode;       /* default WEFT_GRADIENT_COPY */
  uint32_t bucket_limit_count;   /* entries of bucket_limits; default: first 1 MiB, then 25 MiB */
  const uint64_t* bucket_limits; /* bytes; the last entry repeats; 0: one parameter a bucket */
  weft_hook* hook;               /* default allreduce */
  weft_bucket_fn on_bucket;      /* default: none */
  void* on_bucket_user_data;
  int64_t timeout_ms;    /* a step's deadline from its finish call; default: the communicator's */
  uint64_t flags;        /* WEFT_REDUCER_*; equal on all ranks */
  weft_divide divide_by; /* equal on all ranks; default WEFT_DIVIDE_WORLD */
  /* Says who adds up LOCAL steps; equal on all ranks. Default: PROGRAM in the view modes; LOCAL steps in copy
   * mode need a choice. */
  weft_accumulation accumulation;
  const weft_plan* plan;   /* equal on all ranks; default: by bucket_limits */
  weft_dtype reduce_dtype; /* F16, BF16 or F32: gradients of these types (and C64, as pairs) are communicated
                              and summed as this type, and bucket_limits count its bytes. Sparse gradients
                              keep theirs. Equal on all ranks; default: each gradient's own */
  int32_t buffers_root;    /* WEFT_REDUCER_BUFFERS: rank whose buffers are sent, or WEFT_ROOT_LAST_ACTIVE;
                              default 0 */
  uint32_t check_interval; /* steps 0, n, 2 n, ... begin with weft_reducer_check: where values differ begin
                              fails on all ranks, also those inside weft_reducer_join, and no step is open.
                              Ranks that have joined are not compared. Equal on all ranks; default 0: never */
  weft_planner replan;     /* planner of the re-plan that the begin of the second synchronised step makes by
                              itself, by the order of readiness. In view mode the views move: ask for them
                              again after a begin that changed weft_reducer_stats.plan_generation. If a rank
                              has no memory for new buckets all ranks keep the old ones, and the log and
                              weft_reducer_report say so. With SHARDED it needs OWN_WHOLE. Equal on all
                              ranks. Default: LIMITS in copy mode, except with SHARDED, GRAPH, a given plan,
                              gradients on devices, or a hook without `replan`; else NONE */
} weft_reducer_options;
/* clang-format off */
#define WEFT_REDUCER_OPTIONS_INIT \
  {sizeof(weft_reducer_options), NULL, 0, sizeof(weft_param), 0, 0, NULL, NULL, NULL, NULL, 0, 0, 0, 0, \
   NULL, 0, 0, 0, 0}
/* clang-format on */

/* Keeps what each rank contributes to a step until the step is committed, for weft_reducer_retry. Takes the
 * memory of the buckets once more (weft_reducer_stats.retained_bytes). Every finish then commits. */
#define WEFT_REDUCER_RETAIN UINT64_C(1)
/* Parameters may be absent from a step (weft_reducer_absent). Every synchronised step then agrees on which
 * are absent everywhere, with a small collective. */
#define WEFT_REDUCER_ABSENT UINT64_C(2)
/* Ranks may begin a step without data, with weights, and join (weft_reducer_join). Every synchronised step
 * then begins with a small collective, while gradients are computed. */
#define WEFT_REDUCER_UNEVEN UINT64_C(4)
/* With UNEVEN: a step in which a rank has joined is not reduced; finish reports that on all ranks. */
#define WEFT_REDUCER_STOP_WHEN_EXHAUSTED UINT64_C(8)
/* Static graph: the first step shows how often each parameter becomes ready (weft_param.uses is ignored),
 * and its buckets are communicated when it finishes. In a later step a parameter that becomes ready more or
 * less often is an error that names it. With ABSENT, parameters that the first step did not use are absent
 * from every later one without a call. */
#define WEFT_REDUCER_STATIC UINT64_C(16)
/* Every synchronised step begins with a broadcast of the buffers (WEFT_PARAM_BUFFER) from buffers_root (rank
 * 0 if a shrunk communicator has no such rank). begin returns when they have arrived, within timeout_ms; if
 * that fails no step is open. */
#define WEFT_REDUCER_BUFFERS UINT64_C(32)
/* Sharded (ZeRO): each rank receives the sums of the slices that it owns (weft_reducer_owned) only; the rest
 * of the gradients is undefined after finish. The program updates the slices and gathers the parameters. */
#define WEFT_REDUCER_SHARDED UINT64_C(64)
/* With SHARDED: one rank owns a parameter as a whole. */
#define WEFT_REDUCER_OWN_WHOLE UINT64_C(128)
/* Computes the norms of the reduced gradients (weft_reducer_norms). Needed for
 * weft_finish_options.clip_norm, WEFT_FINISH_SKIP and WEFT_FINISH_SKIP_NONFINITE. */
#define WEFT_REDUCER_NORMS UINT64_C(256)
/* With WEFT_ACCUMULATION_REDUCER: local steps accumulate in F32 what is communicated in 16 bits. These
 * buckets take twice their memory. */
#define WEFT_REDUCER_ACCUMULATE_F32 UINT64_C(512)
/* Equal bits for every backend, algorithm, arrangement of hosts and bucket plan: each element is summed
 * once, in the order of the ranks. Costs more traffic between hosts of several ranks. */
#define WEFT_REDUCER_DETERMINISTIC UINT64_C(1024)
/* View mode: ready accepts a gradient outside its view, laid out by the parameter's strides, and copies it
 * into the view, also in LOCAL steps. It replaces what is there. */
#define WEFT_REDUCER_COPY_STRAYS UINT64_C(2048)
/* Steps may be captured into CUDA graphs (WEFT_BEGIN_CAPTURE). All gradients are dense and on the
 * communicator's device, over the nccl backend, with the default hook or fp16 or bf16 around it; no other
 * flag, no check_interval, no uses. The plan is fixed. Creates an additional NCCL communicator, and takes
 * the memory of the buckets once more on the device. */
#define WEFT_REDUCER_GRAPH UINT64_C(4096)
/* Creating the reducer does not copy rank 0's values (weft_param.parameter, also of STATE_ONLY and BUFFER)
 * to all ranks. Values on devices are never copied. */
#define WEFT_REDUCER_KEEP_VALUES UINT64_C(8192)
/* weft_reducer_ready_tensor refuses a gradient with other strides than its parameter's, instead of
 * copying. */
#define WEFT_REDUCER_STRICT_STRIDES UINT64_C(16384)
/* Buckets are those of PyTorch's DistributedDataParallel (docs/explanation/buckets.md): for results that
 * depend on the buckets, as PowerSGD's do. */
#define WEFT_REDUCER_DDP_BUCKETS UINT64_C(32768)

/* ---- Create and destroy -------------------------------------------------------------------------------- */

/* Creates a reducer for a list of parameters. Collective: the ranks compare the list, the plan, the hook and
 * all options that must be equal. Blocks at most for the init timeout, then for the operation timeout while
 * rank 0's values are sent to all ranks (unless WEFT_REDUCER_KEEP_VALUES is set).
 * error: may be NULL.
 * Returns: WEFT_ERR_MISMATCH on every rank if ranks differ, naming the first parameter that differs and both
 * sides. A rank whose own arguments are wrong returns that error (WEFT_ERR_ARG, WEFT_ERR_UNSUPPORTED,
 * WEFT_ERR_NOMEM), the others WEFT_ERR_MISMATCH. WEFT_ERR_UNSUPPORTED beyond 63 reducers on a communicator
 * over shm: split it for more. The communicator's failure.
 * Ownership: the caller destroys *reducer, which keeps the communicator's internals alive.
 * Threads: one thread at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_reducer_create(weft_comm* comm, const weft_reducer_options* options,
                                         weft_reducer** reducer, weft_error* error);
/* Destroys a reducer. In the middle of a synchronised step this fails the communicator, because the other
 * ranks depend on this one. When it returns, within 10 s, gradients are not accessed any more; a stage of a
 * custom hook that has not returned keeps its own memory.
 * Threads: any thread, not from a callback; no other call on the reducer may be running. Since 0.9 */
WEFT_API weft_status weft_reducer_destroy(weft_reducer** reducer);

/* Returns where the gradient of a parameter lives in view mode. Its strides are the parameter's if those are
 * dense, else row-major. Valid until destroy, or until a re-plan moves it.
 * Returns: WEFT_ERR_STATE in copy mode. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_reducer_grad_view(weft_reducer* reducer, uint64_t param, void** view);

/* ---- A step -------------------------------------------------------------------------------------------- */

/* Options of weft_reducer_begin. */
typedef struct weft_begin_options {
  size_t struct_size;
  uint64_t flags;         /* WEFT_BEGIN_* */
  uint32_t micro_batches; /* additional divisor: accumulated micro-batches; equal on all ranks; default 1 */
  uint32_t reserved;      /* 0 */
  double weight;          /* this rank's weight, finite and positive, for WEFT_DIVIDE_WEIGHTS; default 1 */
  void* const* gradients; /* copy mode: where results of absent parameters go, per parameter, NULL for none;
                             in use until finish returns. Default: weft_param.gradient */
} weft_begin_options;
/* Local step: gradients are accumulated on this rank (weft_reducer_options.accumulation), nothing is
 * communicated. */
#define WEFT_BEGIN_LOCAL UINT64_C(1)
/* This rank has no data in this step: it contributes zeros, or what earlier local steps accumulated (it then
 * counts as a rank with data), and receives the results. No ready follows; call finish next. Needs
 * WEFT_REDUCER_UNEVEN; not with LOCAL or FIXED. */
#define WEFT_BEGIN_NO_DATA UINT64_C(2)
/* The program promises that the same parameters are absent on all ranks that have data: nothing is exchanged
 * about them, and buckets that are absent as a whole are not communicated. With WEFT_REDUCER_UNEVEN either
 * all ranks with data give the flag or none (WEFT_ERR_MISMATCH). A broken promise is WEFT_ERR_MISMATCH where
 * the collectives differ by it, else a wrong result (docs/how-to/leave-out.md). */
#define WEFT_BEGIN_FIXED UINT64_C(4)
/* Records the order in which gradients become ready, for weft_reducer_replan. The first synchronised step
 * does so without the flag. */
#define WEFT_BEGIN_RECORD UINT64_C(8)
/* Captures the step into the CUDA graph into which the program captures its streams: begin, ready and finish
 * add nodes, and nothing runs; each launch of the graph is a step. All ranks capture the same steps and
 * launch their graphs as often and in the same order, one after the other. Gradients stay where they are,
 * and the graph is destroyed before the reducer. Needs WEFT_REDUCER_GRAPH; of the other options only
 * micro_batches is allowed (docs/how-to/cuda-graphs.md). */
#define WEFT_BEGIN_CAPTURE UINT64_C(16)
#define WEFT_BEGIN_OPTIONS_INIT {sizeof(weft_begin_options), 0, 0, 0, 0.0, NULL}

/* Begins a step: from now on gradients may become ready. A synchronised step averages the gradients over all
 * ranks, together with what LOCAL steps before it accumulated (weft_reducer_options.accumulation).
 * options: NULL for defaults. All ranks make the same number of LOCAL steps before a synchronised one (else
 * WEFT_ERR_MISMATCH with both numbers), except with WEFT_REDUCER_UNEVEN.
 * Returns: WEFT_ERR_ARG; WEFT_ERR_STATE while a step is open, for a LOCAL step without a choice of
 * accumulation, and with NO_DATA as weft_reducer_absent; the reducer's failure, also that of a step that
 * finish left to streams.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_begin(weft_reducer* reducer, const weft_begin_options* options);

/* Marks the gradient of a parameter as complete. The reduction of a bucket starts when its last gradient is
 * ready and the buckets before it have started.
 * gradient: in copy mode laid out by the parameter's strides; NULL: weft_param.gradient. A local step reads
 * it during this call, or not at all (WEFT_ACCUMULATION_PROGRAM). In a synchronised step it is in use until
 * its bucket completes: it may be read until then, and the result is written there. In view mode: the view,
 * or NULL. The buffer's contents are not validated: weft_reducer_ready_tensor checks dtype and shape.
 * stream: NULL for host memory. A gradient on a device is complete when the stream's work so far is done;
 * this call does not wait. It is read once the bucket is full (in a local step in stream order). The stream
 * must exist until its bucket is done.
 * Returns: WEFT_ERR_ARG for an unknown index, no or a foreign pointer, memory or a stream of another device;
 * WEFT_ERR_UNSUPPORTED for a thread's own default stream, or a stream that is being captured in a step
 * without WEFT_BEGIN_CAPTURE; WEFT_ERR_STATE outside a step, for a parameter that is ready already (naming
 * it), and in a captured step for a stream that is not being captured.
 * Threads: any thread, different parameters concurrently. Since 0.9 */
WEFT_API weft_status weft_reducer_ready(weft_reducer* reducer, uint64_t param, void* gradient,
                                        const weft_stream* stream);

/* A dense gradient as a framework describes it. */
typedef struct weft_tensor {
  size_t struct_size;
  void* data;                   /* first element */
  weft_dtype dtype;             /* complex types too */
  int32_t ndim;                 /* 0 to 16 */
  const int64_t* shape;         /* ndim entries; NULL for ndim 0 (one element) */
  const int64_t* strides;       /* in elements; default: row-major */
  weft_device_kind device_kind; /* default WEFT_DEVICE_HOST */
  int32_t device;               /* index */
} weft_tensor;
#define WEFT_TENSOR_INIT {sizeof(weft_tensor), NULL, 0, 0, NULL, NULL, 0, 0}

/* Like weft_reducer_ready, for a gradient that describes itself. dtype, shape and device must be the
 * parameter's. A gradient in host memory with other strides is copied by its own strides, and so is its
 * result, unless WEFT_REDUCER_STRICT_STRIDES is set. On a device, and in a view (row-major if the parameter's
 * strides have gaps), other strides are an error.
 * Returns: WEFT_ERR_ARG naming both sides; otherwise as weft_reducer_ready.
 * Threads: as weft_reducer_ready. Since 0.9 */
WEFT_API weft_status weft_reducer_ready_tensor(weft_reducer* reducer, uint64_t param,
                                               const weft_tensor* gradient, const weft_stream* stream);

/* Like weft_reducer_ready, for a parameter with WEFT_PARAM_SPARSE. Entries are read during the call, in all
 * modes, or not at all (a LOCAL step with WEFT_ACCUMULATION_PROGRAM). A gradient without entries has count 0.
 * Returns: WEFT_ERR_ARG also for an index outside the shape and a parameter that is not sparse; otherwise as
 * weft_reducer_ready.
 * Threads: as weft_reducer_ready. Since 0.9 */
WEFT_API weft_status weft_reducer_ready_sparse(weft_reducer* reducer, uint64_t param,
                                               const weft_sparse* gradient, const weft_stream* stream);

/* Marks parameters as absent: they have no gradient on this rank in this step. They contribute what earlier
 * local steps accumulated, otherwise zeros. If another rank has a gradient this rank receives the result
 * too, where weft_begin_options.gradients or weft_param.gradient points, else by weft_reducer_result. The
 * gradient of a parameter that is absent on all ranks is left as it is in copy mode, and zero in view mode.
 * With WEFT_ACCUMULATION_PROGRAM the place of the result holds what local steps accumulated.
 * Returns: WEFT_ERR_ARG for an unknown index; WEFT_ERR_STATE outside a step, for a parameter that is ready
 * or absent already (those before it in the list are absent then), with neither WEFT_REDUCER_ABSENT nor
 * WEFT_BEGIN_FIXED, or with no place for what local steps accumulated.
 * Threads: as weft_reducer_ready. Since 0.9 */
WEFT_API weft_status weft_reducer_absent(weft_reducer* reducer, const uint64_t* params, uint64_t count);

/* Options of weft_reducer_finish and weft_reducer_retry. */
typedef struct weft_finish_options {
  size_t struct_size;
  uint64_t flags;            /* WEFT_FINISH_*; equal on all ranks, except SKIP */
  const weft_stream* stream; /* streams that wait instead of the host; default: the host waits */
  double clip_norm;      /* scales the results so that their total norm is at most this; equal on all ranks,
                            needs WEFT_REDUCER_NORMS. Default 0: no limit */
  uint64_t stream_count; /* streams at `stream`, an array; default 1 */
} weft_finish_options;
/* Returns only when every rank has all results of this step: after WEFT_OK the step is committed, and no
 * failure undoes it. Costs a barrier. */
#define WEFT_FINISH_COMMIT UINT64_C(1)
/* Every parameter that is neither ready nor absent is absent. */
#define WEFT_FINISH_REST_ABSENT UINT64_C(2)
/* Skips the step on all ranks, because this rank's loss overflowed, for example. See weft_norms.skipped.
 * Needs WEFT_REDUCER_NORMS. */
#define WEFT_FINISH_SKIP UINT64_C(4)
/* Skips the step if a reduced gradient, or the total norm, is not finite. Needs WEFT_REDUCER_NORMS. */
#define WEFT_FINISH_SKIP_NONFINITE UINT64_C(8)
#define WEFT_FINISH_OPTIONS_INIT {sizeof(weft_finish_options), 0, NULL, 0.0, 0}

/* Waits until every bucket's result is in the gradients, and ends the step.
 * options: NULL for defaults. With streams of devices in a context with WEFT_CONTEXT_STREAM_WAITS finish
 * returns when no gradient is missing, and later work on the streams waits until the step is over, also if it
 * fails. The next call that needs the step's end (begin, or finish once more) waits for it and returns its
 * failure. The host waits without that flag, in WEFT_PROGRESS_CALLER, with COMMIT and with
 * WEFT_REDUCER_RETAIN. There finish may be called once more as well, and returns WEFT_OK.
 * Returns: WEFT_ERR_STATE naming every parameter that never became ready, and WEFT_ERR_TIMEOUT while a
 * gradient is still being copied (in a LOCAL step, or the first one with STATIC): the step stays open,
 * finish again or abort; WEFT_ERR_HOOK; WEFT_ERR_STEP_FAILED; the communicator's failure. After a failure
 * the gradients are not reduced; weft_reducer_bucket says which buckets completed. If only the commit failed
 * they are reduced here; weft_reducer_rebind finds out whether they are on all ranks.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_finish(weft_reducer* reducer, const weft_finish_options* options);

/* Fails the open step on all ranks, for a rank that cannot continue it (a bad batch, an exception in its
 * backward). The step is over here on return. finish returns WEFT_ERR_STEP_FAILED on every other rank, with
 * failed_ranks and the text "rank N: <text>", and the next step works. A LOCAL step fails the synchronised
 * step after it. If another rank may complete the step without this one (250 ms after the last gradient, for
 * example) the communicator fails instead, with WEFT_ERR_ABORTED and the same text. Blocks like finish.
 * text: UTF-8, cut at 512 bytes; NULL: none.
 * Returns: WEFT_ERR_STATE without an open step; the communicator's failure.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_fail(weft_reducer* reducer, const char* text);

/* Waits until the result of a parameter is in its gradient, in a synchronised step or after it, so that its
 * optimizer step can run while later buckets are communicated. With WEFT_REDUCER_SHARDED, once finish has
 * returned, it waits for the parameter's value. Does not end the step.
 * timeout_ms: as weft_request_wait.
 * Returns: WEFT_ERR_NOT_DONE after timeout_ms; WEFT_ERR_INTERRUPTED; WEFT_ERR_STATE without a synchronised
 * step; the step's failure.
 * Threads: any thread, not from a callback. Since 0.9 */
WEFT_API weft_status weft_reducer_wait_param(weft_reducer* reducer, uint64_t param, int64_t timeout_ms);

/* Makes later work on a device's stream wait until the result of a parameter is in its gradient (which may
 * be on the host or another device), or until the step is over without it. Call it when every gradient of
 * the step is ready or absent, before or after finish. Returns at once; from then on the step has a
 * deadline. Does not end the step: finish or begin returns its result, so check it before using what was
 * computed. In WEFT_PROGRESS_CALLER the host waits.
 * Returns: WEFT_ERR_STATE without a synchronised step, or naming the missing gradients; WEFT_ERR_ARG for the
 * host or a foreign stream; WEFT_ERR_UNSUPPORTED if no gradient is on a device; the step's failure.
 * Threads: any thread, not from a callback. Since 0.9 */
WEFT_API weft_status weft_reducer_stream_wait_param(weft_reducer* reducer, uint64_t param,
                                                    const weft_stream* stream);

/* ---- Results ------------------------------------------------------------------------------------------- */

/* Copies the last step's result of a parameter to `gradient`, laid out by the parameter's strides. In copy
 * mode, for parameters that were absent here and had no place for their result.
 * Returns: WEFT_ERR_STATE inside a step, or if the last synchronised step did not reduce the parameter.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_result(weft_reducer* reducer, uint64_t param, void* gradient);

/* Returns the last step's result of a sparse parameter: sorted by index, each index once, equal bits on all
 * ranks; every index, where communicating the whole gradient was cheaper. Its memory belongs to the reducer
 * until the next begin.
 * Returns: as weft_reducer_result. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_sparse_result(weft_reducer* reducer, uint64_t param, weft_sparse* result);

/* Norms of the reduced gradients of a step. */
typedef struct weft_norms {
  size_t struct_size;
  double total;              /* L2 norm of all gradients that have a result, before clipping */
  double clip_factor;        /* factor by which they were scaled */
  uint64_t nonfinite_params; /* parameters with an infinity or a NaN in their result */
  uint8_t skipped;           /* 1: the step was skipped on all ranks; in copy mode gradients are unchanged */
  uint8_t reserved[7];
} weft_norms;
#define WEFT_NORMS_INIT {sizeof(weft_norms), 0.0, 0.0, 0, 0, {0}}

/* Returns the norms of the last synchronised step, equal bits on all ranks.
 * per_param: NULL, or receives the L2 norm of each parameter's result (param_count entries), which is finite
 * exactly if the whole result is.
 * Returns: WEFT_ERR_STATE inside a step, before the first one, or without WEFT_REDUCER_NORMS.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_norms(weft_reducer* reducer, weft_norms* norms, double* per_param);

/* ---- Sharding ------------------------------------------------------------------------------------------ */

/* A slice of a parameter; elements in the order in which the gradient is laid out. */
typedef struct weft_slice {
  uint64_t param;  /* index of the parameter */
  uint64_t offset; /* elements */
  uint64_t count;  /* elements, at least 1 */
} weft_slice;

/* Returns the slices that a rank owns, with WEFT_REDUCER_SHARDED, in the order of the buckets.
 * *count: capacity in, number of slices out; slices: NULL to query the number.
 * Returns: WEFT_ERR_ARG if the capacity is too small.
 * Threads: between steps, one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_owned(weft_reducer* reducer, int32_t rank, weft_slice* slices,
                                        uint64_t* count);

/* Options of weft_reducer_gather_params. */
typedef struct weft_gather_options {
  size_t struct_size;
  uint64_t flags;     /* 0 */
  int64_t timeout_ms; /* default: the reducer's */
} weft_gather_options;
#define WEFT_GATHER_OPTIONS_INIT {sizeof(weft_gather_options), 0, 0}

/* Starts to send each owner's slices of the parameters' values (weft_param.parameter) to all ranks, in the
 * order of the parameters; for sharded reducers. Returns at once. weft_reducer_wait_param waits for one
 * parameter, and starts the gather if this was not called since finish (all ranks call it then). The next
 * begin waits for all.
 * Returns: WEFT_ERR_STATE inside a step. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_gather_params(weft_reducer* reducer, const weft_gather_options* options);

/* ---- Values of parameters ------------------------------------------------------------------------------ */

/* Options of weft_reducer_broadcast. */
typedef struct weft_broadcast_options {
  size_t struct_size;
  uint64_t flags;       /* WEFT_BROADCAST_*; default 0: all of them */
  int32_t root;         /* rank, or WEFT_ROOT_LAST_ACTIVE (of the last step); default 0 */
  uint32_t in_flight;   /* chunks at the same time; default 2 */
  uint64_t chunk_bytes; /* largest message; default 250 MiB */
  int64_t timeout_ms;   /* default: the communicator's op_timeout_ms */
} weft_broadcast_options;
#define WEFT_BROADCAST_PARAMS UINT64_C(1)  /* values of parameters with gradients */
#define WEFT_BROADCAST_STATE UINT64_C(2)   /* WEFT_PARAM_STATE_ONLY */
#define WEFT_BROADCAST_BUFFERS UINT64_C(4) /* WEFT_PARAM_BUFFER */
#define WEFT_BROADCAST_OPTIONS_INIT {sizeof(weft_broadcast_options), 0, 0, 0, 0, 0}

/* Copies the values of parameters (weft_param.parameter) from the root to all ranks, in coalesced chunks;
 * takes memory for in_flight chunks. Collective, between steps; no rank may be inside weft_reducer_join.
 * options: NULL for defaults; equal on all ranks. error: may be NULL.
 * Returns: WEFT_ERR_ARG for a parameter without a value or a root that does not exist; WEFT_ERR_MISMATCH if
 * options differ or another rank's call is wrong (nothing was copied); WEFT_ERR_STATE inside a step, or if
 * there is no last active rank; the communicator's failure, after which some values are the root's.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_broadcast(weft_reducer* reducer, const weft_broadcast_options* options,
                                            weft_error* error);

/* Compares the parameters' values on all ranks, by hash. Buffers are not compared. Collective, between
 * steps.
 * error: may be NULL.
 * Returns: WEFT_ERR_MISMATCH on every rank if values differ: the text names the first parameter that
 * differs, failed_ranks the ranks with the minority's value; the reducer stays usable. Otherwise as
 * weft_reducer_broadcast.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_check(weft_reducer* reducer, weft_error* error);

/* ---- Ranks without data -------------------------------------------------------------------------------- */

/* Options of weft_reducer_join. */
typedef struct weft_join_options {
  size_t struct_size;
  int64_t timeout_ms;    /* longest wait for the others' next step; default: the reducer's */
  uint64_t finish_flags; /* flags of the others' finish: WEFT_FINISH_COMMIT or 0 */
} weft_join_options;
#define WEFT_JOIN_OPTIONS_INIT {sizeof(weft_join_options), 0, 0}

/* Result of weft_reducer_join. */
typedef struct weft_join_result {
  size_t struct_size;
  uint64_t steps;      /* steps of the others in which this rank took part without data */
  int32_t last_active; /* highest rank that had data in the last step: its state is the newest; -1: none */
  uint32_t reserved;
} weft_join_result;
#define WEFT_JOIN_RESULT_INIT {sizeof(weft_join_result), 0, 0, 0}

/* Takes part in the others' steps without data until every rank has joined, then returns on all of them. For
 * a rank that has no more data. Drops what LOCAL steps have accumulated by then. The reducer can be used
 * again.
 * options, result: may be NULL.
 * Returns: WEFT_ERR_STATE inside a step, without WEFT_REDUCER_UNEVEN, as weft_reducer_absent, or, with
 * WEFT_REDUCER_STOP_WHEN_EXHAUSTED, once another rank begins a step; otherwise as weft_reducer_finish.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_join(weft_reducer* reducer, const weft_join_options* options,
                                       weft_join_result* result);

/* ---- Buckets ------------------------------------------------------------------------------------------- */

/* Options of weft_reducer_replan. */
typedef struct weft_replan_options {
  size_t struct_size;
  const weft_plan* plan;         /* the new plan, equal on all ranks; default: by the order of readiness */
  const uint64_t* bucket_limits; /* as in weft_reducer_options; default: those in use */
  uint32_t bucket_limit_count;   /* entries of bucket_limits */
  weft_planner planner;          /* equal on all ranks; default LIMITS; not with plan */
} weft_replan_options;
#define WEFT_REPLAN_OPTIONS_INIT {sizeof(weft_replan_options), NULL, NULL, 0, 0}

/* Assigns parameters to buckets anew, between steps; by default in the order in which gradients became ready
 * in the last step that recorded it, on the lowest rank that has recorded one. Collective; ranks inside
 * weft_reducer_join take part there. Calls the hook's replan. Gradients keep their values, also accumulated
 * ones. In view mode the views move (weft_reducer_stats.plan_generation): call weft_reducer_grad_view again
 * and stop using old pointers. If the new buckets do not fit into the memory of the old ones, both exist
 * during the call.
 * options, error: may be NULL.
 * Returns: WEFT_ERR_STATE inside a step, or if no rank has recorded an order; WEFT_ERR_MISMATCH if the ranks
 * ask for different plans; otherwise as weft_reducer_create. After an error the old plan stays.
 * Threads: one thread at a time per communicator; no other call on the reducer may be running. Since 0.9 */
WEFT_API weft_status weft_reducer_replan(weft_reducer* reducer, const weft_replan_options* options,
                                         weft_error* error);

/* Place of a parameter in the buckets, and its part in the last step. */
typedef struct weft_param_info {
  size_t struct_size;
  uint32_t bucket;           /* UINT32_MAX: none, the parameter has no gradient */
  uint8_t absent;            /* 1: absent here in the last synchronised step */
  uint8_t absent_everywhere; /* 1: absent on all ranks too: no result */
  uint8_t reserved[2];
  uint64_t offset; /* first element in the bucket */
  uint64_t count;  /* elements */
} weft_param_info;
#define WEFT_PARAM_INFO_INIT {sizeof(weft_param_info), 0, 0, 0, {0}, 0, 0}

/* Describes a parameter.
 * Returns: WEFT_ERR_ARG for an unknown index.
 * Threads: between steps, one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_param(weft_reducer* reducer, uint64_t param, weft_param_info* info);

/* A bucket of the plan, and its times in the last synchronised step. */
typedef struct weft_bucket_info {
  size_t struct_size;
  uint32_t index;       /* position in the order of launch */
  weft_dtype dtype;     /* in which it is communicated */
  uint64_t param_count; /* its parameters */
  uint64_t count;       /* elements */
  uint64_t bytes;       /* of what is communicated, in dtype */
  uint64_t limit_bytes; /* limit that closed the bucket */
  uint64_t ready_ns;    /* since the step's begin: the last gradient was ready; 0 if it has not happened */
  uint64_t launch_ns;   /* likewise: the first stage started */
  uint64_t done_ns;     /* likewise: the result was in the gradients */
  uint64_t transfer_ns; /* how long its collectives ran, including the wait for late ranks */
  uint64_t sent_bytes; /* bytes that this rank moved, as the backend counted them: payload of its messages, or
                          what it copied into and out of shared memory */
} weft_bucket_info;
#define WEFT_BUCKET_INFO_INIT {sizeof(weft_bucket_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Returns the number of buckets. Threads: between steps, one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_bucket_count(weft_reducer* reducer, uint32_t* count);
/* Describes a bucket.
 * params: NULL, or receives up to capacity parameter indices in bucket order.
 * Returns: WEFT_ERR_ARG for an unknown bucket.
 * Threads: between steps, one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_bucket(weft_reducer* reducer, uint32_t bucket, weft_bucket_info* info,
                                         uint64_t* params, uint64_t capacity);

/* ---- Errors and statistics ----------------------------------------------------------------------------- */

/* Returns the reducer's last error and its details; WEFT_OK if there is none.
 * Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_error(weft_reducer* reducer, weft_error* error);

/* Counters and times of a reducer. "Last step" is the last synchronised step; _ns are nanoseconds. */
typedef struct weft_reducer_stats {
  size_t struct_size;
  uint64_t steps;            /* synchronised and finished */
  uint64_t local_steps;      /* steps begun with WEFT_BEGIN_LOCAL */
  uint64_t failed_steps;     /* synchronised steps that failed */
  uint64_t bytes_reduced;    /* in finished buckets, of the type that is communicated */
  uint64_t bucket_bytes;     /* memory of the buckets */
  uint64_t scratch_bytes;    /* memory of hooks' scratch, and to gather parameters */
  uint64_t other_bytes;      /* all other memory of the reducer */
  uint64_t step_ns;          /* last step: begin to the end of finish */
  uint64_t exposed_ns;       /* last step: inside finish: communication that computing did not hide */
  uint64_t communication_ns; /* last step: first launch to last completion */
  uint64_t retained_bytes;   /* memory of what WEFT_REDUCER_RETAIN keeps */
  uint32_t active_ranks;     /* last step: ranks that had data */
  int32_t first_active;      /* last step: the lowest of them; -1: none */
  int32_t last_active;       /* last step: the highest of them; -1: none */
  uint32_t skipped_buckets; /* last step: not communicated, because absent as a whole with WEFT_BEGIN_FIXED */
  double divisor;           /* last step: divisor of the sums */
  uint64_t absent_params;   /* last step: absent here */
  uint64_t absent_everywhere; /* last step: of these, absent on all ranks */
  uint64_t hook_bytes;        /* memory of the hook's state, such as error feedback */
  uint64_t sent_bytes;        /* all steps: bytes that this rank's hook sends at least for its collectives */
  uint64_t plain_bytes;       /* all steps: bytes to all-reduce the same buckets without a hook */
  uint64_t plan_generation;   /* number of re-plans that changed the plan */
  uint64_t param_bytes;       /* of all dense gradients */
  uint64_t absent_bytes;      /* last step: of gradients that were absent here */
  uint64_t compute_ns;        /* last step: begin to the call of finish */
  uint64_t overlap_ns;        /* last step: communication before that call */
  uint64_t mean_step_ns;      /* these five: means over all synchronised steps */
  uint64_t mean_compute_ns;   /* of compute_ns */
  uint64_t mean_communication_ns; /* of communication_ns */
  uint64_t mean_overlap_ns;       /* of overlap_ns */
  uint64_t mean_exposed_ns;       /* of exposed_ns */
  uint64_t step_p50_ns;    /* these four: 50th and 99th percentiles of the last 128 synchronised steps */
  uint64_t step_p99_ns;    /* 99th percentile */
  uint64_t exposed_p50_ns; /* 50th percentile */
  uint64_t exposed_p99_ns; /* 99th percentile */
  uint64_t straggler_ns;   /* last step: how long this rank waited for the straggler, or all others on average
                              if that is more */
  int32_t straggler;       /* last step: rank that held it up; -1: nobody waited. docs/reference/report.md */
  uint32_t reserved;
  uint64_t captures; /* steps captured with WEFT_BEGIN_CAPTURE; these three restart at 0 after a rebind */
  uint64_t launches; /* launches of their graphs that have begun; one that does not end within the reducer's
                        timeout fails the communicator */
  uint64_t replays;  /* launches that have ended; with results while the communicator works */
  uint64_t copied_gradients; /* those with other strides than their parameter's (weft_reducer_ready_tensor) */
  double hook_error; /* last step: largest error memory of a bucket over the gradient, as norms; 0: none */
  uint32_t hook_error_bucket; /* bucket of hook_error */
  uint32_t reserved2;
} weft_reducer_stats;
/* clang-format off */
#define WEFT_REDUCER_STATS_INIT \
  {sizeof(weft_reducer_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0}
/* clang-format on */

/* Returns counters and times. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_reducer_query(weft_reducer* reducer, weft_reducer_stats* stats);

/* Writes everything that is known about the reducer and its steps as JSON; docs/reference/report.md lists the
 * fields. *size: capacity in, bytes of the whole text with its final 0 out; text: NULL to query the size.
 * Returns: WEFT_ERR_ARG if the text was cut to the capacity.
 * Threads: between steps, one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_report(weft_reducer* reducer, char* text, uint64_t* size);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_REDUCER_H */
