/* weft/core.h: status codes, errors, contexts, communicators, collectives and requests.
 *
 * Weft is gradient synchronisation and collective communication behind a C ABI. This header is the part that
 * every program uses; <weft/weft.h> includes it and all others. Anything that no header declares is
 * unsupported.
 *
 * Conventions
 *  1. Every call that can fail returns a weft_status. WEFT_OK (0) is the only success. Handle codes that you
 *     do not know. "Returns" in a comment lists errors; WEFT_ERR_ARG for NULL and WEFT_ERR_FORKED are
 *     implied.
 *  2. Results come last, through pointers. After a failure they are NULL or 0.
 *  3. Objects are pointers to incomplete structs. X_create makes an object. X_destroy(&x) ends it, sets the
 *     pointer to NULL, and accepts NULL. Requests are released instead. Any order of destruction is legal.
 *  4. Structs start with struct_size. Initialise them with WEFT_X_INIT; zeroed memory with struct_size set
 *     has the same meaning, for languages without macros, but does not have the version of the header checked
 *     (weft_context_options.version). Zero is the default of every field, and each field names its default.
 *     Non-zero bytes beyond what the library knows, and unknown flags, are refused with WEFT_ERR_ARG. Arrays
 *     of structs carry the size of an element. Output structs are filled up to the caller's struct_size.
 *  5. Counts and offsets are uint64_t and count elements unless the name says bytes. Times are in the unit of
 *     their name. Where zero itself is a meaningful value there is a constant for it (WEFT_TIMEOUT_POLL).
 *  6. Buffers of an asynchronous call belong to the library from the call until the request completes. A
 *     request completes exactly once: with success, failed, cancelled or timed out; also when its
 *     communicator fails or is destroyed.
 *  7. The timeout of a wait only ends the wait. The deadline of an operation fails the communicator. Its
 *     requests complete once nobody can write to their buffers any more (docs/explanation/threads.md has an
 *     exception). In-place buffers are then undefined, separate sources are intact.
 *  8. Every rank makes the same collective calls on a communicator in the same order, with matching
 *     arguments. A difference is WEFT_ERR_MISMATCH on the ranks that see it, and names both sides. A call
 *     that never comes is WEFT_ERR_TIMEOUT, and names the absent ranks.
 *  9. Threads: "any thread" means that concurrent calls are fine; "one thread at a time" means that the
 *     caller serialises them.
 * 10. Callbacks run on any thread, never concurrently for one object, and never after the destroy call of
 *     their object has returned WEFT_OK. In a callback only calls that read (rank, size, error, version) and
 *     test, on_complete, release and abort are allowed; others return WEFT_ERR_STATE. In a log, thread-start
 *     or allocator callback all calls on objects return it: these run under the library's locks.
 * 11. The library keeps no global state, installs no signal handlers, prints nothing and never exits. In a
 *     child made by fork, calls on inherited objects return WEFT_ERR_FORKED, and memory of shm communicators
 *     (arenas, gradient views) is not mapped. */
#ifndef WEFT_CORE_H
#define WEFT_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

/* ---- Version and status -------------------------------------------------------------------------------- */

#define WEFT_VERSION_MAJOR 0 /* of this header; before 1.0 the minor version must match as well */
#define WEFT_VERSION_MINOR 9 /* new functions and defaults */
#define WEFT_VERSION_PATCH 0 /* mended defects */
/* 10000 * major + 100 * minor + patch. */
#define WEFT_VERSION_NUMBER (WEFT_VERSION_MAJOR * 10000u + WEFT_VERSION_MINOR * 100u + WEFT_VERSION_PATCH)

/* Returns the library's version as a WEFT_VERSION_NUMBER. Threads: any thread. Since 0.9 */
WEFT_API uint32_t weft_version(void);

/* Result of a call. */
typedef int32_t weft_status;
#define WEFT_OK 0               /* success */
#define WEFT_ERR_ARG 1          /* an argument is wrong; nothing was done */
#define WEFT_ERR_STATE 2        /* the object is not in a state that allows this call */
#define WEFT_ERR_NOMEM 3        /* memory could not be allocated */
#define WEFT_ERR_UNSUPPORTED 4  /* this combination does not exist, or not in this version */
#define WEFT_ERR_UNAVAILABLE 5  /* a backend or library is not available; the text says why */
#define WEFT_ERR_TIMEOUT 6      /* a deadline passed: the operation failed, and with it its communicator */
#define WEFT_ERR_NOT_DONE 7     /* the timeout of a wait passed; the operation continues */
#define WEFT_ERR_MISMATCH 8     /* ranks disagree: operation, dtype, count, root, plan, parameters, hook */
#define WEFT_ERR_PEER_FAILED 9  /* another rank died or left */
#define WEFT_ERR_ABORTED 10     /* weft_comm_abort was called, here or on another rank */
#define WEFT_ERR_CANCELLED 11   /* the object was destroyed while the operation was outstanding */
#define WEFT_ERR_AUTH 12        /* the other side does not hold the job's secret */
#define WEFT_ERR_VERSION 13     /* incompatible versions of Weft */
#define WEFT_ERR_SYSTEM 14      /* a system call failed; the text holds its name and error */
#define WEFT_ERR_FORKED 15      /* the object was inherited by fork */
#define WEFT_ERR_HOOK 16        /* a communication hook, or the function of WEFT_OP_USER, failed */
#define WEFT_ERR_MINORITY 17    /* shrink: the survivors are no majority of the last membership */
#define WEFT_ERR_INTERNAL 18    /* a defect in Weft; please report it with the text */
#define WEFT_ERR_INTERRUPTED 19 /* the program ended a blocking call, here or on another rank */
#define WEFT_ERR_STEP_FAILED 20 /* a rank called weft_reducer_fail; text is its text. The next step works */

/* Returns a static text for a status code, "unknown status" for others. Threads: any thread. Since 0.9 */
WEFT_API const char* weft_status_string(weft_status status);

/* Evidence that an error is based on. */
typedef int32_t weft_evidence;
#define WEFT_EVIDENCE_NONE 0       /* no failure */
#define WEFT_EVIDENCE_LOCAL 1      /* found by this rank in its own arguments or state */
#define WEFT_EVIDENCE_CONNECTION 2 /* a control connection closed or broke */
#define WEFT_EVIDENCE_PROCESS 3    /* the process is gone */
#define WEFT_EVIDENCE_HEARTBEAT 4  /* no heartbeat within the heartbeat timeout */
#define WEFT_EVIDENCE_DEADLINE 5   /* an operation's deadline passed */
#define WEFT_EVIDENCE_DESCRIPTOR 6 /* descriptors of one slot differ */
#define WEFT_EVIDENCE_REPORT 7     /* another rank reported the failure */

#define WEFT_ERROR_RANKS 64     /* entries of weft_error.failed_ranks */
#define WEFT_ERROR_TEXT 1024    /* bytes of weft_error.text */
#define WEFT_NO_SLOT UINT64_MAX /* weft_error.slot: none */
#define WEFT_NO_STEP UINT64_MAX /* weft_error.step: none */

/* Details of a failure. Filled by create calls and by weft_x_error. */
typedef struct weft_error {
  size_t struct_size;
  weft_status code;                       /* WEFT_OK: no error */
  weft_evidence evidence;                 /* how the failure was noticed */
  uint64_t slot;                          /* sequence number of the operation in its order, or WEFT_NO_SLOT */
  uint64_t step;                          /* step of the reducer, or WEFT_NO_STEP */
  uint64_t failed_count;                  /* ranks at fault; may exceed WEFT_ERROR_RANKS */
  int32_t failed_ranks[WEFT_ERROR_RANKS]; /* the first of them, ascending */
  char text[WEFT_ERROR_TEXT];             /* what failed, on which rank, and what to do; zero-terminated */
} weft_error;
#define WEFT_ERROR_INIT {sizeof(weft_error), 0, 0, WEFT_NO_SLOT, WEFT_NO_STEP, 0, {0}, {0}}

/* ---- Types, operations, timeouts ----------------------------------------------------------------------- */

/* Element type of a buffer. */
typedef int32_t weft_dtype;
#define WEFT_DTYPE_U8 1
#define WEFT_DTYPE_I8 2
#define WEFT_DTYPE_U16 3
#define WEFT_DTYPE_I16 4
#define WEFT_DTYPE_U32 5
#define WEFT_DTYPE_I32 6
#define WEFT_DTYPE_U64 7
#define WEFT_DTYPE_I64 8
#define WEFT_DTYPE_F16 9
#define WEFT_DTYPE_BF16 10
#define WEFT_DTYPE_F32 11
#define WEFT_DTYPE_F64 12
#define WEFT_DTYPE_C64 13     /* complex number: pair of F32, real part first */
#define WEFT_DTYPE_C128 14    /* likewise: pair of F64 */
#define WEFT_DTYPE_F8_E4M3 15 /* can be sent, gathered and so on; reductions but WEFT_OP_USER refuse it */
#define WEFT_DTYPE_F8_E5M2 16 /* likewise */
#define WEFT_DTYPE_BOOL 17    /* one byte, 0 or 1 */

/* Reduction. Sums of F16 and BF16 accumulate in F32, in rank order, and are rounded once; twice where hosts
 * add up their own ranks first. Integer sums and products wrap. MIN and MAX return NaN if any input is NaN.
 * AVG and PREMUL_SUM are for floats and complex numbers, bitwise operations for integers. Complex numbers
 * have sums only. Of BOOL, SUM, MAX and BOR are a logical or, PROD, MIN and BAND an and. */
typedef int32_t weft_op;
#define WEFT_OP_SUM 1
#define WEFT_OP_AVG 2 /* sum divided by the number of ranks; in a hook's collective by the step's divisor */
#define WEFT_OP_PROD 3
#define WEFT_OP_MIN 4
#define WEFT_OP_MAX 5
#define WEFT_OP_BAND 6
#define WEFT_OP_BOR 7
#define WEFT_OP_BXOR 8
#define WEFT_OP_PREMUL_SUM 9 /* sum of factor * x; weft_coll_options.factor, equal on all ranks */
#define WEFT_OP_USER 10      /* a function of the program: weft_coll_options.reduction */

/* Kind of an operation. */
typedef int32_t weft_coll;
#define WEFT_COLL_ALL_REDUCE 1
#define WEFT_COLL_REDUCE 2
#define WEFT_COLL_BROADCAST 3
#define WEFT_COLL_ALL_GATHER 4
#define WEFT_COLL_REDUCE_SCATTER 5
#define WEFT_COLL_GATHER 6
#define WEFT_COLL_SCATTER 7
#define WEFT_COLL_ALL_TO_ALL 8
#define WEFT_COLL_BARRIER 9
#define WEFT_COLL_SEND 10
#define WEFT_COLL_RECV 11
#define WEFT_COLL_ALL_GATHER_V 12
#define WEFT_COLL_REDUCE_SCATTER_V 13
#define WEFT_COLL_GATHER_V 14
#define WEFT_COLL_SCATTER_V 15
#define WEFT_COLL_ALL_TO_ALL_V 16
#define WEFT_COLL_SPARSE_ALL_REDUCE 17

/* Timeouts are in milliseconds. 0 is the default that the call names. */
#define WEFT_TIMEOUT_INFINITE INT64_C(-1)
#define WEFT_TIMEOUT_POLL INT64_C(-2) /* check once, do not wait */

#define WEFT_DEFAULT_OP_TIMEOUT_MS 300000      /* of an operation */
#define WEFT_DEFAULT_INIT_TIMEOUT_MS 60000     /* of creating a communicator or a reducer */
#define WEFT_DEFAULT_DESTROY_TIMEOUT_MS 10000  /* of destroying a communicator */
#define WEFT_DEFAULT_HEARTBEAT_TIMEOUT_MS 5000 /* until a silent rank counts as failed */

/* ---- Objects ------------------------------------------------------------------------------------------- */

typedef struct weft_context weft_context; /* an instance of the library; any thread */
typedef struct weft_comm weft_comm; /* ranks with an order of operations; collectives: one thread at a time */
typedef struct weft_request weft_request; /* an asynchronous operation; any thread */
typedef struct weft_stream weft_stream;   /* a stream of a device; defined in device.h */

/* ---- Context ------------------------------------------------------------------------------------------- */

/* Severity of a line of log. */
typedef int32_t weft_log_level;
#define WEFT_LOG_OFF 0   /* nothing */
#define WEFT_LOG_ERROR 1 /* failures */
#define WEFT_LOG_WARN 2  /* probable mistakes */
#define WEFT_LOG_INFO 3  /* what was chosen */
#define WEFT_LOG_DEBUG 4 /* details */

/* Receives a line of log, without newline. Any thread, one at a time per context. Convention 10. */
typedef void (*weft_log_fn)(void* user_data, weft_log_level level, const char* line);

/* Called on every thread that the context starts, before it does anything: to name, pin or instrument it. */
typedef void (*weft_thread_start_fn)(void* user_data, const char* thread_name);

/* Allocates size bytes aligned to alignment (a power of two), or returns NULL. Any thread. */
typedef void* (*weft_alloc_fn)(void* user_data, uint64_t size, uint64_t alignment, int32_t device);
/* Frees memory of the weft_alloc_fn. Any thread. */
typedef void (*weft_free_fn)(void* user_data, void* pointer, uint64_t size, int32_t device);

/* Returns non-zero to end the blocking call of the thread that it runs on, with WEFT_ERR_INTERRUPTED. Runs
 * only on the program's threads inside blocking calls, concurrently if several threads block, under no lock
 * of the library. It may run the program's own code (signal handlers of a language). Convention 10 applies.
 * docs/explanation/threads.md says what each call does then. */
typedef int32_t (*weft_interrupt_fn)(void* user_data);

/* Chooses the threads that drive operations and hooks. */
typedef int32_t weft_progress;
#define WEFT_PROGRESS_THREAD 1 /* a thread of the context, helped by threads that wait; default */
#define WEFT_PROGRESS_CALLER 2 /* only the program's own threads, inside their Weft calls */

/* Options of weft_context_create. */
typedef struct weft_context_options {
  size_t struct_size;
  uint32_t version;         /* WEFT_VERSION_NUMBER of the program's header; default: not checked */
  weft_progress progress;   /* default WEFT_PROGRESS_THREAD */
  weft_log_level log_level; /* default WEFT_LOG_OFF when log is NULL, else WEFT_LOG_WARN */
  weft_log_fn log;          /* default: silent */
  void* log_user_data;
  weft_thread_start_fn thread_start; /* default: none */
  void* thread_start_user_data;
  weft_alloc_fn host_alloc; /* memory not shared between ranks; default: the C library; both or none */
  weft_free_fn host_free;   /* required with host_alloc */
  void* host_alloc_user_data;
  weft_alloc_fn device_alloc; /* must be NULL in this version, else WEFT_ERR_UNSUPPORTED */
  weft_free_fn device_free;   /* must be NULL, as device_alloc */
  void* device_alloc_user_data;
  const char* module_path;  /* folder of backend modules; default: beside libweft.so */
  const char* flight_path;  /* folder for the flight records of communicators that fail (diagnostics.h);
                               created if absent; default: WEFT_FLIGHT, else none is written */
  const char* cuda_runtime; /* the CUDA runtime's file, for WEFT_DEVICE_CUDA; default: WEFT_CUDA_RUNTIME, else
                               the libcudart.so that the process has loaded, else an installed one */
  const char* nccl_library; /* NCCL's file, for the backend nccl, unless the process has already loaded
                               libnccl.so.2; default: WEFT_NCCL_LIBRARY, else the installed one */
  weft_interrupt_fn interrupt; /* called every 100 ms by a thread that blocks in a call; default: none */
  void* interrupt_user_data;
  uint64_t flags; /* WEFT_CONTEXT_* */
} weft_context_options;
/* Calls with a request, and weft_reducer_finish with streams, return at once, and device streams wait for
 * Weft. Without this flag these calls wait on the host. With it, work of Weft's that shares a hardware queue
 * with a waiting stream does not begin, and the operation fails at its deadline (docs/how-to/cuda.md). It has
 * no effect where CUDA loads kernels lazily, which is the default: set CUDA_MODULE_LOADING=EAGER. */
#define WEFT_CONTEXT_STREAM_WAITS UINT64_C(2)
/* clang-format off */
#define WEFT_CONTEXT_OPTIONS_INIT \
  {sizeof(weft_context_options), WEFT_VERSION_NUMBER, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0}
/* clang-format on */

/* Creates an instance of the library.
 * options: NULL for defaults. error: may be NULL.
 * Returns: WEFT_ERR_ARG; WEFT_ERR_VERSION if the header's version is incompatible (another major version or,
 * while that is 0, another minor version); WEFT_ERR_NOMEM; WEFT_ERR_SYSTEM; WEFT_ERR_UNSUPPORTED.
 * Ownership: the caller destroys *context. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_context_create(const weft_context_options* options, weft_context** context,
                                         weft_error* error);

/* Destroys a context: its communicators fail with WEFT_ERR_CANCELLED, its threads end, its callbacks never
 * run again. Handles made from it stay valid until they are destroyed or released; their calls return
 * errors.
 * Returns: WEFT_ERR_TIMEOUT if a callback of the program, or a stage of its hook, has not returned within 10
 * s: the context is destroyed all the same, and the memory that the callback or stage uses is kept;
 * WEFT_ERR_STATE from a callback.
 * Threads: any thread, also while others call its communicators. Since 0.9 */
WEFT_API weft_status weft_context_destroy(weft_context** context);

/* ---- Communicators ------------------------------------------------------------------------------------- */

/* How this process was started. A program reads it before it has a communicator, for example to choose its
 * device: cudaSetDevice(info.local_rank). */
typedef struct weft_launch_info {
  size_t struct_size;
  int32_t rank;       /* this rank; 0 without a launcher */
  int32_t size;       /* number of ranks; 1 without a launcher */
  int32_t local_rank; /* number of this rank among those of its host; -1: the launcher does not say it */
  int32_t local_size; /* ranks on this host; 0: the launcher does not say it */
  int32_t host_index; /* number of this host; -1: the launcher does not say it */
  int32_t host_count; /* hosts of the job; 0: the launcher does not say it */
  char launcher[32];  /* "weft" for Weft's own variables, "torchrun", "Slurm" and so on, "no launcher";
                         zero-terminated */
} weft_launch_info;
#define WEFT_LAUNCH_INFO_INIT {sizeof(weft_launch_info), 0, 0, 0, 0, 0, 0, {0}}

/* Reads the variables of Weft or of the launcher (docs/reference/launchers.md) without contacting other
 * ranks. weft_comm_info has the same fields, found out by the ranks. error: may be NULL. Returns:
 * WEFT_ERR_ARG if the variables contradict each other, or give only the rank or only the size. Threads: any
 * thread, while no thread changes the environment. Since 0.9 */
WEFT_API weft_status weft_launch_query(weft_launch_info* info, weft_error* error);

/* How the ranks find each other. */
typedef int32_t weft_bootstrap;
#define WEFT_BOOTSTRAP_ENV 0       /* WEFT_RANK, WEFT_SIZE, WEFT_STORE, or a launcher's variables */
#define WEFT_BOOTSTRAP_STORE 1     /* rank, size and store of the options */
#define WEFT_BOOTSTRAP_CALLBACK 2  /* rank, size and all_gather of the options */
#define WEFT_BOOTSTRAP_UNIQUE_ID 3 /* rank, size and unique_id of the options */

#define WEFT_UNIQUE_ID_BYTES 256 /* bytes of a unique id */

/* Makes the unique id of one communicator, on its rank 0. The program sends its bytes to the other ranks by
 * its own means, and all ranks create the communicator with them (WEFT_BOOTSTRAP_UNIQUE_ID). They have the
 * addresses of this host and a random key: who has them can join, and needs no other secret.
 * id: receives WEFT_UNIQUE_ID_BYTES bytes. error: may be NULL. Returns: WEFT_ERR_SYSTEM if no port is free.
 * Ownership: the context listens at a port until rank 0 creates the communicator with the same context, or
 * until weft_context_destroy. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_unique_id_create(weft_context* context, void* id, weft_error* error);

/* Gathers `size` bytes of every rank over the program's own channel: all receives (number of ranks) * size
 * bytes in rank order. Returns 0 for success. Called several times, in the same order on all ranks, on the
 * thread that calls weft_comm_create. The channel is trusted: it carries the communicator's key. */
typedef int32_t (*weft_all_gather_fn)(void* user_data, const void* mine, uint64_t size, void* all);

/* Options of weft_comm_create. */
typedef struct weft_comm_options {
  size_t struct_size;
  weft_bootstrap bootstrap; /* default WEFT_BOOTSTRAP_ENV */
  int32_t rank;             /* 0 <= rank < size; ignored for ENV */
  int32_t size;             /* number of ranks; ignored for ENV */
  uint32_t reserved;        /* 0 */
  const char* store;        /* "tcp://host:port", "file:///folder" (that all hosts see) or "unix:@name" (one
                               host), only for STORE; rank 0 serves it unless WEFT_COMM_STORE_EXTERNAL is set */
  const void* secret;    /* the job's secret, 16 to 256 bytes; default: none, and only loopback addresses or
                            a folder; not for UNIQUE_ID */
  uint64_t secret_bytes; /* bytes at secret */
  weft_all_gather_fn all_gather; /* only for CALLBACK */
  void* all_gather_user_data;
  const char* backend;          /* "shm", "loopback", ...; default: WEFT_BACKEND, else the best available */
  int64_t init_timeout_ms;      /* default 60 s */
  int64_t op_timeout_ms;        /* default deadline of operations, 300 s */
  uint64_t arena_limit_bytes;   /* address space of the arena; default 64 GiB. Memory is used as allocated */
  uint64_t flags;               /* WEFT_COMM_* */
  int64_t heartbeat_timeout_ms; /* a rank that sends no heartbeat for so long has failed
                                   (WEFT_EVIDENCE_HEARTBEAT), whatever the deadlines of operations; at least
                                   100; default WEFT_HEARTBEAT_MS, else 5 s; WEFT_TIMEOUT_INFINITE: no limit,
                                   for debuggers. The smallest of all ranks' applies to all. A rank that
                                   computes still sends heartbeats, in either progress mode */
  int32_t device;        /* index of this rank's CUDA device, with WEFT_COMM_DEVICE; default: the calling
                            thread's current device */
  uint32_t reserved2;    /* 0 */
  const void* unique_id; /* only for UNIQUE_ID: WEFT_UNIQUE_ID_BYTES bytes that rank 0 has made */
} weft_comm_options;
#define WEFT_COMM_STORE_EXTERNAL UINT64_C(1) /* the store is a separate program (`weft store`) */
#define WEFT_COMM_DEVICE UINT64_C(2)         /* weft_comm_options.device is set */
#define WEFT_COMM_OPTIONS_INIT \
  {sizeof(weft_comm_options), 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, NULL}

/* Connects to the other ranks and forms a communicator. Blocks at most init_timeout_ms.
 * options: NULL: everything from the environment. error: may be NULL.
 * Returns: WEFT_ERR_ARG; WEFT_ERR_TIMEOUT naming the ranks that never came; WEFT_ERR_AUTH; WEFT_ERR_VERSION;
 * WEFT_ERR_MISMATCH for different sizes or a rank that comes twice; WEFT_ERR_PEER_FAILED;
 * WEFT_ERR_UNAVAILABLE; WEFT_ERR_SYSTEM; WEFT_ERR_NOMEM; WEFT_ERR_INTERRUPTED.
 * Ownership: the caller destroys *comm. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_create(weft_context* context, const weft_comm_options* options,
                                      weft_comm** comm, weft_error* error);

/* Leaves the communicator. Outstanding operations complete with WEFT_ERR_CANCELLED here; operations of other
 * ranks that still need this rank fail with WEFT_ERR_PEER_FAILED. Waits at most 10 s until the others have
 * received what was sent, and as long for callbacks. Frees arena memory: buffers and views in it end here.
 * Returns: WEFT_ERR_TIMEOUT as weft_context_destroy; WEFT_ERR_STATE from a callback.
 * Threads: any thread; no other call on this handle may be in progress (weft_comm_abort ends those that
 * block). Since 0.9 */
WEFT_API weft_status weft_comm_destroy(weft_comm** comm);

/* Returns the caller's rank. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_rank(const weft_comm* comm, int32_t* rank);
/* Returns the number of ranks. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_size(const weft_comm* comm, int32_t* size);

#define WEFT_COLOR_NONE INT32_MIN /* take part in a split without joining a part: *part is NULL */

/* Splits a communicator: ranks with one color form a part, ordered by key, then by old rank. Collective;
 * blocks at most the parent's init timeout. A part inherits the parent's options.
 * Returns: as weft_comm_create; errors name ranks of the parent. Ownership: the caller destroys *part.
 * Threads: one thread at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_comm_split(weft_comm* comm, int32_t color, int32_t key, weft_comm** part,
                                     weft_error* error);

/* Fails the communicator on all ranks with WEFT_ERR_ABORTED. Returns at once; later calls return WEFT_OK and
 * change nothing.
 * reason: may be NULL. Threads: any thread, also from callbacks. Since 0.9 */
WEFT_API weft_status weft_comm_abort(weft_comm* comm, const char* reason);

/* Returns WEFT_OK while the communicator works, else the code of its first failure. error (may be NULL)
 * describes that failure. While the communicator works error has code 0, and its text says why the last
 * refused call was refused (with WEFT_ERR_ARG, for example): a collective, weft_comm_alloc, weft_comm_free or
 * weft_flight_write. It is empty if none was refused.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_error(const weft_comm* comm, weft_error* error);

/* Allocates memory that other ranks reach directly (the arena): the fastest place for buffers. Aligned to
 * 4096 bytes, zeroed, populated. Local call.
 * Returns: WEFT_ERR_ARG for size 0; WEFT_ERR_NOMEM at the arena's limit or without memory.
 * Ownership: until weft_comm_free or weft_comm_destroy; over shm not for forked children.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_alloc(weft_comm* comm, uint64_t size_bytes, void** memory);
/* Frees memory of weft_comm_alloc, of any thread. No operation may be using it.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_free(weft_comm* comm, void* memory);

/* ---- Collectives --------------------------------------------------------------------------------------- */

/* Options of a collective, send or receive. */
typedef struct weft_coll_options {
  size_t struct_size;
  int64_t timeout_ms; /* the operation's deadline from the call; default: the communicator's op_timeout_ms */
  const weft_stream* stream; /* where the buffers lie, and the order of device work; default host */
  double factor;             /* required for WEFT_OP_PREMUL_SUM, refused otherwise */
  uint64_t flags;            /* 0 */
  const struct weft_reduction* reduction; /* required for WEFT_OP_USER, refused otherwise */
} weft_coll_options;
#define WEFT_COLL_OPTIONS_INIT {sizeof(weft_coll_options), 0, NULL, 0.0, 0, NULL}

/* Common to all collectives:
 *
 * request: NULL: the call blocks until the operation is complete and returns its result. Otherwise the call
 *   returns WEFT_OK once the operation is queued; *request has the result, and the caller releases it.
 * options: NULL for defaults. With a stream of a device both buffers lie in that device's memory, on all
 *   ranks. The operation runs after work that is already on the stream; later work on the stream waits for
 *   it, also if it fails. In WEFT_PROGRESS_CALLER the program waits for the request before the stream.
 * count: 0 is legal and still synchronises; pointers may then be NULL.
 * Buffers are aligned to the dtype's size. src == dst (in place) is allowed where the call says so; any
 *   other overlap is WEFT_ERR_ARG.
 * Returns: WEFT_ERR_ARG; WEFT_ERR_UNSUPPORTED for an op that the dtype does not have; WEFT_ERR_STATE from a
 *   callback; WEFT_ERR_UNAVAILABLE for a stream without CUDA; WEFT_ERR_NOMEM; the communicator's failure. A
 *   blocking call also returns WEFT_ERR_TIMEOUT, WEFT_ERR_MISMATCH, WEFT_ERR_PEER_FAILED, WEFT_ERR_ABORTED,
 *   WEFT_ERR_CANCELLED, WEFT_ERR_INTERRUPTED; so does weft_request_wait.
 * Threads: one thread at a time per communicator. Since 0.9 */

/* dst[i] = op over all ranks of src[i], on every rank, with the same bits on all. In place allowed. */
WEFT_API weft_status weft_all_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     weft_dtype dtype, weft_op op, const weft_coll_options* options,
                                     weft_request** request);
/* Like all_reduce, with the result on root only; elsewhere dst is not used and may be NULL. In place
 * allowed. */
WEFT_API weft_status weft_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                 weft_dtype dtype, weft_op op, int32_t root, const weft_coll_options* options,
                                 weft_request** request);
/* Copies root's buffer to all ranks. */
WEFT_API weft_status weft_broadcast(weft_comm* comm, void* buffer, uint64_t count, weft_dtype dtype,
                                    int32_t root, const weft_coll_options* options, weft_request** request);
/* Gathers count elements of every rank, in rank order, on all ranks: dst holds size * count elements.
 * In place: src == dst + rank * count. */
WEFT_API weft_status weft_all_gather(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     weft_dtype dtype, const weft_coll_options* options,
                                     weft_request** request);
/* Reduces src (size * count elements); dst receives block `rank` of the result, count elements.
 * In place: dst == src + rank * count. Other blocks of src are intact. */
WEFT_API weft_status weft_reduce_scatter(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                         weft_dtype dtype, weft_op op, const weft_coll_options* options,
                                         weft_request** request);
/* Gathers count elements of every rank at root, in rank order. dst may be NULL elsewhere.
 * In place at root: src == dst + rank * count. */
WEFT_API weft_status weft_gather(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                 weft_dtype dtype, int32_t root, const weft_coll_options* options,
                                 weft_request** request);
/* Sends block r of root's src to rank r, count elements. src may be NULL elsewhere.
 * In place at root: dst == src + rank * count. */
WEFT_API weft_status weft_scatter(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                  weft_dtype dtype, int32_t root, const weft_coll_options* options,
                                  weft_request** request);
/* Sends block r of src to rank r; block r of dst comes from rank r; count elements each. Not in place. */
WEFT_API weft_status weft_all_to_all(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     weft_dtype dtype, const weft_coll_options* options,
                                     weft_request** request);
/* Returns (or completes) when all ranks have called it. */
WEFT_API weft_status weft_barrier(weft_comm* comm, const weft_coll_options* options, weft_request** request);
/* Sends count elements to another rank. Sends and receives of a pair of ranks match in order; count and
 * dtype must agree. They take no part in the order of collectives. A blocking send may return before the
 * receive is called. A rank cannot send to itself. */
WEFT_API weft_status weft_send(weft_comm* comm, const void* src, uint64_t count, weft_dtype dtype,
                               int32_t peer, const weft_coll_options* options, weft_request** request);
/* Receives count elements from another rank; see weft_send. */
WEFT_API weft_status weft_recv(weft_comm* comm, void* dst, uint64_t count, weft_dtype dtype, int32_t peer,
                               const weft_coll_options* options, weft_request** request);

/* Returns the code of this thread's last call that failed, with any error but WEFT_ERR_NOT_DONE, and its
 * details; WEFT_OK if none has. Also for calls without an object's error (weft_comm_alloc, for example).
 * Calls that succeed do not change it. error may be NULL. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_last_error(weft_error* error);

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Waits until the request is complete, driving progress meanwhile, and returns its result.
 * timeout_ms: 0 is 300 s.
 * Returns: WEFT_ERR_NOT_DONE when the timeout passes, WEFT_ERR_INTERRUPTED when the program interrupts the
 * wait (the operation continues in both cases).
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_wait(weft_request* request, int64_t timeout_ms);
/* Sets *done to 1 if the request is complete, else 0. Returns the result when complete, WEFT_OK before.
 * Never blocks; in WEFT_PROGRESS_CALLER it advances operations. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_test(weft_request* request, uint8_t* done);

/* Runs once, when the request is complete; immediately, on the calling thread, if it is already. */
typedef void (*weft_complete_fn)(void* user_data, weft_status status);
/* Sets the completion callback.
 * Returns: WEFT_ERR_STATE if the request has one. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_on_complete(weft_request* request, weft_complete_fn callback,
                                              void* user_data);
/* Returns the request's result and its details; WEFT_ERR_NOT_DONE before it completes.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_error(weft_request* request, weft_error* error);
/* Releases the handle, complete or not, and sets the pointer to NULL; the operation continues.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_release(weft_request** request);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_CORE_H */
