/* Weft: gradient synchronisation and collective communication behind a C ABI.
 *
 * This is the only header a user needs. Anything that is not in it is unsupported.
 *
 * Conventions
 *  1. Every fallible call returns weft_status. WEFT_OK (0) is the only success; handle codes you do not know.
 *  2. Results come last, through pointers, and are NULL or 0 after a failure.
 *  3. Objects are pointers to incomplete structs. X_create makes, X_destroy(&x) ends and nulls the pointer
 * and accepts NULL objects; requests are released instead. Any order of destruction is legal.
 *  4. Input structs start with struct_size; fill them with the WEFT_X_INIT macro, the weft_x_init function
 * (where there is one), or zeros plus struct_size. Zero means the default in every field, and each field
 * names its default. Non-zero bytes beyond what the library knows, and unknown flag bits, are refused with
 * WEFT_ERR_ARG. Arrays of structs carry the size of an element. Output structs carry the caller's struct_size
 * and are filled up to it.
 *  5. Counts and offsets are uint64_t and count elements unless the name says bytes. Times are in the unit
 * their name says. Where zero is a value of its own there is a constant for it (WEFT_TIMEOUT_POLL,
 * WEFT_BEGIN_NO_DATA).
 *  6. Buffers of an asynchronous call belong to the library from the call until the request completes. A
 * request completes exactly once: ok, failed, cancelled or timed out; also when its communicator fails or is
 * destroyed.
 *  7. A wait's timeout only stops waiting. An operation's deadline fails the communicator; its requests
 * complete once nobody can write to their buffers any more. In-place buffers are then undefined, separate
 * sources are intact. One exception: a rank that was stopped in the middle of a write into arena memory is
 * waited for 1 s; after that it may still finish that write into the failed operation's buffers, and what is
 * freed in this communicator is not handed out again.
 *  8. Every rank makes the same collective calls on a communicator in the same order, with matching
 * arguments. A difference is WEFT_ERR_MISMATCH on the ranks that see it and names both sides; a call that
 * never comes is WEFT_ERR_TIMEOUT and names the absent ranks.
 *  9. Threads: "any thread" means concurrent calls are fine; "one thread at a time" means the caller
 * serialises them.
 * 10. Callbacks run on any thread, never concurrently for one object, and never after the destroy of their
 * object has returned WEFT_OK. Inside a callback only calls that read (rank, size, error, version) and test,
 * on_complete, release and abort are allowed; others return WEFT_ERR_STATE. Inside a log, thread-start or
 * allocator callback every call on an object does: these run under the library's locks.
 * 11. The library keeps no global state, installs no signal handlers, prints nothing and never exits. In a
 * forked child calls on inherited objects return WEFT_ERR_FORKED, and shm's arenas and views are not there.
 */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

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

/* ---- Version ------------------------------------------------------------------------------------------- */

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 9
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION_NUMBER (WEFT_VERSION_MAJOR * 10000u + WEFT_VERSION_MINOR * 100u + WEFT_VERSION_PATCH)

/* The library's version as WEFT_VERSION_NUMBER. Threads: any thread. Since 0.9 */
WEFT_API uint32_t weft_version(void);

/* ---- Status -------------------------------------------------------------------------------------------- */

typedef int32_t weft_status;

#define WEFT_OK 0
#define WEFT_ERR_ARG 1          /* an argument is wrong; nothing was done */
#define WEFT_ERR_STATE 2        /* the object is not in a state that allows this call */
#define WEFT_ERR_NOMEM 3        /* memory could not be had */
#define WEFT_ERR_UNSUPPORTED 4  /* this combination does not exist, or not in this version */
#define WEFT_ERR_UNAVAILABLE 5  /* a backend or library is not available; the text says why */
#define WEFT_ERR_TIMEOUT 6      /* a deadline passed: the operation failed, and with it its communicator */
#define WEFT_ERR_NOT_DONE 7     /* a wait's timeout passed; the operation goes on */
#define WEFT_ERR_MISMATCH 8     /* ranks disagree: operation, dtype, count, root, plan, parameters, hook */
#define WEFT_ERR_PEER_FAILED 9  /* another rank died or left */
#define WEFT_ERR_ABORTED 10     /* weft_comm_abort was called, here or on another rank */
#define WEFT_ERR_CANCELLED 11   /* the object was destroyed while the operation was outstanding */
#define WEFT_ERR_AUTH 12        /* the other side does not hold the job's secret */
#define WEFT_ERR_VERSION 13     /* incompatible versions of Weft */
#define WEFT_ERR_SYSTEM 14      /* a system call failed; the text holds its name and error */
#define WEFT_ERR_FORKED 15      /* the object was inherited by fork */
#define WEFT_ERR_HOOK 16        /* a communication hook failed */
#define WEFT_ERR_MINORITY 17    /* shrink: the survivors are no majority of the last membership */
#define WEFT_ERR_INTERNAL 18    /* a defect in Weft; please report it with the text */
#define WEFT_ERR_INTERRUPTED 19 /* the program ended a blocking call, here or on another rank */
#define WEFT_ERR_STEP_FAILED \
  20 /* a rank called weft_reducer_fail; the text is that rank's. The next step works */

/* A static text for a status code, "unknown status" for others. Threads: any thread. Since 0.9 */
WEFT_API const char* weft_status_string(weft_status status);

/* What an error rests on. */
#define WEFT_EVIDENCE_NONE 0
#define WEFT_EVIDENCE_LOCAL 1      /* found by this rank in its own arguments or state */
#define WEFT_EVIDENCE_CONNECTION 2 /* a control connection closed or broke */
#define WEFT_EVIDENCE_PROCESS 3    /* the process is gone */
#define WEFT_EVIDENCE_HEARTBEAT 4  /* no sign of life within the heartbeat budget */
#define WEFT_EVIDENCE_DEADLINE 5   /* an operation's deadline passed */
#define WEFT_EVIDENCE_DESCRIPTOR 6 /* descriptors of one slot differ */
#define WEFT_EVIDENCE_REPORT 7     /* another rank reported the failure */

#define WEFT_ERROR_RANKS 64
#define WEFT_ERROR_TEXT 1024
#define WEFT_NO_SLOT UINT64_MAX
#define WEFT_NO_STEP UINT64_MAX

/* The details of a failure, filled by create calls and by weft_x_error. */
typedef struct weft_error {
  size_t struct_size;                     /* set by the caller */
  int32_t code;                           /* weft_status */
  int32_t evidence;                       /* WEFT_EVIDENCE_* */
  uint64_t slot;                          /* sequence number of the operation in its order, or WEFT_NO_SLOT */
  uint64_t step;                          /* step of the reducer, or WEFT_NO_STEP */
  uint64_t failed_count;                  /* ranks at fault; may exceed WEFT_ERROR_RANKS */
  int32_t failed_ranks[WEFT_ERROR_RANKS]; /* the first of them, ascending */
  char text[WEFT_ERROR_TEXT];             /* what happened, to whom, and what to do; zero-terminated */
} weft_error;
#define WEFT_ERROR_INIT {sizeof(weft_error), 0, 0, WEFT_NO_SLOT, WEFT_NO_STEP, 0, {0}, {0}}

/* ---- Types, operations, devices, timeouts -------------------------------------------------------------- */

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
/* Complex numbers of parameters (weft_param) alone: pairs of F32 or F64, real part first, and seen as such by
 * buckets and hooks: one more dimension, of 2. */
#define WEFT_DTYPE_C64 13
#define WEFT_DTYPE_C128 14
/* Floats of a byte travel (all_gather, broadcast, send and so on); reductions refuse them by name. */
#define WEFT_DTYPE_F8_E4M3 15
#define WEFT_DTYPE_F8_E5M2 16

/* Reductions. Sums of f16 and bf16 accumulate in f32, in rank order, and are rounded once; twice where hosts
 * or NUMA nodes add up their own first. Integer sums and products wrap. MIN and MAX return NaN if any input
 * is NaN. AVG and PREMUL_SUM are for floats, bitwise ones for integers. */
typedef int32_t weft_op;
#define WEFT_OP_SUM 1
#define WEFT_OP_AVG 2 /* sum times 1/size; in a hook's collective: divided by the step's divisor */
#define WEFT_OP_PROD 3
#define WEFT_OP_MIN 4
#define WEFT_OP_MAX 5
#define WEFT_OP_BAND 6
#define WEFT_OP_BOR 7
#define WEFT_OP_BXOR 8
#define WEFT_OP_PREMUL_SUM 9 /* sum of factor * x; weft_coll_options.factor, equal on all ranks */

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

typedef int32_t weft_device_kind;
#define WEFT_DEVICE_HOST 0
#define WEFT_DEVICE_CUDA 1

/* Where and in which order device work runs. A NULL pointer to a stream means the host. handle is borrowed:
 * for WEFT_DEVICE_CUDA a cudaStream_t, for which NULL is a valid value. */
typedef struct weft_stream {
  size_t struct_size;
  int32_t kind;   /* WEFT_DEVICE_*; default host */
  int32_t device; /* index of the device; 0 for the host */
  void* handle;
} weft_stream;

/* Timeouts are in milliseconds. 0 is the default that the call names. */
#define WEFT_TIMEOUT_INFINITE INT64_C(-1)
#define WEFT_TIMEOUT_POLL INT64_C(-2) /* look once, do not wait */

#define WEFT_DEFAULT_OP_TIMEOUT_MS 300000
#define WEFT_DEFAULT_INIT_TIMEOUT_MS 60000
#define WEFT_DEFAULT_DESTROY_TIMEOUT_MS 10000
#define WEFT_DEFAULT_HEARTBEAT_TIMEOUT_MS 5000

/* ---- Objects ------------------------------------------------------------------------------------------- */

typedef struct weft_context weft_context; /* one instance of the library; any thread */
typedef struct weft_comm weft_comm; /* ranks with an order of operations; collectives: one thread at a time */
typedef struct weft_request weft_request; /* one asynchronous operation; any thread */
typedef struct weft_reducer weft_reducer; /* gradient sync for one list of parameters; see its calls */
typedef struct weft_hook weft_hook;       /* how one bucket is communicated; one thread at a time */

/* ---- Context ------------------------------------------------------------------------------------------- */

#define WEFT_LOG_OFF 0
#define WEFT_LOG_ERROR 1
#define WEFT_LOG_WARN 2
#define WEFT_LOG_INFO 3
#define WEFT_LOG_DEBUG 4

/* Receives one line of log, without newline. Any thread, one at a time per context; a callback that may call
 * nothing (convention 10). */
typedef void (*weft_log_fn)(void* user_data, int32_t level, const char* line);

/* Called on every thread that the context starts, before it does anything: to name, pin or instrument it. */
typedef void (*weft_thread_start_fn)(void* user_data, const char* thread_name);

/* Allocates size bytes aligned to alignment (a power of two), or returns NULL. Any thread. */
typedef void* (*weft_alloc_fn)(void* user_data, uint64_t size, uint64_t alignment, int32_t device);
typedef void (*weft_free_fn)(void* user_data, void* pointer, uint64_t size, int32_t device);

/* Returns non-zero to end the blocking call of the thread that it runs on, with WEFT_ERR_INTERRUPTED. Runs
 * only on the program's threads inside blocking calls, several at a time if several block, under no lock of
 * the library; may run the program's own code (a language's signal handlers), and is a callback (convention
 * 10).
 *
 * Its effects: a blocking collective, a call of a reducer or an averager that communicates, and
 * weft_comm_split fail their communicator on all ranks; the text names the interrupted rank. The call returns
 * when nobody can write to its buffers any more (convention 7): mostly at once, after about a second if a
 * rank or a hook's stage is in the middle of its work. A create call that communicates, and weft_comm_shrink,
 * fail on all ranks. weft_request_wait and weft_reducer_wait_param only stop waiting: the operation goes on,
 * and so does the communicator. A destroy destroys its object all the same, without waiting for the others
 * any longer. Not interrupted are a program's own all_gather while it runs, and MPI's calls where one thread
 * alone may make them (docs/threading.md). */
typedef int32_t (*weft_interrupt_fn)(void* user_data);

/* Who drives operations and hooks: a thread of the context, helped by whoever waits; or only the program's
 * own threads, inside their Weft calls. */
typedef int32_t weft_progress;
#define WEFT_PROGRESS_THREAD 1 /* default */
#define WEFT_PROGRESS_CALLER 2

typedef struct weft_context_options {
  size_t struct_size;
  uint32_t version;  /* WEFT_VERSION_NUMBER of the program's header; default: not checked */
  int32_t progress;  /* WEFT_PROGRESS_*; default thread */
  int32_t log_level; /* WEFT_LOG_*; default WEFT_LOG_OFF when log is NULL, else WEFT_LOG_WARN */
  weft_log_fn log;   /* default: silent */
  void* log_user_data;
  weft_thread_start_fn thread_start; /* default: none */
  void* thread_start_user_data;
  weft_alloc_fn host_alloc; /* memory not shared between ranks; default: the C library; both or none */
  weft_free_fn host_free;
  void* host_alloc_user_data;
  weft_alloc_fn device_alloc; /* NULL: WEFT_ERR_UNSUPPORTED in this version */
  weft_free_fn device_free;
  void* device_alloc_user_data;
  const char* module_path;  /* folder of backend modules; default: beside libweft.so */
  const char* flight_path;  /* folder into which each rank of a communicator that fails (other than by its own
                               destroy) writes what it did last, for `weft trace explain`; made if absent;
                               calls that fail return once it is written, or after 0.5 s. Default: WEFT_FLIGHT,
                               else nothing is written */
  const char* cuda_runtime; /* the CUDA runtime's file, for WEFT_DEVICE_CUDA; default: WEFT_CUDA_RUNTIME, else
                               the libcudart.so that the process has loaded, else an installed one */
  const char* nccl_library; /* NCCL's file, for the backend nccl, unless the process has loaded libnccl.so.2
                               already; default: WEFT_NCCL_LIBRARY, else the installed one */
  weft_interrupt_fn interrupt; /* asked every 100 ms by a thread that blocks in a call; default: none */
  void* interrupt_user_data;
  uint64_t flags; /* WEFT_CONTEXT_* */
} weft_context_options;
/* Never make a device stream wait for something that the host has still to start: calls that would, wait on
 * the host instead. For programs that call functions which wait for the whole device (cudaFree, say) while
 * an operation or a step is open. */
#define WEFT_CONTEXT_HOST_WAITS UINT64_C(1)
/* clang-format off */
#define WEFT_CONTEXT_OPTIONS_INIT \
  {sizeof(weft_context_options), WEFT_VERSION_NUMBER, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0}
/* clang-format on */

/* Fill options with its defaults; size is sizeof *options as the caller knows it. Returns WEFT_ERR_ARG if
 * NULL or too small. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_context_options_init(weft_context_options* options, size_t size);

/* Create an instance of the library. options may be NULL.
 * Returns WEFT_ERR_ARG; WEFT_ERR_VERSION if the header's version is incompatible: another major
 * version or, while that is 0, another minor one; WEFT_ERR_NOMEM; WEFT_ERR_SYSTEM. error may be NULL.
 * Ownership: the caller destroys *context. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_context_create(const weft_context_options* options, weft_context** context,
                                         weft_error* error);

/* Destroy a context: its communicators fail with WEFT_ERR_CANCELLED, its threads end, its callbacks never run
 * again. Handles made from it stay valid until they are destroyed or released; their calls return errors.
 * Returns WEFT_ERR_TIMEOUT if a callback of the program, or a stage of its hook, has not returned within
 * 10 s: the context is destroyed all the same, the callback or stage left to itself, with what it touches.
 * Threads: any thread, also while others call its communicators; not from a callback (WEFT_ERR_STATE).
 * Since 0.9 */
WEFT_API weft_status weft_context_destroy(weft_context** context);

typedef struct weft_backend_info {
  size_t struct_size;
  char name[32];
  uint8_t available; /* 0 or 1 */
  uint8_t is_module; /* loaded at run time */
  uint8_t reserved[6];
  char reason[512]; /* why not available, or what it will use */
} weft_backend_info;

/* How many backends this library knows. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_backend_count(weft_context* context, uint64_t* count);
/* Describe backend index; modules were loaded with the context. Returns WEFT_ERR_ARG beyond the count.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_backend_query(weft_context* context, uint64_t index, weft_backend_info* info);

typedef struct weft_device_info {
  size_t struct_size;
  int32_t device_count; /* 0 where not available */
  uint8_t available;    /* 0 or 1 */
  uint8_t reserved[3];
  char reason[512]; /* why not available, or what it uses */
} weft_device_info;

/* Describe the devices of a kind; loads their library the first time. Returns WEFT_ERR_ARG for an unknown
 * kind and for WEFT_DEVICE_HOST. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_device_query(weft_context* context, int32_t device_kind, weft_device_info* info);

/* Whether a backend executes a collective on a dtype with an op (0 where the collective has none) in memory
 * of a device kind. Returns WEFT_OK with *supported 0 or 1; WEFT_ERR_ARG for unknown values. Threads: any
 * thread. Since 0.9 */
WEFT_API weft_status weft_capability(weft_context* context, const char* backend, int32_t coll, int32_t dtype,
                                     int32_t op, int32_t device_kind, uint8_t* supported);

/* ---- Communicators ------------------------------------------------------------------------------------- */

typedef int32_t weft_bootstrap;
#define WEFT_BOOTSTRAP_ENV 0      /* WEFT_RANK, WEFT_SIZE, WEFT_STORE, or a launcher's variables */
#define WEFT_BOOTSTRAP_STORE 1    /* rank, size and store below */
#define WEFT_BOOTSTRAP_CALLBACK 2 /* rank, size and all_gather below */

/* All-gather `size` bytes among the ranks over the program's own channel: all receives comm size * size bytes
 * in rank order. Returns 0 for success. Called on the thread that calls weft_comm_create, several times, in
 * the same order on all ranks. The channel is trusted: it carries the communicator's key. */
typedef int32_t (*weft_all_gather_fn)(void* user_data, const void* mine, uint64_t size, void* all);

typedef struct weft_comm_options {
  size_t struct_size;
  int32_t bootstrap;  /* WEFT_BOOTSTRAP_*; default environment */
  int32_t rank;       /* 0 <= rank < size; ignored for ENV */
  int32_t size;       /* number of ranks; ignored for ENV */
  uint32_t reserved;  /* 0 */
  const char* store;  /* "tcp://host:port" or "unix:@name" (one host); rank 0 serves it unless
                         WEFT_COMM_STORE_EXTERNAL is set; ignored but for STORE */
  const void* secret; /* the job's secret, 16 to 256 bytes; default: none, and then loopback addresses only */
  uint64_t secret_bytes;
  weft_all_gather_fn all_gather;
  void* all_gather_user_data;
  const char* backend;          /* "shm", "loopback", ...; default: WEFT_BACKEND, else the best available */
  int64_t init_timeout_ms;      /* default 60 s */
  int64_t op_timeout_ms;        /* default deadline of operations, 300 s */
  uint64_t arena_limit_bytes;   /* address space reserved for the arena; default 64 GiB. Memory is used as
                                   allocated */
  uint64_t flags;               /* WEFT_COMM_* */
  int64_t heartbeat_timeout_ms; /* a rank of which nothing is heard for so long has failed
                                   (WEFT_EVIDENCE_HEARTBEAT), however long operations may take; at least 100;
                                   default WEFT_HEARTBEAT_MS, else 5 s. WEFT_TIMEOUT_INFINITE: silence is no
                                   evidence, for debuggers and the like. The smallest of all ranks' counts for
                                   all. A rank that computes is heard, in either progress mode */
  int32_t device;     /* index of this rank's CUDA device, with WEFT_COMM_DEVICE; default: the calling
                         thread's current device */
  uint32_t reserved2; /* 0 */
} weft_comm_options;
#define WEFT_COMM_STORE_EXTERNAL UINT64_C(1) /* the store is a program of its own (`weft store`) */
#define WEFT_COMM_DEVICE UINT64_C(2)         /* weft_comm_options.device is set */
#define WEFT_COMM_OPTIONS_INIT \
  {sizeof(weft_comm_options), 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0}

WEFT_API weft_status weft_comm_options_init(weft_comm_options* options, size_t size);

/* Meet the other ranks and form a communicator. options may be NULL: everything from the environment.
 * Returns WEFT_ERR_ARG; WEFT_ERR_TIMEOUT naming the ranks that never came; WEFT_ERR_AUTH; WEFT_ERR_VERSION;
 * WEFT_ERR_MISMATCH for other sizes or a rank twice; WEFT_ERR_PEER_FAILED; WEFT_ERR_UNAVAILABLE;
 * WEFT_ERR_SYSTEM; WEFT_ERR_NOMEM. Blocks at most init_timeout_ms. error may be NULL. Ownership: the caller
 * destroys *comm. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_create(weft_context* context, const weft_comm_options* options,
                                      weft_comm** comm, weft_error* error);

/* Leave the communicator. Outstanding operations complete with WEFT_ERR_CANCELLED here; operations of other
 * ranks that still need this one fail with WEFT_ERR_PEER_FAILED. Waits at most 10 s for the others to have
 * what was sent and as long for callbacks: WEFT_ERR_TIMEOUT as for weft_context_destroy. Frees arena memory,
 * so buffers and views from it end here. Threads: any thread, not from a callback, and no other call on this
 * handle may be in progress: weft_comm_abort ends those that block. Since 0.9 */
WEFT_API weft_status weft_comm_destroy(weft_comm** comm);

/* Rank of the caller and number of ranks. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_rank(const weft_comm* comm, int32_t* rank);
WEFT_API weft_status weft_comm_size(const weft_comm* comm, int32_t* size);

typedef struct weft_comm_info {
  size_t struct_size;
  int32_t rank;
  int32_t size;
  int32_t local_size;    /* ranks that share this host's memory */
  uint8_t failed;        /* 0 or 1 */
  uint8_t authenticated; /* 1: members proved that they hold the job's secret, or the communicator's key that
                            the program's own all-gather handed them; 0: there is none */
  uint8_t reserved[2];
  char backend[32];
  char algorithm[32];      /* of the last completed collective */
  uint64_t operations;     /* completed on this communicator */
  uint64_t bytes_shared;   /* payload bytes this rank moved through shared memory, staged or mapped */
  uint64_t bytes_direct;   /* payload bytes this rank read or wrote in other processes' private memory */
  uint64_t bytes_sent;     /* payload bytes handed to a transport */
  uint64_t bytes_received; /* payload bytes received from a transport */
  uint64_t arena_bytes;    /* memory of this rank's arena that is populated */
  char transports[128];    /* what messages travel on ("tcp/eth0"), and at which sizes shm changes its path */
} weft_comm_info;

/* Topology, backend and byte counters. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_query(const weft_comm* comm, weft_comm_info* info);

#define WEFT_COLOR_NONE INT32_MIN /* take part in the split without joining a part: *part is NULL */

/* Split by color; ranks are ordered by key, then by old rank. Collective: all ranks call it; blocks at most
 * the parent's init timeout. The part inherits the parent's options. Errors as for weft_comm_create; they
 * name ranks of the parent. Threads: one thread at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_comm_split(weft_comm* comm, int32_t color, int32_t key, weft_comm** part,
                                     weft_error* error);

typedef struct weft_shrink_options {
  size_t struct_size;
  int64_t timeout_ms; /* default: the communicator's init timeout */
  uint64_t flags;     /* WEFT_SHRINK_* */
} weft_shrink_options;
/* Of a communicator of two ranks one may go on alone. The other one, if it lives, may then do so as well:
 * neither can tell a dead peer from one that it cannot reach. */
#define WEFT_SHRINK_LAST_OF_TWO UINT64_C(1)
#define WEFT_SHRINK_OPTIONS_INIT {sizeof(weft_shrink_options), 0, 0}

/* Make a communicator of the survivors of a failed one, with the same options; ranks keep their order.
 * Collective over the survivors: each calls it, once its own communicator has failed (abort fails one that
 * still works). They agree on who is left, by a majority of the ranks of the last communicator; ranks that
 * are lost during the call are left out as well. The old communicator stays failed; destroy it when it is
 * no longer needed. Peak memory: where ranks share memory (shm), what is allocated
 * (weft_comm_info.arena_bytes) is needed a second time, until every survivor has destroyed the old
 * communicator and ranks that were left out have ended; WEFT_ERR_NOMEM before any of it is taken if the
 * machine has not as much for all of them. options may be NULL. Returns WEFT_ERR_STATE while the
 * communicator works, or was shrunk already; WEFT_ERR_MINORITY; WEFT_ERR_TIMEOUT naming survivors that did
 * not call it; WEFT_ERR_PEER_FAILED if the others went on without this rank; otherwise as weft_comm_create.
 * Errors name ranks of the old communicator. Ownership: the caller destroys *survivors. Threads: one thread
 * at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_comm_shrink(weft_comm* comm, const weft_shrink_options* options,
                                      weft_comm** survivors, weft_error* error);

/* Fail the communicator on all ranks with WEFT_ERR_ABORTED and this reason (may be NULL). Returns at once,
 * repeated calls are WEFT_OK and change nothing. Threads: any thread, also from callbacks. Since 0.9 */
WEFT_API weft_status weft_comm_abort(weft_comm* comm, const char* reason);

/* WEFT_OK while the communicator works, else the code of its first failure, described in error (may be NULL).
 * Of one that works error has code 0, and its text says why the last of its collective calls that was refused
 * was (WEFT_ERR_ARG, say); it is empty if none was. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_error(const weft_comm* comm, weft_error* error);

/* Memory that peers reach directly: the fastest place for buffers. Aligned to 4096 bytes, zeroed, populated.
 * Local call. weft_comm_free takes any thread's; the memory must not be in use by an operation. Returns
 * WEFT_ERR_ARG for size 0, WEFT_ERR_NOMEM when the limit or the machine's memory is reached. Ownership: until
 * weft_comm_free or weft_comm_destroy, and over shm not for forked children. Threads: any. Since 0.9 */
WEFT_API weft_status weft_comm_alloc(weft_comm* comm, uint64_t size_bytes, void** memory);
WEFT_API weft_status weft_comm_free(weft_comm* comm, void* memory);

/* ---- Collectives --------------------------------------------------------------------------------------- */

typedef struct weft_coll_options {
  size_t struct_size;
  int64_t timeout_ms; /* the operation's deadline from the call; default: the communicator's op_timeout_ms */
  const weft_stream* stream; /* where the buffers lie, and the order of device work; default host */
  double factor;             /* WEFT_OP_PREMUL_SUM's factor; default: must be set for it, refused otherwise */
  uint64_t flags;            /* 0 */
} weft_coll_options;
#define WEFT_COLL_OPTIONS_INIT {sizeof(weft_coll_options), 0, NULL, 0.0, 0}

/* Common to all collectives
 * request == NULL: the call blocks until the operation is complete and returns its result. Otherwise it
 * returns WEFT_OK once queued and *request reports the rest; the caller releases it. options may be NULL.
 * count == 0 is legal and still synchronises; pointers may then be NULL. Buffers are aligned to the dtype's
 * size (WEFT_ERR_ARG). With a stream of a device both lie in that device's memory, on all ranks; work that
 * was on the stream before the call comes before the operation, and work that is put there afterwards waits
 * for it, on the device, also if it fails. In WEFT_PROGRESS_CALLER the program waits for the request before
 * it waits for the stream. src == dst (in place) is allowed where said; any other overlap is WEFT_ERR_ARG.
 * Returns WEFT_ERR_ARG; WEFT_ERR_UNSUPPORTED for an op that the dtype does not have; WEFT_ERR_STATE from a
 * callback; WEFT_ERR_UNAVAILABLE for a stream where CUDA is not; WEFT_ERR_NOMEM; the communicator's
 * failure; blocking also WEFT_ERR_TIMEOUT, WEFT_ERR_MISMATCH,
 * WEFT_ERR_PEER_FAILED, WEFT_ERR_ABORTED, WEFT_ERR_CANCELLED. Threads: one thread at a time per communicator.
 * Since 0.9 */

/* dst[i] = op over ranks of src[i], on every rank, the same bits on all. In place allowed. */
WEFT_API weft_status weft_all_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     int32_t dtype, int32_t op, const weft_coll_options* options,
                                     weft_request** request);
/* As all_reduce, on root only; dst is not touched elsewhere and may be NULL there. In place allowed. */
WEFT_API weft_status weft_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                                 int32_t op, int32_t root, const weft_coll_options* options,
                                 weft_request** request);
/* buffer of root to all. */
WEFT_API weft_status weft_broadcast(weft_comm* comm, void* buffer, uint64_t count, int32_t dtype,
                                    int32_t root, const weft_coll_options* options, weft_request** request);
/* count elements of every rank, in rank order, to all: dst holds size * count. In place: src == dst + rank *
 * count. */
WEFT_API weft_status weft_all_gather(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     int32_t dtype, const weft_coll_options* options, weft_request** request);
/* src holds size * count; dst receives the reduction of block `rank`, count elements. In place: dst == src +
 * rank * count. Other blocks of src are intact. */
WEFT_API weft_status weft_reduce_scatter(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                         int32_t dtype, int32_t op, const weft_coll_options* options,
                                         weft_request** request);
/* count elements of every rank to root, in rank order. dst may be NULL elsewhere. In place at root: src ==
 * dst + rank * count. */
WEFT_API weft_status weft_gather(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                                 int32_t root, const weft_coll_options* options, weft_request** request);
/* Block r of root's src to rank r, count elements. src may be NULL elsewhere. In place at root: dst == src +
 * rank * count. */
WEFT_API weft_status weft_scatter(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                                  int32_t root, const weft_coll_options* options, weft_request** request);
/* Block r of src to rank r; block r of dst from rank r; count elements each. Not in place. */
WEFT_API weft_status weft_all_to_all(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     int32_t dtype, const weft_coll_options* options, weft_request** request);
/* Returns (or completes) when all ranks have called it. */
WEFT_API weft_status weft_barrier(weft_comm* comm, const weft_coll_options* options, weft_request** request);
/* count elements to, from one rank. Matched in order per pair of ranks; count and dtype must agree. A rank
 * may not send to itself. Sends and receives do not take part in the order of collectives. A blocking send
 * may return before the receive was called. */
WEFT_API weft_status weft_send(weft_comm* comm, const void* src, uint64_t count, int32_t dtype, int32_t peer,
                               const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_recv(weft_comm* comm, void* dst, uint64_t count, int32_t dtype, int32_t peer,
                               const weft_coll_options* options, weft_request** request);

/* ---- Blocks of different sizes
 * counts[r] is the number of elements of rank r's block, offsets[r] where it begins in the buffer that holds
 * all of them; offsets == NULL: one after the other. Arrays of `size` entries, read during the call. Counts
 * may be 0. Blocks that are written must not overlap (WEFT_ERR_ARG). All ranks give the same counts, also
 * those that hold one block alone: a difference is WEFT_ERR_MISMATCH on all of them before data moves.
 * Offsets are each rank's own affair. Otherwise as the calls above. Since 0.9 */

/* counts[r] elements of rank r to all: src holds counts[rank]. In place: src == dst + offsets[rank]. */
WEFT_API weft_status weft_all_gather_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                       const uint64_t* offsets, int32_t dtype,
                                       const weft_coll_options* options, weft_request** request);
/* dst receives the reduction of block `rank` of all ranks' src, counts[rank] elements. In place: dst == src +
 * offsets[rank]. Other blocks of src are intact. */
WEFT_API weft_status weft_reduce_scatter_v(weft_comm* comm, const void* src, void* dst,
                                           const uint64_t* counts, const uint64_t* offsets, int32_t dtype,
                                           int32_t op, const weft_coll_options* options,
                                           weft_request** request);
/* counts[r] elements of rank r to root. offsets are read and dst is written at root alone. In place at root:
 * src == dst + offsets[rank]. */
WEFT_API weft_status weft_gather_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                   const uint64_t* offsets, int32_t dtype, int32_t root,
                                   const weft_coll_options* options, weft_request** request);
/* Block r of root's src to rank r. offsets and src are read at root alone. In place at root: dst == src +
 * offsets[rank]. */
WEFT_API weft_status weft_scatter_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                    const uint64_t* offsets, int32_t dtype, int32_t root,
                                    const weft_coll_options* options, weft_request** request);
/* Block r of src to rank r; block r of dst from rank r. Each rank has counts of its own: what rank a sends to
 * rank b (a's src_counts[b]) is what b takes from a (b's dst_counts[a]); WEFT_ERR_MISMATCH names the pair
 * otherwise, on all ranks, before data moves. Not in place. */
WEFT_API weft_status weft_all_to_all_v(weft_comm* comm, const void* src, const uint64_t* src_counts,
                                       const uint64_t* src_offsets, void* dst, const uint64_t* dst_counts,
                                       const uint64_t* dst_offsets, int32_t dtype,
                                       const weft_coll_options* options, weft_request** request);

/* ---- Sparse arrays ------------------------------------------------------------------------------------- */

/* Entries of a sparse array (COO), a gradient for example. Duplicates are allowed: they add up. */
typedef struct weft_sparse {
  size_t struct_size;
  uint64_t count;         /* entries */
  const int64_t* indices; /* sparse_ndim rows of count each, one for a dimension: row d holds dimension d's */
  const void* values;     /* count blocks of the dense dimensions' elements, row-major */
} weft_sparse;
#define WEFT_SPARSE_INIT {sizeof(weft_sparse), 0, NULL, NULL}

/* The sum (or WEFT_OP_AVG) over ranks of sparse arrays of one shape: ndim extents, of which indices name the
 * leading sparse_ndim; a value is a whole sub-array of the others. *result: sorted by index, each index once,
 * equal bits on all ranks; a whole array in it, zeros included, where that travels in less. It is filled when
 * the operation is complete, and is the caller's until weft_sparse_release. src is read during the call.
 * dtype is a float or an integer type that is reduced. Shape, dtype and op are the same on all ranks
 * (WEFT_ERR_MISMATCH). Returns WEFT_ERR_ARG, also for indices outside the shape; otherwise as above.
 * Since 0.9 */
WEFT_API weft_status weft_sparse_all_reduce(weft_comm* comm, const weft_sparse* src, const int64_t* shape,
                                            int32_t ndim, int32_t sparse_ndim, int32_t dtype, int32_t op,
                                            const weft_coll_options* options, weft_sparse* result,
                                            weft_request** request);
/* Free what weft_sparse_all_reduce put into a result, which becomes empty; nothing for one that is empty.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_sparse_release(weft_sparse* result);

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* Between begin and end, this thread's collectives, sends and receives on the communicator are checked and
 * queued; end launches them together, in the order of the calls. So sends and receives of a pair may come in
 * any order, also on one stream of a device: the calls wait for what is there before end, not for each other.
 * A call without request returns WEFT_OK once queued, and completes with end; one with a request completes
 * with that as well. A call that is refused is no part of the group. Deadlines count from end. Meanwhile
 * calls of other threads, split and another begin are WEFT_ERR_STATE; an abort or a destroy completes what is
 * queued. WEFT_ERR_STATE for an end without begin. Threads: as collectives. Since 0.9 */
WEFT_API weft_status weft_group_begin(weft_comm* comm);
/* request == NULL: blocks until all calls of the group are complete and returns the first failure among them
 * (those with requests of their own included). Otherwise *request completes then, with that result. Since 0.9
 */
WEFT_API weft_status weft_group_end(weft_comm* comm, weft_request** request);

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Wait until the request is complete, driving progress meanwhile, and return its result. timeout_ms: 0 is 300
 * s; WEFT_ERR_NOT_DONE when it passes, WEFT_ERR_INTERRUPTED when the program interrupts the wait; the
 * operation goes on. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_wait(weft_request* request, int64_t timeout_ms);
/* *done becomes 1 when complete, else 0; returns the result when complete, WEFT_OK before. Never blocks; in
 * caller mode it advances operations. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_test(weft_request* request, uint8_t* done);

/* Runs once, when the request is complete; at once, on the caller, if it is already. */
typedef void (*weft_complete_fn)(void* user_data, weft_status status);
/* Set the completion callback; at most one per request (WEFT_ERR_STATE). Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_request_on_complete(weft_request* request, weft_complete_fn callback,
                                              void* user_data);
/* The request's result with its details; WEFT_ERR_NOT_DONE before completion. Threads: any thread. Since 0.9
 */
WEFT_API weft_status weft_request_error(weft_request* request, weft_error* error);
/* Give the handle back, complete or not; the operation goes on. Nulls the pointer. Threads: any thread.
 * Since 0.9 */
WEFT_API weft_status weft_request_release(weft_request** request);

/* ---- Hooks: how a bucket of gradients is communicated -------------------------------------------------- */

typedef struct weft_bucket_param {
  size_t struct_size;
  uint64_t index; /* in the reducer's list */
  const char* name;
  int32_t dtype; /* of the gradient in the bucket: the type that travels. Complex ones are pairs in a last
                    dimension */
  int32_t ndim;
  const int64_t* shape;   /* ndim entries */
  const int64_t* strides; /* in elements, ndim entries */
  uint64_t offset;        /* first element in the bucket */
  uint64_t count;         /* elements */
  void* parameter;        /* weft_param.parameter */
} weft_bucket_param;

/* The entries of a sparse gradient as a hook with WEFT_HOOK_SPARSE sees them: rows, each with its values. A
 * row is the number of what an entry's indices name, row-major over those dimensions. */
typedef struct weft_bucket_entries {
  size_t struct_size;
  uint64_t row_count;    /* rows that the gradient has */
  uint64_t row_elements; /* values of a row, of the bucket's dtype */
  uint64_t count;        /* entries; 0 in plan */
  int64_t* rows;         /* ascending, each once; NULL in plan */
  void* values;          /* count times row_elements; NULL in plan */
} weft_bucket_entries;

/* A bucket as a hook sees it; everything is valid during the call only, buffer and scratch during the step.
 */
typedef struct weft_bucket {
  size_t struct_size;
  uint32_t index;
  uint32_t bucket_count;
  uint8_t is_last; /* of the buckets that hooks see, launched last in a step */
  uint8_t reserved[3];
  int32_t dtype;
  uint64_t count; /* elements in buffer */
  uint64_t step;  /* synchronised steps before this one */
  double divisor; /* what AVG divides by in this step */
  int32_t rank;
  int32_t size;
  void* buffer;  /* NULL in plan */
  void* scratch; /* scratch_bytes as planned; NULL in plan */
  uint64_t scratch_bytes;
  uint64_t param_count;
  uint64_t param_size; /* sizeof(weft_bucket_param) as the library knows it */
  const weft_bucket_param* params;
  /* Of a sparse gradient, which has neither buffer nor count: its entries. NULL for all others */
  weft_bucket_entries* entries;
} weft_bucket;

#define WEFT_SPACE_BUCKET 0  /* the bucket's buffer */
#define WEFT_SPACE_SCRATCH 1 /* the hook's scratch for this bucket */

/* count is a largest count; the stage before sets dynamic_count to what this rank needs of it, 0 to count.
 * The ranks exchange that in a small collective of its own, and the largest of their counts is the
 * collective's; none takes place if it is 0. Blocks of ranks lie at multiples of that count; what a rank did
 * not count travels as its memory has it. Not with OPTIONAL, nor in place in ALL_GATHER and REDUCE_SCATTER.
 */
#define WEFT_HOOK_COLLECTIVE_DYNAMIC UINT64_C(1)
/* runs in some steps only: the stage before it sets dynamic_count, 0 to leave it out, on all ranks alike */
#define WEFT_HOOK_COLLECTIVE_OPTIONAL UINT64_C(2)
/* over the reducer's communicator, though the hook has one of its own */
#define WEFT_HOOK_COLLECTIVE_WORLD UINT64_C(4)

/* One collective that a hook declares; stage k runs before collective k, stage n after the last. Lies in an
 * array without a size of its elements: it never grows beyond its reserved fields. */
typedef struct weft_hook_collective {
  int32_t coll; /* ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL or BROADCAST */
  int32_t dtype;
  int32_t op;        /* for reductions */
  int32_t root;      /* for BROADCAST */
  uint64_t count;    /* as in the collective's call */
  int32_t src_space; /* WEFT_SPACE_* */
  int32_t dst_space;
  uint64_t src_offset_bytes; /* multiple of the dtype's size */
  uint64_t dst_offset_bytes;
  uint64_t flags;       /* WEFT_HOOK_COLLECTIVE_* */
  uint64_t reserved[4]; /* 0 */
} weft_hook_collective;

#define WEFT_HOOK_COLLECTIVES 8

/* Filled by the hook's plan call. */
typedef struct weft_hook_plan {
  size_t struct_size;
  uint64_t scratch_bytes;    /* for this bucket, 64-byte aligned, zeroed once */
  int32_t result_space;      /* where the result is after the last stage; default the bucket */
  uint32_t collective_count; /* at most WEFT_HOOK_COLLECTIVES */
  uint64_t result_offset_bytes;
  weft_hook_collective collectives[WEFT_HOOK_COLLECTIVES];
} weft_hook_plan;

/* A stage that completes later keeps the token and calls weft_hook_stage_complete. */
typedef struct weft_stage_token {
  uint64_t bucket;
  uint64_t stage;
  uint64_t generation; /* a completion of an older generation does nothing */
} weft_stage_token;

typedef struct weft_stage {
  size_t struct_size;
  uint32_t index;  /* 0 .. collective_count */
  uint8_t pending; /* out: set to 1 to complete later */
  uint8_t reserved[3];
  uint64_t dynamic_count; /* out: the real count of a DYNAMIC or OPTIONAL collective that follows */
  weft_stage_token token;
  /* Of the DYNAMIC collective before this stage: what each rank counted, size entries; else NULL */
  const uint64_t* counts;
  uint64_t moved_count; /* the largest of these; 0: no collective took place */
} weft_stage;

/* The hook is shown sparse gradients too (weft_bucket.entries). Its plan declares for such a bucket one
 * ALL_REDUCE, SUM or AVG, of the bucket's dtype, with nothing else set: entries of all ranks are added up by
 * row; or none: every rank keeps its own. Stage 0 sees this rank's entries: it may change values, and leave
 * entries out (move those that stay to the front and lower count). Stage 1 sees the sums, alike on all ranks:
 * it may change values. These stages cannot complete later. Without the flag such gradients are averaged
 * beside the hook. */
#define WEFT_HOOK_SPARSE UINT64_C(1)

/* A user's hook. plan and stage are required, the others may be NULL. Calls of one hook never overlap, also
 * where several reducers share it. stage and join run on a thread of Weft's own (weft-worker, one a context),
 * in caller mode inside Weft calls; operations go on meanwhile. The other calls run inside the program's.
 * They may not call Weft except as convention 10 says. A stage that has not returned, or been completed, by
 * the step's deadline fails the step on every rank and is named; on a thread of its own it is left to itself,
 * with bucket, scratch and hook, until it returns (in caller mode the call cannot return before it). A result
 * other than WEFT_OK fails the step on every rank with the text in message (zero-terminated, 256 bytes). */
typedef struct weft_hook_table {
  size_t struct_size;
  const char* name; /* agreed across ranks, copied */
  weft_status (*plan)(void* user_data, const weft_bucket* bucket, weft_hook_plan* plan, char* message);
  weft_status (*stage)(void* user_data, const weft_bucket* bucket, weft_stage* stage, char* message);
  /* The plan changed: state kept by parameter stays valid, state kept by bucket does not. plan follows for
   * each bucket. Without this function buckets are re-planned only where the program asks for it. */
  weft_status (*replan)(void* user_data, uint64_t bucket_count, char* message);
  /* This rank has no data in this step: buffer is zero and stays unread; stages run all the same. */
  weft_status (*join)(void* user_data, const weft_bucket* bucket, char* message);
  /* The communicator changed. A failure is weft_reducer_rebind's on all ranks; a repeated call of that calls
   * this again. */
  weft_status (*rebind)(void* user_data, int32_t rank, int32_t size, char* message);
  /* Write state: *size is the capacity in and the need out; buffer may be NULL to ask. */
  weft_status (*save)(void* user_data, void* buffer, uint64_t* size, char* message);
  weft_status (*load)(void* user_data, const void* buffer, uint64_t size, char* message);
  void (*free_user_data)(void* user_data); /* once, after the last call has returned; any thread */
  uint64_t flags;                          /* WEFT_HOOK_SPARSE */
} weft_hook_table;

/* How a built-in hook is made. */
typedef struct weft_hook_params {
  size_t struct_size;
  const char* options; /* "rank=4 start=100", by the hook's names (docs/hooks.md); default all defaults */
  weft_hook* inner;    /* of hooks around another one (fp16, bf16): that one; default allreduce */
  weft_error* error;   /* out: what is wrong with name or options; may be NULL */
  weft_comm* comm;     /* over which it works, of the same context: some of the reducer's ranks, of which this
                          one is one; averages are over its size. A failure of either fails both. Reducers
                          with such a hook cannot be rebound. Default: the reducer's */
  /* What weft_hook_save wrote: the hook goes on with it. With it name may be NULL: then the hook is the one
   * that was saved, whose options and inner are not given. Default: it starts anew */
  const void* saved;
  uint64_t saved_size;
} weft_hook_params;
#define WEFT_HOOK_PARAMS_INIT {sizeof(weft_hook_params), NULL, NULL, NULL, NULL, NULL, 0}
WEFT_API weft_status weft_hook_params_init(weft_hook_params* params, size_t size);

/* Make a built-in hook by name: allreduce, noop, fp16, bf16, int8, fp8, topk,
 * randomk, onebit, quantize, powersgd, batched_powersgd, post_local_sgd; docs/hooks.md says what each does.
 * params is a weft_hook_params, or NULL for defaults. Name and options are agreed across ranks when a reducer
 * is created. Returns WEFT_ERR_ARG for unknown names, options or values; for what was saved, as
 * weft_hook_load. Ownership: the caller destroys *hook; reducers keep what they use, hooks the one they are
 * around. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_hook_create(weft_context* context, const char* name, const void* params,
                                      weft_hook** hook);
/* Make a hook from a function table; the table is copied. On failure user_data is not freed. Otherwise as
 * above. */
WEFT_API weft_status weft_hook_create_custom(weft_context* context, const weft_hook_table* table,
                                             void* user_data, weft_hook** hook);
/* Complete a pending stage. Threads: any thread, also from callbacks. A late or repeated completion does
 * nothing. */
WEFT_API weft_status weft_hook_stage_complete(weft_hook* hook, const weft_stage_token* token,
                                              weft_status result);
/* Write a hook's state (error feedback, factors, counters) as bytes for the caller to keep; one blob a rank.
 * *size is the capacity in and the need out; buffer may be NULL to ask. Returns WEFT_ERR_ARG if the buffer is
 * too small, and what a hook of the program's own returns; WEFT_ERR_STATE if a stage of it does not return
 * within 10 s. error may be NULL. Between steps only. The format
 * is in docs/hooks.md. Threads: one thread at a time. Since 0.9 */
WEFT_API weft_status weft_hook_save(weft_hook* hook, void* buffer, uint64_t* size, weft_error* error);
/* Put saved state into a hook of the same name and options, before its reducer is created or between steps.
 * What another rank saved keeps its counters and factors, but error feedback starts anew. Returns
 * WEFT_ERR_MISMATCH for another hook's blob, WEFT_ERR_ARG for one that is cut, altered or none at all; then
 * nothing has changed. Threads: one thread at a time. Since 0.9 */
WEFT_API weft_status weft_hook_load(weft_hook* hook, const void* buffer, uint64_t size, weft_error* error);
/* Make the built-in hook that was saved, and load it: weft_hook_create and weft_hook_load in one. One that
 * worked over a communicator of its own needs another: weft_hook_params.saved and comm. Otherwise as those.
 * Since 0.9 */
WEFT_API weft_status weft_hook_create_saved(weft_context* context, const void* buffer, uint64_t size,
                                            weft_hook** hook, weft_error* error);
WEFT_API weft_status weft_hook_destroy(weft_hook** hook);

/* ---- Reducer: gradient synchronisation ----------------------------------------------------------------- */

/* One parameter of the model, in the order of definition. Names are unique and equal on all ranks. */
typedef struct weft_param {
  size_t struct_size;
  const char* name;
  int32_t dtype;          /* F16, BF16, F32, F64, C64 or C128; any, if it has no gradient */
  int32_t ndim;           /* 0 to 16 */
  const int64_t* shape;   /* ndim entries >= 0; NULL for ndim 0 (one element) */
  const int64_t* strides; /* in elements; default: row-major */
  int32_t device_kind;    /* WEFT_DEVICE_*, where its gradient and its value are; default host */
  int32_t device;         /* this rank's own index; ranks compare which parameters share a device */
  uint64_t flags;         /* WEFT_PARAM_* */
  /* Where its gradient is in copy mode, from create to destroy: for ready with NULL, and where the result of
   * an absent parameter goes. Default: none. This rank's own, like the next. */
  void* gradient;
  /* Its value, laid out by the strides: rank 0's goes to all ranks when the reducer is created, and hooks and
   * the calls that broadcast, compare or gather values use it. On all ranks or on none. Default none */
  void* parameter;
  /* How often it becomes ready in a step (shared weights, checkpointing); the last time counts, and hands the
   * gradient over. Equal on all ranks; default 1. See WEFT_REDUCER_STATIC. */
  uint32_t uses;
  uint32_t sparse_ndim; /* WEFT_PARAM_SPARSE: how many leading dimensions its indices name; default 1 */
} weft_param;
/* Its gradients are sparse (COO): weft_reducer_ready_sparse. A bucket of its own; strides and gradient are
 * not set. */
#define WEFT_PARAM_SPARSE UINT64_C(1)
/* Part of the model's state without a gradient: broadcast, never reduced. Any dtype; needs `parameter`. */
#define WEFT_PARAM_STATE_ONLY UINT64_C(2)
/* A buffer, such as a running mean: as STATE_ONLY, and broadcast as steps begin (WEFT_REDUCER_BUFFERS). */
#define WEFT_PARAM_BUFFER UINT64_C(4)
/* Not this library's: never verified, in no bucket, never broadcast; it keeps its index. No other field is
 * looked at but its name, for errors. */
#define WEFT_PARAM_IGNORED UINT64_C(8)
#define WEFT_PARAM_INIT {sizeof(weft_param), NULL, 0, 0, NULL, NULL, 0, 0, 0, NULL, NULL, 0, 0}

typedef int32_t weft_gradient_mode;
/* Default: ready copies the gradient in, its bucket's completion copies the result back. */
#define WEFT_GRADIENT_COPY 1
/* The program computes gradients in weft_reducer_grad_view's memory: no copy. */
#define WEFT_GRADIENT_VIEW 2

/* A bucket's result is in the gradients, or will not be: once for every bucket of a synchronised step,
 * perhaps after finish has returned. Any thread, one at a time per reducer, never the progress thread. */
typedef void (*weft_bucket_fn)(void* user_data, uint64_t step, uint32_t bucket, weft_status status);

/* Which parameters share a bucket, and in which order buckets are launched, said by the program. Every
 * parameter is in one bucket; those of a bucket have one dtype and one device. Copied. */
typedef struct weft_plan {
  size_t struct_size;
  uint64_t bucket_count;
  const uint64_t* sizes;  /* parameters of each bucket; bucket_count entries >= 1 */
  const uint64_t* params; /* the buckets' parameters one after the other, in the order of their layout */
} weft_plan;
#define WEFT_PLAN_INIT {sizeof(weft_plan), 0, NULL, NULL}

typedef struct weft_reducer_options {
  size_t struct_size;
  const weft_param* params;
  uint64_t param_count;          /* at least 1 */
  uint64_t param_size;           /* sizeof(weft_param); default: params[0].struct_size */
  int32_t mode;                  /* WEFT_GRADIENT_*; default copy */
  uint32_t bucket_limit_count;   /* entries of bucket_limits; default: first 1 MiB, then 25 MiB */
  const uint64_t* bucket_limits; /* bytes; the last repeats; 0 is one parameter a bucket */
  weft_hook* hook;               /* default allreduce */
  weft_bucket_fn on_bucket;      /* default none */
  void* on_bucket_user_data;
  int64_t timeout_ms;    /* a step's deadline from its finish call; default: the communicator's */
  uint64_t flags;        /* WEFT_REDUCER_*; equal on all ranks */
  int32_t divide_by;     /* WEFT_DIVIDE_*; equal on all ranks; default WORLD */
  uint32_t reserved;     /* 0 */
  const weft_plan* plan; /* equal on all ranks; default: by bucket_limits */
  /* Gradients of F16, BF16 and F32 (and C64, as pairs) travel and are summed as this type, one of these
   * three. Buckets are of that type, and so are the bytes of bucket_limits. In view mode the views keep
   * theirs, and a bucket takes the memory of the wider one. Sparse gradients travel as their own type. Equal
   * on all ranks; default: each as its own. */
  int32_t reduce_dtype;
  int32_t buffers_root; /* WEFT_REDUCER_BUFFERS: whose buffers; a rank, or WEFT_ROOT_LAST_ACTIVE; default 0 */
  /* Compare the parameters' values as every so many synchronised steps begin (0, n, 2 n, ...), as
   * weft_reducer_check does: where they differ begin fails on all ranks, also those inside
   * weft_reducer_join, and no step is open. Ranks that have joined do not count. Equal on all ranks; default
   * 0: never. */
  uint32_t check_interval;
  uint32_t reserved2; /* 0 */
} weft_reducer_options;
/* Keep what each rank contributes to a step until the step is committed, for weft_reducer_retry. Needs the
 * memory of the buckets once more (weft_reducer_stats.retained_bytes); every finish then commits. */
#define WEFT_REDUCER_RETAIN UINT64_C(1)
/* Parameters may be absent from a step (weft_reducer_absent). Every synchronised step then agrees on which
 * are absent everywhere, by one small collective beside those of the buckets. */
#define WEFT_REDUCER_ABSENT UINT64_C(2)
/* Ranks may begin a step without data, with weights, and join (weft_reducer_join). Every synchronised step
 * then opens with one small collective, while gradients are computed. */
#define WEFT_REDUCER_UNEVEN UINT64_C(4)
/* With UNEVEN: a step in which a rank has joined is not reduced; finish says so on all ranks. */
#define WEFT_REDUCER_STOP_WHEN_EXHAUSTED UINT64_C(8)

/* The pattern of uses is that of the first step and stays: how often each parameter becomes ready is learned
 * there (weft_param.uses is not looked at), and with WEFT_REDUCER_ABSENT those that never did are absent from
 * every later step without being said to be. The first step's buckets travel when it finishes; a later one in
 * which a parameter becomes ready more or less often is an error that names it. */
#define WEFT_REDUCER_STATIC UINT64_C(16)

/* Every synchronised step begins with a broadcast of the buffers (WEFT_PARAM_BUFFER) from buffers_root (rank
 * 0 if a shrunk communicator has no such rank); begin returns when they have arrived, within timeout_ms. If
 * it fails no step is open. */
#define WEFT_REDUCER_BUFFERS UINT64_C(32)
/* Sharded (ZeRO): each rank receives the sums of the slices that it owns (weft_reducer_owned) alone; the rest
 * of the gradients is undefined after finish. The program updates the slices and gathers the parameters. */
#define WEFT_REDUCER_SHARDED UINT64_C(64)
/* With SHARDED: a parameter is owned by one rank as a whole. */
#define WEFT_REDUCER_OWN_WHOLE UINT64_C(128)
/* Compute the norms of the reduced gradients, and which are not finite, as they are reduced
 * (weft_reducer_norms); needed for weft_finish_options.clip_norm and WEFT_FINISH_SKIP_NONFINITE. */
#define WEFT_REDUCER_NORMS UINT64_C(256)
/* Copy mode: local steps add up in F32 what travels in 16 bits. These buckets take their memory twice over.
 */
#define WEFT_REDUCER_ACCUMULATE_F32 UINT64_C(512)
/* The indices of each rank's sparse gradients are those of the first synchronised step and stay: from then on
 * values alone travel (zeros for a parameter that is absent), and other indices fail the step. */
#define WEFT_REDUCER_SPARSE_FIXED UINT64_C(1024)
/* Equal bits for every backend, algorithm, arrangement of hosts and bucket plan: each element is folded once,
 * in the order of the ranks. Costs more traffic between hosts that several ranks share. */
#define WEFT_REDUCER_DETERMINISTIC UINT64_C(2048)
/* View mode: ready takes a gradient that is not in its view, laid out by the parameter's strides, and copies
 * it there, where the result will be; after local steps it is added to what they have left there. */
#define WEFT_REDUCER_COPY_STRAYS UINT64_C(4096)
/* Re-plan by itself after the first synchronised step, as copy mode does anyway (WEFT_REDUCER_KEEP_PLAN): the
 * second one's begin is weft_reducer_replan first, by the order of readiness. In view mode that moves the
 * views: ask for them again after a begin that has changed weft_reducer_stats.plan_generation. If a rank has
 * no memory for new buckets, all keep the old ones, and the log and weft_reducer_report say so. */
#define WEFT_REDUCER_REPLAN UINT64_C(8192)
/* With WEFT_REDUCER_REPLAN: by WEFT_PLANNER_MODEL. */
#define WEFT_REDUCER_MODEL UINT64_C(16384)
/* With WEFT_REDUCER_MODEL: by WEFT_PLANNER_FIRST_NEEDED. */
#define WEFT_REDUCER_FIRST_NEEDED UINT64_C(32768)
/* With SHARDED, in view mode, over a backend whose ranks share memory (shm), not with UNEVEN: every rank may
 * read all results where their owners have them (weft_reducer_reduced_view). Every finish then commits
 * (WEFT_FINISH_COMMIT), and the begin after it waits until all ranks have come to theirs, within timeout_ms:
 * between the two nobody writes into a view. */
#define WEFT_REDUCER_REDUCED_VIEWS UINT64_C(65536)
/* Steps may be captured into CUDA graphs (WEFT_BEGIN_CAPTURE): all gradients are dense ones on one device,
 * which is that of the communicator, over the nccl backend, with the default hook or fp16 or bf16 around it;
 * no other flag, neither check_interval nor uses. The plan is fixed. Makes a communicator of NCCL's for
 * graphs alone, and takes the memory of the buckets once more on the device. */
#define WEFT_REDUCER_GRAPH UINT64_C(131072)

/* Do not copy rank 0's values (weft_param.parameter, also of STATE_ONLY and BUFFER) to all ranks when the
 * reducer is created. Values on devices never are. */
#define WEFT_REDUCER_KEEP_VALUES UINT64_C(262144)
/* A gradient that is not laid out as its parameter is an error of weft_reducer_ready_tensor, and no copy. */
#define WEFT_REDUCER_STRICT_STRIDES UINT64_C(524288)
/* Do not re-plan. Else copy mode does, but for SHARDED, GRAPH, a given plan, gradients on devices, and hooks
 * without `replan`. */
#define WEFT_REDUCER_KEEP_PLAN UINT64_C(1048576)

/* For roots: the highest rank that has data. */
#define WEFT_ROOT_LAST_ACTIVE -1

/* What sums are divided by, besides micro_batches. All but WORLD need WEFT_REDUCER_UNEVEN. */
#define WEFT_DIVIDE_WORLD 0   /* the number of ranks */
#define WEFT_DIVIDE_ACTIVE 1  /* the number of ranks that have data in this step */
#define WEFT_DIVIDE_WEIGHTS 2 /* a weighted mean: the sum of their weights (samples, say) */

#define WEFT_REDUCER_OPTIONS_INIT \
  {sizeof(weft_reducer_options),  \
   NULL,                          \
   0,                             \
   sizeof(weft_param),            \
   0,                             \
   0,                             \
   NULL,                          \
   NULL,                          \
   NULL,                          \
   NULL,                          \
   0,                             \
   0,                             \
   0,                             \
   0,                             \
   NULL,                          \
   0,                             \
   0,                             \
   0,                             \
   0}

WEFT_API weft_status weft_reducer_options_init(weft_reducer_options* options, size_t size);

/* Create gradient sync for a list of parameters. Collective: agrees on the list, the plan, the hook and what
 * is said to be equal; a difference is WEFT_ERR_MISMATCH on every rank and names the first parameter that
 * differs and both sides. What is wrong on one rank alone is its error there and WEFT_ERR_MISMATCH on the
 * others. Blocks at most for the init timeout, then for the operation timeout while rank 0's values are sent
 * to all (WEFT_REDUCER_KEEP_VALUES). A communicator over shm has at most 63 reducers (WEFT_ERR_UNSUPPORTED):
 * split one for more. error may be NULL. Ownership: the caller destroys *reducer; it keeps the communicator's
 * core alive. Threads: one thread at a time per communicator. Since 0.9 */
WEFT_API weft_status weft_reducer_create(weft_comm* comm, const weft_reducer_options* options,
                                         weft_reducer** reducer, weft_error* error);
/* End gradient sync. In the middle of a synchronised step this fails the communicator, because the other
 * ranks count on this one. Gradients are not touched any more when it returns, within 10 s; a stage of its
 * hook that has not returned by then is left to itself. Threads: any thread, not from a callback; no other
 * call on the reducer may be running. Since 0.9 */
WEFT_API weft_status weft_reducer_destroy(weft_reducer** reducer);

/* Where parameter `param`'s gradient lives in view mode: its strides are the parameter's when those are
 * dense, else row-major. Valid until destroy, or until a re-plan (weft_reducer_replan, WEFT_REDUCER_REPLAN)
 * moves it. Returns WEFT_ERR_STATE in copy mode. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_reducer_grad_view(weft_reducer* reducer, uint64_t param, void** view);

typedef struct weft_begin_options {
  size_t struct_size;
  uint64_t flags;         /* WEFT_BEGIN_* */
  uint32_t micro_batches; /* divide by this many accumulated micro-batches as well; default 1 */
  uint32_t reserved;      /* 0 */
  double weight;          /* this rank's weight, finite and positive, for WEFT_DIVIDE_WEIGHTS; default 1 */
  /* Copy mode: where results of absent parameters go in this step, per parameter, NULL for none; lent until
   * finish returns. Default: weft_param.gradient. */
  void* const* gradients;
} weft_begin_options;
/* Accumulate only: gradients of this step are added locally, nothing travels. */
#define WEFT_BEGIN_LOCAL UINT64_C(1)
/* This rank has no data in this step: it contributes zeros and receives the results. (With gradients of
 * earlier local steps it contributes those, and counts as a rank with data.) No ready follows, finish at
 * once. Needs WEFT_REDUCER_UNEVEN; not with LOCAL or FIXED. */
#define WEFT_BEGIN_NO_DATA UINT64_C(2)
/* The program promises that the same parameters are absent from this step on all ranks that have data:
 * nothing is exchanged about them, and buckets that are absent whole do not travel. In a step in which a rank
 * has no data (NO_DATA, or it has joined) they do, and with WEFT_REDUCER_ABSENT so does what is absent. With
 * WEFT_REDUCER_UNEVEN all ranks with data give the flag or none does, else the step is WEFT_ERR_MISMATCH. A
 * promise that is broken otherwise is WEFT_ERR_MISMATCH where the collectives differ by it, else a wrong
 * result. */
#define WEFT_BEGIN_FIXED UINT64_C(4)
/* Note the order in which gradients become ready, for weft_reducer_replan. The first synchronised step does
 * so without it. */
#define WEFT_BEGIN_RECORD UINT64_C(8)
/* A step that is captured: it is not carried out, but becomes part of the CUDA graph into which the program
 * captures its streams (cudaStreamBeginCapture, of mode relaxed or thread-local, before begin). ready is
 * called for every gradient with a stream that is being captured, and finish with such streams, which then
 * wait for the results: both put what they do into the graph, on the calling thread, and nothing runs. Each
 * launch of the graph is such a step. All ranks capture the same steps, and launch their graphs as often and
 * in the same order, one after the other; steps that are not captured come between launches in the order of
 * one stream. What ready was given is read and written by every launch: it stays where it is, and so does the
 * reducer (destroy the graphs first; weft_reducer_destroy). A captured step that failed is over with finish,
 * and the capture useless. No step is counted by it: see weft_reducer_stats.replays. Needs
 * WEFT_REDUCER_GRAPH; of the other options micro_batches alone. */
#define WEFT_BEGIN_CAPTURE UINT64_C(16)
#define WEFT_BEGIN_OPTIONS_INIT {sizeof(weft_begin_options), 0, 0, 0, 0.0, NULL}

/* Begin a step: gradients may become ready. options may be NULL. A LOCAL step accumulates for the next
 * synchronised one. In copy mode ready adds the gradient, which is of this micro-batch alone, to what the
 * bucket holds and leaves it as it is; the synchronised step adds its own and averages the sum. (A framework
 * that accumulates in its own gradients makes no LOCAL steps.) In view mode the program accumulates in the
 * view itself, and ready only marks. A parameter that is not ready in a LOCAL step adds nothing.
 * micro_batches is that of the synchronised step and equal on all ranks. So is the number of LOCAL steps
 * before it: a rank that is one off fails the step (WEFT_ERR_MISMATCH, with both numbers). With
 * WEFT_REDUCER_UNEVEN each rank makes as many as it has data for. Returns WEFT_ERR_STATE while a step is
 * open, or the reducer's failure. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_begin(weft_reducer* reducer, const weft_begin_options* options);

/* Gradient `param` is complete on stream (NULL: host). In copy mode gradient is read now and, unless the step
 * is local, until its bucket completes, when it is written: it is lent until then, laid out by the
 * parameter's strides. In view mode it is the view, or NULL (or see WEFT_REDUCER_COPY_STRAYS). When the last
 * gradient of a bucket is ready and it is the bucket's turn, its reduction starts; in caller mode too this
 * call drives nothing itself. A gradient on a device has a stream of that device: it is complete when the
 * stream's work up to this call is done, is read once the bucket is full (in a local step: in the order of
 * the stream), and nothing waits here; the stream must not be destroyed before its bucket is done. Returns
 * WEFT_ERR_ARG for an unknown index, NULL or a foreign pointer, memory or a stream that is not of the
 * parameter's device; WEFT_ERR_UNSUPPORTED for a stream that is being captured (but see WEFT_BEGIN_CAPTURE)
 * or is a thread's own default one; WEFT_ERR_STATE outside a step, for a parameter that is ready already
 * (naming it), in a captured step for a stream that is not being captured. What lies at gradient nobody can
 * check: weft_reducer_ready_tensor does. Threads: any thread, different parameters concurrently. Since 0.9 */
WEFT_API weft_status weft_reducer_ready(weft_reducer* reducer, uint64_t param, void* gradient,
                                        const weft_stream* stream);

/* A dense gradient as a framework describes it. */
typedef struct weft_tensor {
  size_t struct_size;
  void* data;             /* the first element */
  int32_t dtype;          /* WEFT_DTYPE_*, complex ones too */
  int32_t ndim;           /* 0 to 16 */
  const int64_t* shape;   /* ndim entries; NULL for ndim 0 (one element) */
  const int64_t* strides; /* in elements; default: row-major */
  int32_t device_kind;    /* WEFT_DEVICE_*; default host */
  int32_t device;
} weft_tensor;
#define WEFT_TENSOR_INIT {sizeof(weft_tensor), NULL, 0, 0, NULL, NULL, 0, 0}

/* weft_reducer_ready for a gradient that describes itself. dtype, shape and device must be the parameter's. A
 * gradient in host memory with other strides is copied by these, and so is its result (but see
 * WEFT_REDUCER_STRICT_STRIDES); not one in its view, which is row-major if the parameter's strides have gaps.
 * Returns WEFT_ERR_ARG, which names both sides; otherwise as weft_reducer_ready of data. Since 0.9 */
WEFT_API weft_status weft_reducer_ready_tensor(weft_reducer* reducer, uint64_t param,
                                               const weft_tensor* gradient, const weft_stream* stream);

/* Parameters take no part in this step: they have no gradient on this rank. What earlier local steps
 * accumulated for them is contributed all the same, otherwise zeros. Where another rank has a gradient the
 * result is this rank's too: its sum divided as all others', in the place that weft_begin_options.gradients
 * or weft_param.gradient gives (without either it can be had from weft_reducer_result). A parameter that is
 * absent everywhere leaves its gradient as it is in copy mode; its view is zero. In a local step this says
 * only that ready will not come. Returns WEFT_ERR_ARG for an unknown index, WEFT_ERR_STATE outside a step,
 * for a parameter that is ready or absent already (those before it in the list are absent then), or if the
 * reducer was created without WEFT_REDUCER_ABSENT and the step not begun with WEFT_BEGIN_FIXED. Threads: as
 * weft_reducer_ready. Since 0.9 */
WEFT_API weft_status weft_reducer_absent(weft_reducer* reducer, const uint64_t* params, uint64_t count);

typedef struct weft_finish_options {
  size_t struct_size;
  uint64_t flags;            /* WEFT_FINISH_*; equal on all ranks, but for SKIP */
  const weft_stream* stream; /* waits in place of the host, see weft_reducer_finish; default host */
  /* Scale the results so that the norm of all of them together is at most this; equal on all ranks, needs
   * WEFT_REDUCER_NORMS. Default 0: no limit. */
  double clip_norm;
  uint64_t stream_count; /* streams at `stream`, an array; default 1 */
} weft_finish_options;
/* Return only when every rank has all results of this step: after WEFT_OK the step is committed, and no
 * failure undoes it. Costs a barrier. */
#define WEFT_FINISH_COMMIT UINT64_C(1)
/* Every parameter that is neither ready nor absent is absent. */
#define WEFT_FINISH_REST_ABSENT UINT64_C(2)
/* Skip the step, because this rank's loss overflowed, say: what one rank asks all do, see weft_norms.skipped.
 * Needs WEFT_REDUCER_NORMS. */
#define WEFT_FINISH_SKIP UINT64_C(4)
/* Skip the step if a reduced gradient, or the total norm, is not finite. Needs WEFT_REDUCER_NORMS. */
#define WEFT_FINISH_SKIP_NONFINITE UINT64_C(8)
#define WEFT_FINISH_OPTIONS_INIT {sizeof(weft_finish_options), 0, NULL, 0.0, 0}

/* Wait until every bucket's result is in the gradients, and end the step. options may be NULL. Returns
 * WEFT_ERR_STATE naming every parameter that never became ready, WEFT_ERR_TIMEOUT in a LOCAL step, or one
 * that learns uses, while one is copied (the step stays open: finish again or abort); WEFT_ERR_HOOK; the
 * communicator's failure. After a failure gradients are not reduced; which buckets had completed is in the
 * statistics. (If only the commit failed, they are reduced here; weft_reducer_rebind finds out whether they
 * are everywhere.) With streams of devices it returns as soon as nothing is missing: what is put on them
 * afterwards waits until the step is over, also if it fails, and the next call on the reducer that needs the
 * step's end (begin, say, or finish once more) waits for it and returns its failure. In WEFT_PROGRESS_CALLER,
 * with COMMIT and with WEFT_REDUCER_RETAIN the host waits. Threads: one thread at a time per reducer.
 * Since 0.9 */
WEFT_API weft_status weft_reducer_finish(weft_reducer* reducer, const weft_finish_options* options);

/* Fail the open step on all ranks: this one cannot go on with it (a bad batch, an exception in its backward).
 * It is over here on return; the finish of every other rank returns WEFT_ERR_STEP_FAILED, with failed_ranks
 * and "rank N: " and text (UTF-8, cut at 512 bytes; NULL: none), and the next step works. A LOCAL step fails
 * the synchronised one after it. Where another rank may complete the step without this one (250 ms after the
 * last gradient, say), the communicator fails instead, with the same code. Returns WEFT_OK; WEFT_ERR_STATE
 * without an open step; the communicator's failure. Blocks as finish does. Threads: one thread at a time per
 * reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_fail(weft_reducer* reducer, const char* text);

/* Wait until the result of a parameter is in its gradient, in a synchronised step or after it: its optimizer
 * step may run while later buckets travel (sharded, once finish has returned: until its value is here).
 * Ends no step. Returns WEFT_ERR_NOT_DONE if it takes longer; WEFT_ERR_STATE without a synchronised step; its
 * failure. timeout_ms as for weft_request_wait. Threads: any thread, not from a callback. Since 0.9 */
WEFT_API weft_status weft_reducer_wait_param(weft_reducer* reducer, uint64_t param, int64_t timeout_ms);

/* The same on a device's stream, where gradients are on devices: what is put there from now on waits until
 * the result of a parameter is in its gradient, also if that is on another device or on the host, or until
 * the step is over without it. Called once every gradient of the step is ready or absent, before finish or
 * after it. Returns at once; from here on the step has a deadline. Ends no step: finish, or begin, says how
 * it went, so ask before what was computed is used for good. In WEFT_PROGRESS_CALLER the host waits. Returns
 * WEFT_ERR_STATE without a synchronised step, or naming the gradients that are missing, for which the stream
 * could wait in vain; WEFT_ERR_ARG for the host, or a stream that is not of its device;
 * WEFT_ERR_UNSUPPORTED if no gradient is on a device; the step's failure. Threads: any thread, not from a
 * callback. Since 0.9 */
WEFT_API weft_status weft_reducer_stream_wait_param(weft_reducer* reducer, uint64_t param,
                                                    const weft_stream* stream);

/* Copy the last step's result of a parameter to `gradient`, laid out by the parameter's strides; in copy
 * mode, for parameters that were absent here without a place for their result. Returns WEFT_ERR_STATE inside
 * a step, or if the last synchronised step did not reduce it. Threads: one thread at a time per reducer.
 * Since 0.9 */
WEFT_API weft_status weft_reducer_result(weft_reducer* reducer, uint64_t param, void* gradient);

/* The gradient of a parameter with WEFT_PARAM_SPARSE is complete; its entries are read during the call, in
 * both modes. A gradient without entries has count 0. Returns WEFT_ERR_ARG also for an index beyond the shape
 * and for a parameter that is not sparse. Otherwise as weft_reducer_ready. Since 0.9 */
WEFT_API weft_status weft_reducer_ready_sparse(weft_reducer* reducer, uint64_t param,
                                               const weft_sparse* gradient, const weft_stream* stream);

/* The last step's result of a sparse parameter: sorted by index, each index once, equal bits on all ranks;
 * every index if that moved less than entries would have. Its memory is the reducer's and stays until the
 * next begin. Returns as weft_reducer_result. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_sparse_result(weft_reducer* reducer, uint64_t param, weft_sparse* result);

typedef struct weft_norms {
  size_t struct_size;
  double total;              /* the L2 norm of all gradients that have a result, before clipping */
  double clip_factor;        /* that they were scaled by */
  uint64_t nonfinite_params; /* parameters with an infinity or a NaN in their result */
  uint8_t skipped;           /* 1: the step was skipped on all ranks; in copy mode gradients stay */
  uint8_t reserved[7];
} weft_norms;

/* Norms of the last synchronised step, equal bits on all ranks. per_param (may be NULL) receives the L2 norm
 * of each parameter's result, finite exactly if that is; param_count entries. WEFT_ERR_STATE inside a step,
 * before the first or without WEFT_REDUCER_NORMS. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_norms(weft_reducer* reducer, weft_norms* norms, double* per_param);

/* A piece of a parameter, elements in the order in which the gradient is laid out. */
typedef struct weft_slice {
  uint64_t param;
  uint64_t offset; /* elements */
  uint64_t count;  /* elements, at least 1 */
} weft_slice;

/* The slices that a rank owns, with WEFT_REDUCER_SHARDED, in the order of the buckets. *count: room in
 * slices, becomes how many there are; slices may be NULL to ask. Returns WEFT_ERR_ARG if there is not room
 * enough. Threads: between steps, one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_owned(weft_reducer* reducer, int32_t rank, weft_slice* slices,
                                        uint64_t* count);

/* Consecutive elements of a parameter's result, where their owner has them. */
typedef struct weft_reduced_piece {
  const void* data; /* of the gradient's dtype; not to be written */
  uint64_t offset;  /* elements of the parameter, in the order in which its view is laid out */
  uint64_t count;   /* elements, at least 1 */
  int32_t owner;    /* rank */
  uint32_t reserved;
} weft_reduced_piece;

/* The last step's result of a parameter, without a copy: pieces in ascending order that are together all of
 * it; at most one a rank. Needs WEFT_REDUCER_REDUCED_VIEWS. They stay as they are until this rank's next
 * begin, weft_reducer_replan or weft_reducer_rebind, or until a rank destroys its reducer. *count: room in
 * pieces, becomes how many there are; pieces may be NULL to ask. Returns WEFT_ERR_ARG if there is not room
 * enough or for an unknown index; WEFT_ERR_STATE without that flag, inside a step, or if the last step was
 * not synchronised, failed or did not reduce the parameter. Threads: one thread at a time per reducer.
 * Since 0.9 */
WEFT_API weft_status weft_reducer_reduced_view(weft_reducer* reducer, uint64_t param,
                                               weft_reduced_piece* pieces, uint64_t* count);

typedef struct weft_gather_options {
  size_t struct_size;
  uint64_t flags;     /* 0 */
  int64_t timeout_ms; /* default: the reducer's */
} weft_gather_options;
#define WEFT_GATHER_OPTIONS_INIT {sizeof(weft_gather_options), 0, 0}

/* Sharded: start to send each owner's slices of the parameters' values (weft_param.parameter) to all ranks,
 * in the order of the parameters. Returns at once. weft_reducer_wait_param waits for one parameter, and
 * starts this by itself if nobody has since finish (all ranks call it then); the next begin waits for all.
 * Returns WEFT_ERR_STATE inside a step. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_gather_params(weft_reducer* reducer, const weft_gather_options* options);

typedef struct weft_broadcast_options {
  size_t struct_size;
  uint64_t flags;       /* WEFT_BROADCAST_*; default 0: all of them */
  int32_t root;         /* rank, or WEFT_ROOT_LAST_ACTIVE (of the last step); default 0 */
  uint32_t in_flight;   /* chunks at the same time; default 2 */
  uint64_t chunk_bytes; /* at most, in one message; default 250 MiB */
  int64_t timeout_ms;   /* default: the communicator's for operations */
} weft_broadcast_options;
#define WEFT_BROADCAST_PARAMS UINT64_C(1)  /* values of parameters with gradients */
#define WEFT_BROADCAST_STATE UINT64_C(2)   /* WEFT_PARAM_STATE_ONLY */
#define WEFT_BROADCAST_BUFFERS UINT64_C(4) /* WEFT_PARAM_BUFFER */
#define WEFT_BROADCAST_OPTIONS_INIT {sizeof(weft_broadcast_options), 0, 0, 0, 0, 0}

/* Copy the values of parameters (weft_param.parameter) from the root to all ranks, in coalesced chunks.
 * options are equal on all ranks. Collective, between steps, and no rank is inside weft_reducer_join. While
 * it runs it takes memory for in_flight chunks. options and error may be NULL. Returns WEFT_ERR_MISMATCH if
 * options differ, or if another rank's call is wrong: WEFT_ERR_ARG there, for a parameter without a value or
 * a root that does not exist; then nothing has moved. WEFT_ERR_STATE inside a step, or if there is no last
 * active rank; the communicator's failure, after which values are partly the root's. Threads: one thread at a
 * time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_broadcast(weft_reducer* reducer, const weft_broadcast_options* options,
                                            weft_error* error);

/* Compare the parameters' values on all ranks, by hash. A difference is WEFT_ERR_MISMATCH on every rank: the
 * text names the first parameter that differs, failed_ranks those that hold the minority's value. The reducer
 * stays usable. Buffers are not compared. Collective, between steps. error may be NULL. Returns otherwise as
 * weft_reducer_broadcast. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_check(weft_reducer* reducer, weft_error* error);

typedef struct weft_join_options {
  size_t struct_size;
  int64_t timeout_ms;    /* longest wait for the others' next step; default: the reducer's */
  uint64_t finish_flags; /* of the others' finish: WEFT_FINISH_COMMIT or 0 */
} weft_join_options;
#define WEFT_JOIN_OPTIONS_INIT {sizeof(weft_join_options), 0, 0}

typedef struct weft_join_result {
  size_t struct_size;
  uint64_t steps; /* of the others, in which this rank took part without data */
  int32_t
      last_active; /* the highest rank that had data in the last step: its state is the newest. -1: none */
  uint32_t reserved;
} weft_join_result;

/* This rank has no more data: take part in the others' steps without data until every rank has joined, then
 * return on all of them; what LOCAL steps have accumulated by then is dropped. The reducer may go on (the
 * next epoch); what ranks do in between is theirs: broadcast the state from last_active, say. options and
 * result may be NULL. Returns WEFT_ERR_STATE inside a step, without UNEVEN, or, with STOP_WHEN_EXHAUSTED,
 * once another rank begins a step; else as finish. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_join(weft_reducer* reducer, const weft_join_options* options,
                                       weft_join_result* result);

/* Where buckets end: at bucket_limits; or where a model of the step says that least communication is left
 * over after the last gradient, from when gradients were ready (on the last rank) in the step that noted it
 * and from what all-reduces cost, which the call measures (some tenths of a second). By that model it is
 * never worse than the plan by bucket_limits. It does not know what a hook's stages cost. FIRST_NEEDED: as
 * MODEL, but no bucket of several parameters is larger than the last of bucket_limits (unless the plan by
 * these is better), and of the buckets that, by the model, are ready when one has been through, the one with
 * the first parameter of the list is launched: where communication lags behind, what the next forward pass
 * needs first is there first. */
typedef int32_t weft_planner;
#define WEFT_PLANNER_LIMITS 0
#define WEFT_PLANNER_MODEL 1
#define WEFT_PLANNER_FIRST_NEEDED 2

typedef struct weft_replan_options {
  size_t struct_size;
  const weft_plan* plan;         /* take this one, equal on all ranks; default: by the order of readiness */
  const uint64_t* bucket_limits; /* as in weft_reducer_options; default: those in use */
  uint32_t bucket_limit_count;
  int32_t planner; /* WEFT_PLANNER_*; equal on all ranks; default by bucket_limits. Not with plan */
} weft_replan_options;
#define WEFT_REPLAN_OPTIONS_INIT {sizeof(weft_replan_options), NULL, NULL, 0, 0}

/* Assign parameters to buckets anew, between steps. By default in the order in which gradients became ready
 * in the last step that noted it, on the lowest rank that has noted one (parameters that never became ready
 * come last): so the small first bucket is launched first, and each as soon as it can be. Collective over the
 * ranks; those inside weft_reducer_join take part there. The hook is told; gradients keep their values, also
 * what local steps have accumulated. In view mode the views move (weft_reducer_stats.plan_generation counts
 * that): ask weft_reducer_grad_view again, an old pointer is refused by ready, and nothing may use it any
 * more. They change places within the memory of the buckets, by way of scratch for one bucket; where the new
 * buckets do not fit, both sets take memory until the call returns. options and error may be NULL.
 * Returns WEFT_ERR_STATE inside a step, or if no rank has noted an order; WEFT_ERR_MISMATCH if the ranks want
 * different plans; else as weft_reducer_create, and the old plan stays. Threads: one thread at a time per
 * communicator, and no other call on the reducer may be running. Since 0.9 */
WEFT_API weft_status weft_reducer_replan(weft_reducer* reducer, const weft_replan_options* options,
                                         weft_error* error);

typedef struct weft_param_info {
  size_t struct_size;
  uint32_t bucket;           /* UINT32_MAX: none, it has no gradient */
  uint8_t absent;            /* in the last synchronised step it was absent here */
  uint8_t absent_everywhere; /* and on all ranks: it has no result */
  uint8_t reserved[2];
  uint64_t offset; /* first element in the bucket */
  uint64_t count;  /* elements */
} weft_param_info;

/* Describe a parameter. Returns WEFT_ERR_ARG for an unknown index. Threads: between steps, one thread at a
 * time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_param(weft_reducer* reducer, uint64_t param, weft_param_info* info);

/* The reducer's last error with its details; WEFT_OK if none. Threads: one thread at a time per reducer.
 * Since 0.9 */
WEFT_API weft_status weft_reducer_error(weft_reducer* reducer, weft_error* error);

typedef struct weft_bucket_info {
  size_t struct_size;
  uint32_t index; /* order of launch */
  int32_t dtype;
  uint64_t param_count;
  uint64_t count; /* elements */
  uint64_t bytes;
  uint64_t limit_bytes; /* limit that closed it */
  /* The last synchronised step, nanoseconds since its begin; 0 where it has not happened. */
  uint64_t ready_ns;    /* the last gradient was ready */
  uint64_t launch_ns;   /* its first stage started */
  uint64_t done_ns;     /* the result was in the gradients */
  uint64_t transfer_ns; /* how long its collectives ran, waiting for late ranks included */
  /* What this rank moved for them, as the backend counted it: the data of its messages, or what it put into
   * memory that ranks share and took out of others'. */
  uint64_t sent_bytes;
} weft_bucket_info;

WEFT_API weft_status weft_reducer_bucket_count(weft_reducer* reducer, uint32_t* count);
/* Describe a bucket; params (may be NULL) receives up to capacity parameter indices in bucket order.
 * Threads: between steps, one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_bucket(weft_reducer* reducer, uint32_t bucket, weft_bucket_info* info,
                                         uint64_t* params, uint64_t capacity);

typedef struct weft_reducer_stats {
  size_t struct_size;
  uint64_t steps; /* synchronised and finished */
  uint64_t local_steps;
  uint64_t failed_steps;
  uint64_t bytes_reduced; /* through finished buckets, of the type that travels */
  uint64_t bucket_bytes;  /* memory of the buckets */
  uint64_t scratch_bytes; /* memory of hooks' scratch, and to gather parameters */
  uint64_t other_bytes;   /* everything else the reducer holds */
  /* Of the last synchronised step, nanoseconds. */
  uint64_t step_ns;          /* begin to the end of finish */
  uint64_t exposed_ns;       /* inside finish: communication that computing did not hide */
  uint64_t communication_ns; /* first launch to last completion */
  uint64_t retained_bytes;   /* memory of what WEFT_REDUCER_RETAIN keeps */
  /* Of the last synchronised step, where ranks may be uneven; otherwise all ranks are active. */
  uint32_t active_ranks;      /* that had data */
  int32_t first_active;       /* the lowest of them; -1: none */
  int32_t last_active;        /* the highest of them; -1: none */
  uint32_t skipped_buckets;   /* that did not travel: absent whole in a WEFT_BEGIN_FIXED step */
  double divisor;             /* of the sums */
  uint64_t absent_params;     /* here */
  uint64_t absent_everywhere; /* of these, on all ranks */
  uint64_t hook_bytes;        /* memory of the hook's state, such as error feedback */
  /* Of all synchronised steps: what this rank sends for its hook's collectives, if each is done with the
   * least traffic possible, and what it would send if the same buckets were all-reduced as they are. */
  uint64_t sent_bytes;
  uint64_t plain_bytes;
  uint64_t plan_generation; /* how often weft_reducer_replan has changed the plan */
  uint64_t param_bytes;     /* of all dense gradients */
  uint64_t absent_bytes;    /* of those that were absent here in the last synchronised step */
  /* More of the last synchronised step, nanoseconds. */
  uint64_t compute_ns; /* begin to the call of finish */
  uint64_t overlap_ns; /* communication before that call */
  /* Means over all synchronised steps. */
  uint64_t mean_step_ns;
  uint64_t mean_compute_ns;
  uint64_t mean_communication_ns;
  uint64_t mean_overlap_ns;
  uint64_t mean_exposed_ns;
  /* Percentiles of the last 128 synchronised steps: what half of them, and 99 in 100, did not exceed. */
  uint64_t step_p50_ns;
  uint64_t step_p99_ns;
  uint64_t exposed_p50_ns;
  uint64_t exposed_p99_ns;
  /* The rank that held the last step up; -1: nobody waited. Over messages ranks tell each other how long they
   * have waited, so that all name the same one, itself included: the late one, or the one behind the slowest
   * cable. In shared memory, with several hosts of several ranks, and where each rank sends the others but
   * one message, it is whom this rank waited for longest. The time: so long this rank has waited for it, or
   * all others on average where that is more. */
  uint64_t straggler_ns;
  int32_t straggler;
  uint32_t reserved;
  /* Of steps with WEFT_BEGIN_CAPTURE. A launch writes its number when it begins and ends on the device: one
   * that has not ended within the reducer's timeout fails the communicator. All three count from 0 again
   * after weft_reducer_rebind. */
  uint64_t captures; /* steps that were captured */
  uint64_t launches; /* of their graphs, that have begun */
  uint64_t replays;  /* of these, that have come to their end; while the communicator works, with results */
  uint64_t copied_gradients; /* that were not laid out as their parameters; see weft_reducer_ready_tensor */
  /* Hooks with error memory: the norm of what it holds after the last synchronised step over that of the
   * gradient, of the bucket where that is most; 0 where there is none. */
  double hook_error;
  uint32_t hook_error_bucket;
  uint32_t reserved2;
} weft_reducer_stats;

/* Everything that is known of the reducer and its steps as JSON: docs/reducer.md lists the fields. *size:
 * room in text, becomes the bytes of the whole text with its final 0; text may be NULL to ask. What does not
 * fit is cut, which WEFT_ERR_ARG says. Threads: between steps, one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_report(weft_reducer* reducer, char* text, uint64_t* size);

/* Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_reducer_query(weft_reducer* reducer, weft_reducer_stats* stats);

/* ---- Recovery: gradient synchronisation after weft_comm_shrink ------------------------------------------
 */

/* How far the synchronised steps have come; they count from 0. A step is finished when all its results are in
 * this rank's gradients, and committed when it is known that they are in every rank's: when finish has
 * returned with WEFT_FINISH_COMMIT, or, later, when a collective of the next step has completed, which no
 * rank starts before. */
typedef struct weft_verdict {
  size_t struct_size;
  uint64_t last_finished_step;  /* WEFT_NO_STEP if none */
  uint64_t last_committed_step; /* WEFT_NO_STEP if none; equal on all ranks after a rebind */
  uint64_t next_step;           /* the number of the next synchronised step, or of the open one */
  uint8_t can_retry;   /* 1: what this rank contributes to next_step is kept, see weft_reducer_retry */
  uint8_t rolled_back; /* 1: next_step was finished on this rank, but not on all */
  uint8_t reserved[6];
} weft_verdict;

/* Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_verdict(weft_reducer* reducer, weft_verdict* verdict);

/* Go on over another communicator of the same context, as a rule the one that weft_comm_shrink made: with
 * the same parameters, buckets, views and hook, whose state is kept. Collective over its ranks, each with
 * the same reducer. The ranks agree on the last committed step: the last that all of them have finished. Of
 * a step that was finished on some only the verdict says rolled_back there: if its gradients have been
 * used, undo that or commit steps before you use them. What was accumulated in local steps and not retained
 * is dropped. Peak memory: the buckets stay; scratch_bytes and other_bytes (weft_reducer_stats) are needed
 * a second time during the call. Returns WEFT_ERR_ARG for a communicator of another context; WEFT_ERR_STATE
 * inside a step, or if a stage of its hook or a weft_reducer_ready has not returned; its hook's failure;
 * WEFT_ERR_MISMATCH if the ranks bring different reducers; the communicator's failure, after which the
 * reducer can be bound to a further one. What one rank refuses is an error on all, which names that rank and
 * quotes its reason; the communicator stays usable, and all may call again. error may be NULL. Threads: one
 * thread at a time per communicator, and no other call on the reducer may be running but weft_reducer_query.
 * Since 0.9 */
WEFT_API weft_status weft_reducer_rebind(weft_reducer* reducer, weft_comm* comm, weft_error* error);

/* Do the step that failed again without computing it again: sum what the ranks contributed, now over the
 * ranks of the communicator, and finish. For the other ranks it is a step as any other: each calls either
 * this, or begin, ready and finish. options as for weft_reducer_finish. Returns WEFT_ERR_STATE if nothing is
 * kept (see weft_verdict.can_retry): without WEFT_REDUCER_RETAIN, or if not all gradients had become ready.
 * With it gradients may become ready after the communicator has failed, until finish. In copy mode results go
 * where the gradients of that step were, which are lent until the retry returns. Otherwise as
 * weft_reducer_finish. Threads: one thread at a time per reducer. Since 0.9 */
WEFT_API weft_status weft_reducer_retry(weft_reducer* reducer, const weft_finish_options* options);

/* ---- Averaging of models: the other half of local SGD ---------------------------------------------------
 */

typedef struct weft_averager weft_averager; /* averages parameters' values; one thread at a time */

typedef struct weft_average_level {
  size_t struct_size;
  uint64_t period; /* average every so many steps, at least 1 */
  weft_comm* comm; /* over whose ranks, of the same context; default: weft_averager_create's */
} weft_average_level;

typedef struct weft_averager_options {
  size_t struct_size;
  const weft_param* params; /* whose values (weft_param.parameter) are averaged, in place; those that have no
                               gradients (WEFT_PARAM_BUFFER and the like) are left alone */
  uint64_t param_count;     /* at least 1 */
  uint64_t param_size;      /* sizeof(weft_param); default: params[0].struct_size */
  /* Periods ascend. In a step the largest that divides it wins: {4, the host's ranks}, {16, all ranks}. */
  const weft_average_level* levels;
  uint64_t level_count; /* at least 1 */
  uint64_t level_size;  /* sizeof(weft_average_level); default: levels[0].struct_size */
  uint64_t warmup;      /* steps without averaging; the step after them averages. Default 0 */
  uint64_t first_step;  /* the number of the first step: for a training that goes on. Default 0 */
  uint64_t chunk_bytes; /* small values travel together, in messages of so much; default 25 MiB */
  int64_t timeout_ms;   /* of an average; default: the communicator's for operations */
} weft_averager_options;
#define WEFT_AVERAGER_OPTIONS_INIT {sizeof(weft_averager_options), NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0}

/* Make an averager. Collective over comm: agrees on parameters, periods and steps; a difference is
 * WEFT_ERR_MISMATCH on every rank and names it. Returns WEFT_ERR_ARG for what is wrong on this rank, and then
 * WEFT_ERR_MISMATCH on the others. error may be NULL. Ownership: the caller destroys *averager; it keeps its
 * communicators' cores alive, and the values are lent until then. Threads: one thread at a time per
 * communicator. Since 0.9 */
WEFT_API weft_status weft_averager_create(weft_comm* comm, const weft_averager_options* options,
                                          weft_averager** averager, weft_error* error);

/* An optimizer step was made: average if it is time to. Steps count from first_step; step s averages over the
 * last level whose period divides s - warmup, if s >= warmup. Every rank calls it after every step; it blocks
 * while it averages, on the communicators' own order of operations. *period (may be NULL): of that level, or
 * 0: nothing was averaged. After a failure, the communicator's, values may be averaged in part; the step
 * counts once it succeeds. error may be NULL. Threads: one thread at a time per averager, and per
 * communicator. Since 0.9 */
WEFT_API weft_status weft_averager_step(weft_averager* averager, uint64_t* period, weft_error* error);

/* Threads: one thread at a time. Since 0.9 */
WEFT_API weft_status weft_averager_destroy(weft_averager** averager);

/* ---- Trace
 * ------------------------------------------------------------------------------------------------------------
 */

/* Record the events of all steps and collectives of the context, up to capacity events (0: 65536, then the
 * oldest are overwritten). Returns WEFT_ERR_STATE if running, WEFT_ERR_NOMEM. Threads: any thread. Since 0.9
 */
WEFT_API weft_status weft_trace_start(weft_context* context, uint64_t capacity);
WEFT_API weft_status weft_trace_stop(weft_context* context);
/* Write what was recorded as a Chrome trace (JSON), which Perfetto opens. Returns WEFT_ERR_SYSTEM naming the
 * path. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_trace_write(weft_context* context, const char* path);

/* Write now what this rank's lanes of operations did last, as a communicator that fails does by itself (see
 * weft_context_options.flight_path): into folder, as weft-<communicator>-rank<rank>.json. For programs that
 * seem to hang. Returns WEFT_ERR_SYSTEM if the file cannot be written. Threads: any thread, not from a
 * callback. Since 0.9 */
WEFT_API weft_status weft_flight_write(weft_comm* comm, const char* folder);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_WEFT_H */
