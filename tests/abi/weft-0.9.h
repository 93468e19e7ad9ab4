/* The public headers of Weft 0.9 in one file, without comments; made by check_abi.py golden. */
/* clang-format off */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H
#ifndef WEFT_AVERAGER_H
#define WEFT_AVERAGER_H
#include <stddef.h>
#include <stdint.h>
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
#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 9
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION_NUMBER (WEFT_VERSION_MAJOR * 10000u + WEFT_VERSION_MINOR * 100u + WEFT_VERSION_PATCH)
WEFT_API uint32_t weft_version(void);
typedef int32_t weft_status;
#define WEFT_OK 0
#define WEFT_ERR_ARG 1
#define WEFT_ERR_STATE 2
#define WEFT_ERR_NOMEM 3
#define WEFT_ERR_UNSUPPORTED 4
#define WEFT_ERR_UNAVAILABLE 5
#define WEFT_ERR_TIMEOUT 6
#define WEFT_ERR_NOT_DONE 7
#define WEFT_ERR_MISMATCH 8
#define WEFT_ERR_PEER_FAILED 9
#define WEFT_ERR_ABORTED 10
#define WEFT_ERR_CANCELLED 11
#define WEFT_ERR_AUTH 12
#define WEFT_ERR_VERSION 13
#define WEFT_ERR_SYSTEM 14
#define WEFT_ERR_FORKED 15
#define WEFT_ERR_HOOK 16
#define WEFT_ERR_MINORITY 17
#define WEFT_ERR_INTERNAL 18
#define WEFT_ERR_INTERRUPTED 19
#define WEFT_ERR_STEP_FAILED 20
WEFT_API const char* weft_status_string(weft_status status);
typedef int32_t weft_evidence;
#define WEFT_EVIDENCE_NONE 0
#define WEFT_EVIDENCE_LOCAL 1
#define WEFT_EVIDENCE_CONNECTION 2
#define WEFT_EVIDENCE_PROCESS 3
#define WEFT_EVIDENCE_HEARTBEAT 4
#define WEFT_EVIDENCE_DEADLINE 5
#define WEFT_EVIDENCE_DESCRIPTOR 6
#define WEFT_EVIDENCE_REPORT 7
#define WEFT_ERROR_RANKS 64
#define WEFT_ERROR_TEXT 1024
#define WEFT_NO_SLOT UINT64_MAX
#define WEFT_NO_STEP UINT64_MAX
typedef struct weft_error {
  size_t struct_size;
  weft_status code;
  weft_evidence evidence;
  uint64_t slot;
  uint64_t step;
  uint64_t failed_count;
  int32_t failed_ranks[WEFT_ERROR_RANKS];
  char text[WEFT_ERROR_TEXT];
} weft_error;
#define WEFT_ERROR_INIT {sizeof(weft_error), 0, 0, WEFT_NO_SLOT, WEFT_NO_STEP, 0, {0}, {0}}
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
#define WEFT_DTYPE_C64 13
#define WEFT_DTYPE_C128 14
#define WEFT_DTYPE_F8_E4M3 15
#define WEFT_DTYPE_F8_E5M2 16
#define WEFT_DTYPE_BOOL 17
typedef int32_t weft_op;
#define WEFT_OP_SUM 1
#define WEFT_OP_AVG 2
#define WEFT_OP_PROD 3
#define WEFT_OP_MIN 4
#define WEFT_OP_MAX 5
#define WEFT_OP_BAND 6
#define WEFT_OP_BOR 7
#define WEFT_OP_BXOR 8
#define WEFT_OP_PREMUL_SUM 9
#define WEFT_OP_USER 10
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
#define WEFT_TIMEOUT_INFINITE INT64_C(-1)
#define WEFT_TIMEOUT_POLL INT64_C(-2)
#define WEFT_DEFAULT_OP_TIMEOUT_MS 300000
#define WEFT_DEFAULT_INIT_TIMEOUT_MS 60000
#define WEFT_DEFAULT_DESTROY_TIMEOUT_MS 10000
#define WEFT_DEFAULT_HEARTBEAT_TIMEOUT_MS 5000
typedef struct weft_context weft_context;
typedef struct weft_comm weft_comm;
typedef struct weft_request weft_request;
typedef struct weft_stream weft_stream;
typedef int32_t weft_log_level;
#define WEFT_LOG_OFF 0
#define WEFT_LOG_ERROR 1
#define WEFT_LOG_WARN 2
#define WEFT_LOG_INFO 3
#define WEFT_LOG_DEBUG 4
typedef void (*weft_log_fn)(void* user_data, weft_log_level level, const char* line);
typedef void (*weft_thread_start_fn)(void* user_data, const char* thread_name);
typedef void* (*weft_alloc_fn)(void* user_data, uint64_t size, uint64_t alignment, int32_t device);
typedef void (*weft_free_fn)(void* user_data, void* pointer, uint64_t size, int32_t device);
typedef int32_t (*weft_interrupt_fn)(void* user_data);
typedef int32_t weft_progress;
#define WEFT_PROGRESS_THREAD 1
#define WEFT_PROGRESS_CALLER 2
typedef struct weft_context_options {
  size_t struct_size;
  uint32_t version;
  weft_progress progress;
  weft_log_level log_level;
  weft_log_fn log;
  void* log_user_data;
  weft_thread_start_fn thread_start;
  void* thread_start_user_data;
  weft_alloc_fn host_alloc;
  weft_free_fn host_free;
  void* host_alloc_user_data;
  weft_alloc_fn device_alloc;
  weft_free_fn device_free;
  void* device_alloc_user_data;
  const char* module_path;
  const char* flight_path;
  const char* cuda_runtime;
  const char* nccl_library;
  weft_interrupt_fn interrupt;
  void* interrupt_user_data;
  uint64_t flags;
} weft_context_options;
#define WEFT_CONTEXT_HOST_WAITS UINT64_C(1)
#define WEFT_CONTEXT_OPTIONS_INIT \
  {sizeof(weft_context_options), WEFT_VERSION_NUMBER, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0}
WEFT_API weft_status weft_context_options_init(weft_context_options* options, size_t size);
WEFT_API weft_status weft_context_create(const weft_context_options* options, weft_context** context,
                                         weft_error* error);
WEFT_API weft_status weft_context_destroy(weft_context** context);
typedef int32_t weft_bootstrap;
#define WEFT_BOOTSTRAP_ENV 0
#define WEFT_BOOTSTRAP_STORE 1
#define WEFT_BOOTSTRAP_CALLBACK 2
typedef int32_t (*weft_all_gather_fn)(void* user_data, const void* mine, uint64_t size, void* all);
typedef struct weft_comm_options {
  size_t struct_size;
  weft_bootstrap bootstrap;
  int32_t rank;
  int32_t size;
  uint32_t reserved;
  const char* store;
  const void* secret;
  uint64_t secret_bytes;
  weft_all_gather_fn all_gather;
  void* all_gather_user_data;
  const char* backend;
  int64_t init_timeout_ms;
  int64_t op_timeout_ms;
  uint64_t arena_limit_bytes;
  uint64_t flags;
  int64_t heartbeat_timeout_ms;
  int32_t device;
  uint32_t reserved2;
} weft_comm_options;
#define WEFT_COMM_STORE_EXTERNAL UINT64_C(1)
#define WEFT_COMM_DEVICE UINT64_C(2)
#define WEFT_COMM_OPTIONS_INIT \
  {sizeof(weft_comm_options), 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0}
WEFT_API weft_status weft_comm_options_init(weft_comm_options* options, size_t size);
WEFT_API weft_status weft_comm_create(weft_context* context, const weft_comm_options* options,
                                      weft_comm** comm, weft_error* error);
WEFT_API weft_status weft_comm_destroy(weft_comm** comm);
WEFT_API weft_status weft_comm_rank(const weft_comm* comm, int32_t* rank);
WEFT_API weft_status weft_comm_size(const weft_comm* comm, int32_t* size);
#define WEFT_COLOR_NONE INT32_MIN
WEFT_API weft_status weft_comm_split(weft_comm* comm, int32_t color, int32_t key, weft_comm** part,
                                     weft_error* error);
WEFT_API weft_status weft_comm_abort(weft_comm* comm, const char* reason);
WEFT_API weft_status weft_comm_error(const weft_comm* comm, weft_error* error);
WEFT_API weft_status weft_comm_alloc(weft_comm* comm, uint64_t size_bytes, void** memory);
WEFT_API weft_status weft_comm_free(weft_comm* comm, void* memory);
typedef struct weft_coll_options {
  size_t struct_size;
  int64_t timeout_ms;
  const weft_stream* stream;
  double factor;
  uint64_t flags;
  const struct weft_reduction* reduction;
} weft_coll_options;
#define WEFT_COLL_OPTIONS_INIT {sizeof(weft_coll_options), 0, NULL, 0.0, 0, NULL}
WEFT_API weft_status weft_all_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     weft_dtype dtype, weft_op op, const weft_coll_options* options,
                                     weft_request** request);
WEFT_API weft_status weft_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                 weft_dtype dtype, weft_op op, int32_t root, const weft_coll_options* options,
                                 weft_request** request);
WEFT_API weft_status weft_broadcast(weft_comm* comm, void* buffer, uint64_t count, weft_dtype dtype,
                                    int32_t root, const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_all_gather(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     weft_dtype dtype, const weft_coll_options* options,
                                     weft_request** request);
WEFT_API weft_status weft_reduce_scatter(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                         weft_dtype dtype, weft_op op, const weft_coll_options* options,
                                         weft_request** request);
WEFT_API weft_status weft_gather(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                 weft_dtype dtype, int32_t root, const weft_coll_options* options,
                                 weft_request** request);
WEFT_API weft_status weft_scatter(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                  weft_dtype dtype, int32_t root, const weft_coll_options* options,
                                  weft_request** request);
WEFT_API weft_status weft_all_to_all(weft_comm* comm, const void* src, void* dst, uint64_t count,
                                     weft_dtype dtype, const weft_coll_options* options,
                                     weft_request** request);
WEFT_API weft_status weft_barrier(weft_comm* comm, const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_send(weft_comm* comm, const void* src, uint64_t count, weft_dtype dtype,
                               int32_t peer, const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_recv(weft_comm* comm, void* dst, uint64_t count, weft_dtype dtype, int32_t peer,
                               const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_last_error(weft_error* error);
WEFT_API weft_status weft_request_wait(weft_request* request, int64_t timeout_ms);
WEFT_API weft_status weft_request_test(weft_request* request, uint8_t* done);
typedef void (*weft_complete_fn)(void* user_data, weft_status status);
WEFT_API weft_status weft_request_on_complete(weft_request* request, weft_complete_fn callback,
                                              void* user_data);
WEFT_API weft_status weft_request_error(weft_request* request, weft_error* error);
WEFT_API weft_status weft_request_release(weft_request** request);
#ifdef __cplusplus
}
#endif
#endif
#ifndef WEFT_REDUCER_H
#define WEFT_REDUCER_H
#include <stddef.h>
#include <stdint.h>
#ifndef WEFT_COLLECTIVES_H
#define WEFT_COLLECTIVES_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
WEFT_API weft_status weft_all_gather_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                       const uint64_t* offsets, weft_dtype dtype,
                                       const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_reduce_scatter_v(weft_comm* comm, const void* src, void* dst,
                                           const uint64_t* counts, const uint64_t* offsets, weft_dtype dtype,
                                           weft_op op, const weft_coll_options* options,
                                           weft_request** request);
WEFT_API weft_status weft_gather_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                   const uint64_t* offsets, weft_dtype dtype, int32_t root,
                                   const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_scatter_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                    const uint64_t* offsets, weft_dtype dtype, int32_t root,
                                    const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_all_to_all_v(weft_comm* comm, const void* src, const uint64_t* src_counts,
                                       const uint64_t* src_offsets, void* dst, const uint64_t* dst_counts,
                                       const uint64_t* dst_offsets, weft_dtype dtype,
                                       const weft_coll_options* options, weft_request** request);
typedef weft_status (*weft_reduce_fn)(void* user_data, const void* from, void* into, uint64_t count,
                                      weft_dtype dtype);
typedef struct weft_reduction {
  size_t struct_size;
  weft_reduce_fn combine;
  void* user_data;
  uint64_t unit;
} weft_reduction;
#define WEFT_REDUCTION_INIT {sizeof(weft_reduction), NULL, NULL, 0}
typedef struct weft_sparse {
  size_t struct_size;
  uint64_t count;
  const int64_t* indices;
  const void* values;
} weft_sparse;
#define WEFT_SPARSE_INIT {sizeof(weft_sparse), 0, NULL, NULL}
WEFT_API weft_status weft_sparse_all_reduce(weft_comm* comm, const weft_sparse* src, const int64_t* shape,
                                            int32_t ndim, int32_t sparse_ndim, weft_dtype dtype, weft_op op,
                                            const weft_coll_options* options, weft_sparse* result,
                                            weft_request** request);
WEFT_API weft_status weft_sparse_release(weft_sparse* result);
WEFT_API weft_status weft_group_begin(weft_comm* comm);
WEFT_API weft_status weft_group_end(weft_comm* comm, weft_request** request);
#define WEFT_ANY_SOURCE INT32_C(-1)
#define WEFT_ANY_TAG UINT64_MAX
typedef struct weft_message {
  size_t struct_size;
  int32_t source;
  uint32_t reserved;
  uint64_t tag;
  uint64_t count;
} weft_message;
#define WEFT_MESSAGE_INIT {sizeof(weft_message), 0, 0, 0, 0}
WEFT_API weft_status weft_send_tagged(weft_comm* comm, const void* src, uint64_t count, weft_dtype dtype,
                                      int32_t peer, uint64_t tag, const weft_coll_options* options,
                                      weft_request** request);
WEFT_API weft_status weft_recv_tagged(weft_comm* comm, void* dst, uint64_t count, weft_dtype dtype,
                                      int32_t peer, uint64_t tag, weft_message* message,
                                      const weft_coll_options* options, weft_request** request);
WEFT_API weft_status weft_request_cancel(weft_request* request);
#ifdef __cplusplus
}
#endif
#endif
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef int32_t weft_device_kind;
#define WEFT_DEVICE_HOST 0
#define WEFT_DEVICE_CUDA 1
struct weft_stream {
  size_t struct_size;
  weft_device_kind kind;
  int32_t device;
  void* handle;
};
#define WEFT_STREAM_INIT {sizeof(weft_stream), 0, 0, NULL}
typedef struct weft_device_info {
  size_t struct_size;
  int32_t device_count;
  uint8_t available;
  uint8_t reserved[3];
  char reason[512];
} weft_device_info;
#define WEFT_DEVICE_INFO_INIT {sizeof(weft_device_info), 0, 0, {0}, {0}}
WEFT_API weft_status weft_device_query(weft_context* context, weft_device_kind device_kind,
                                       weft_device_info* info);
#ifdef __cplusplus
}
#endif
#endif
#ifndef WEFT_HOOK_H
#define WEFT_HOOK_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct weft_hook weft_hook;
typedef struct weft_bucket_param {
  size_t struct_size;
  uint64_t index;
  const char* name;
  weft_dtype dtype;
  int32_t ndim;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t offset;
  uint64_t count;
  void* parameter;
} weft_bucket_param;
typedef struct weft_bucket_entries {
  size_t struct_size;
  uint64_t row_count;
  uint64_t row_elements;
  uint64_t count;
  int64_t* rows;
  void* values;
} weft_bucket_entries;
typedef struct weft_bucket {
  size_t struct_size;
  uint32_t index;
  uint32_t bucket_count;
  uint8_t is_last;
  uint8_t reserved[3];
  weft_dtype dtype;
  uint64_t count;
  uint64_t step;
  double divisor;
  int32_t rank;
  int32_t size;
  void* buffer;
  void* scratch;
  uint64_t scratch_bytes;
  uint64_t param_count;
  uint64_t param_size;
  const weft_bucket_param* params;
  weft_bucket_entries* entries;
} weft_bucket;
typedef int32_t weft_space;
#define WEFT_SPACE_BUCKET 0
#define WEFT_SPACE_SCRATCH 1
#define WEFT_HOOK_COLLECTIVE_DYNAMIC UINT64_C(1)
#define WEFT_HOOK_COLLECTIVE_OPTIONAL UINT64_C(2)
#define WEFT_HOOK_COLLECTIVE_WORLD UINT64_C(4)
typedef struct weft_hook_collective {
  weft_coll coll;
  weft_dtype dtype;
  weft_op op;
  int32_t root;
  uint64_t count;
  weft_space src_space;
  weft_space dst_space;
  uint64_t src_offset_bytes;
  uint64_t dst_offset_bytes;
  uint64_t flags;
  uint64_t reserved[4];
} weft_hook_collective;
#define WEFT_HOOK_COLLECTIVES 8
typedef struct weft_hook_plan {
  size_t struct_size;
  uint64_t scratch_bytes;
  weft_space result_space;
  uint32_t collective_count;
  uint64_t result_offset_bytes;
  weft_hook_collective collectives[WEFT_HOOK_COLLECTIVES];
} weft_hook_plan;
typedef struct weft_stage_token {
  uint64_t bucket;
  uint64_t stage;
  uint64_t generation;
} weft_stage_token;
typedef struct weft_stage {
  size_t struct_size;
  uint32_t index;
  uint8_t pending;
  uint8_t reserved[3];
  uint64_t dynamic_count;
  weft_stage_token token;
  const uint64_t* counts;
  uint64_t moved_count;
} weft_stage;
#define WEFT_HOOK_SPARSE UINT64_C(1)
typedef struct weft_hook_table {
  size_t struct_size;
  const char* name;

  weft_status (*plan)(void* user_data, const weft_bucket* bucket, weft_hook_plan* plan, char* message);

  weft_status (*stage)(void* user_data, const weft_bucket* bucket, weft_stage* stage, char* message);

  weft_status (*replan)(void* user_data, uint64_t bucket_count, char* message);

  weft_status (*join)(void* user_data, const weft_bucket* bucket, char* message);

  weft_status (*rebind)(void* user_data, int32_t rank, int32_t size, char* message);

  weft_status (*save)(void* user_data, void* buffer, uint64_t* size, char* message);

  weft_status (*load)(void* user_data, const void* buffer, uint64_t size, char* message);

  void (*free_user_data)(void* user_data);
  uint64_t flags;
} weft_hook_table;
#define WEFT_HOOK_TABLE_INIT \
  {sizeof(weft_hook_table), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0}
WEFT_API weft_status weft_hook_create_custom(weft_context* context, const weft_hook_table* table,
                                             void* user_data, weft_hook** hook);
WEFT_API weft_status weft_hook_stage_complete(weft_hook* hook, const weft_stage_token* token,
                                              weft_status result, const char* message);
typedef struct weft_hook_params {
  size_t struct_size;
  const char* options;
  weft_hook* inner;
  weft_error* error;
  weft_comm* comm;
  const void* saved;
  uint64_t saved_size;
} weft_hook_params;
#define WEFT_HOOK_PARAMS_INIT {sizeof(weft_hook_params), NULL, NULL, NULL, NULL, NULL, 0}
WEFT_API weft_status weft_hook_params_init(weft_hook_params* params, size_t size);
WEFT_API weft_status weft_hook_create(weft_context* context, const char* name, const void* params,
                                      weft_hook** hook);
WEFT_API weft_status weft_hook_save(weft_hook* hook, void* buffer, uint64_t* size, weft_error* error);
WEFT_API weft_status weft_hook_load(weft_hook* hook, const void* buffer, uint64_t size, weft_error* error);
WEFT_API weft_status weft_hook_create_saved(weft_context* context, const void* buffer, uint64_t size,
                                            weft_hook** hook, weft_error* error);
WEFT_API weft_status weft_hook_destroy(weft_hook** hook);
#ifdef __cplusplus
}
#endif
#endif
#ifdef __cplusplus
extern "C" {
#endif
typedef struct weft_reducer weft_reducer;
typedef struct weft_param {
  size_t struct_size;
  const char* name;
  weft_dtype dtype;
  int32_t ndim;
  const int64_t* shape;
  const int64_t* strides;
  weft_device_kind device_kind;
  int32_t device;
  uint64_t flags;
  void* gradient;
  void* parameter;
  uint32_t uses;
  uint32_t sparse_ndim;
} weft_param;
#define WEFT_PARAM_SPARSE UINT64_C(1)
#define WEFT_PARAM_STATE_ONLY UINT64_C(2)
#define WEFT_PARAM_BUFFER UINT64_C(4)
#define WEFT_PARAM_IGNORED UINT64_C(8)
#define WEFT_PARAM_INIT {sizeof(weft_param), NULL, 0, 0, NULL, NULL, 0, 0, 0, NULL, NULL, 0, 0}
typedef int32_t weft_gradient_mode;
#define WEFT_GRADIENT_COPY 1
#define WEFT_GRADIENT_VIEW 2
#define WEFT_GRADIENT_IN_PLACE 3
typedef void (*weft_bucket_fn)(void* user_data, uint64_t step, uint32_t bucket, weft_status status);
typedef struct weft_plan {
  size_t struct_size;
  uint64_t bucket_count;
  const uint64_t* sizes;
  const uint64_t* params;
} weft_plan;
#define WEFT_PLAN_INIT {sizeof(weft_plan), 0, NULL, NULL}
typedef int32_t weft_planner;
#define WEFT_PLANNER_DEFAULT 0
#define WEFT_PLANNER_LIMITS 1
#define WEFT_PLANNER_MODEL 2
#define WEFT_PLANNER_FIRST_NEEDED 3
#define WEFT_PLANNER_NONE 4
typedef int32_t weft_divide;
#define WEFT_DIVIDE_WORLD 0
#define WEFT_DIVIDE_ACTIVE 1
#define WEFT_DIVIDE_WEIGHTS 2
typedef int32_t weft_accumulation;
#define WEFT_ACCUMULATION_UNSET 0
#define WEFT_ACCUMULATION_PROGRAM 1
#define WEFT_ACCUMULATION_REDUCER 2
#define WEFT_ROOT_LAST_ACTIVE -1
typedef struct weft_reducer_options {
  size_t struct_size;
  const weft_param* params;
  uint64_t param_count;
  uint64_t param_size;
  weft_gradient_mode mode;
  uint32_t bucket_limit_count;
  const uint64_t* bucket_limits;
  weft_hook* hook;
  weft_bucket_fn on_bucket;
  void* on_bucket_user_data;
  int64_t timeout_ms;
  uint64_t flags;
  weft_divide divide_by;

  weft_accumulation accumulation;
  const weft_plan* plan;
  weft_dtype reduce_dtype;
  int32_t buffers_root;
  uint32_t check_interval;
  weft_planner replan;
} weft_reducer_options;
#define WEFT_REDUCER_OPTIONS_INIT \
  {sizeof(weft_reducer_options), NULL, 0, sizeof(weft_param), 0, 0, NULL, NULL, NULL, NULL, 0, 0, 0, 0, \
   NULL, 0, 0, 0, 0}
#define WEFT_REDUCER_RETAIN UINT64_C(1)
#define WEFT_REDUCER_ABSENT UINT64_C(2)
#define WEFT_REDUCER_UNEVEN UINT64_C(4)
#define WEFT_REDUCER_STOP_WHEN_EXHAUSTED UINT64_C(8)
#define WEFT_REDUCER_STATIC UINT64_C(16)
#define WEFT_REDUCER_BUFFERS UINT64_C(32)
#define WEFT_REDUCER_SHARDED UINT64_C(64)
#define WEFT_REDUCER_OWN_WHOLE UINT64_C(128)
#define WEFT_REDUCER_NORMS UINT64_C(256)
#define WEFT_REDUCER_ACCUMULATE_F32 UINT64_C(512)
#define WEFT_REDUCER_DETERMINISTIC UINT64_C(1024)
#define WEFT_REDUCER_COPY_STRAYS UINT64_C(2048)
#define WEFT_REDUCER_GRAPH UINT64_C(4096)
#define WEFT_REDUCER_KEEP_VALUES UINT64_C(8192)
#define WEFT_REDUCER_STRICT_STRIDES UINT64_C(16384)
WEFT_API weft_status weft_reducer_options_init(weft_reducer_options* options, size_t size);
WEFT_API weft_status weft_reducer_create(weft_comm* comm, const weft_reducer_options* options,
                                         weft_reducer** reducer, weft_error* error);
WEFT_API weft_status weft_reducer_destroy(weft_reducer** reducer);
WEFT_API weft_status weft_reducer_grad_view(weft_reducer* reducer, uint64_t param, void** view);
typedef struct weft_begin_options {
  size_t struct_size;
  uint64_t flags;
  uint32_t micro_batches;
  uint32_t reserved;
  double weight;
  void* const* gradients;
} weft_begin_options;
#define WEFT_BEGIN_LOCAL UINT64_C(1)
#define WEFT_BEGIN_NO_DATA UINT64_C(2)
#define WEFT_BEGIN_FIXED UINT64_C(4)
#define WEFT_BEGIN_RECORD UINT64_C(8)
#define WEFT_BEGIN_CAPTURE UINT64_C(16)
#define WEFT_BEGIN_OPTIONS_INIT {sizeof(weft_begin_options), 0, 0, 0, 0.0, NULL}
WEFT_API weft_status weft_reducer_begin(weft_reducer* reducer, const weft_begin_options* options);
WEFT_API weft_status weft_reducer_ready(weft_reducer* reducer, uint64_t param, void* gradient,
                                        const weft_stream* stream);
typedef struct weft_tensor {
  size_t struct_size;
  void* data;
  weft_dtype dtype;
  int32_t ndim;
  const int64_t* shape;
  const int64_t* strides;
  weft_device_kind device_kind;
  int32_t device;
} weft_tensor;
#define WEFT_TENSOR_INIT {sizeof(weft_tensor), NULL, 0, 0, NULL, NULL, 0, 0}
WEFT_API weft_status weft_reducer_ready_tensor(weft_reducer* reducer, uint64_t param,
                                               const weft_tensor* gradient, const weft_stream* stream);
WEFT_API weft_status weft_reducer_ready_sparse(weft_reducer* reducer, uint64_t param,
                                               const weft_sparse* gradient, const weft_stream* stream);
WEFT_API weft_status weft_reducer_absent(weft_reducer* reducer, const uint64_t* params, uint64_t count);
typedef struct weft_finish_options {
  size_t struct_size;
  uint64_t flags;
  const weft_stream* stream;
  double clip_norm;
  uint64_t stream_count;
} weft_finish_options;
#define WEFT_FINISH_COMMIT UINT64_C(1)
#define WEFT_FINISH_REST_ABSENT UINT64_C(2)
#define WEFT_FINISH_SKIP UINT64_C(4)
#define WEFT_FINISH_SKIP_NONFINITE UINT64_C(8)
#define WEFT_FINISH_OPTIONS_INIT {sizeof(weft_finish_options), 0, NULL, 0.0, 0}
WEFT_API weft_status weft_reducer_finish(weft_reducer* reducer, const weft_finish_options* options);
WEFT_API weft_status weft_reducer_fail(weft_reducer* reducer, const char* text);
WEFT_API weft_status weft_reducer_wait_param(weft_reducer* reducer, uint64_t param, int64_t timeout_ms);
WEFT_API weft_status weft_reducer_stream_wait_param(weft_reducer* reducer, uint64_t param,
                                                    const weft_stream* stream);
WEFT_API weft_status weft_reducer_result(weft_reducer* reducer, uint64_t param, void* gradient);
WEFT_API weft_status weft_reducer_sparse_result(weft_reducer* reducer, uint64_t param, weft_sparse* result);
typedef struct weft_norms {
  size_t struct_size;
  double total;
  double clip_factor;
  uint64_t nonfinite_params;
  uint8_t skipped;
  uint8_t reserved[7];
} weft_norms;
#define WEFT_NORMS_INIT {sizeof(weft_norms), 0.0, 0.0, 0, 0, {0}}
WEFT_API weft_status weft_reducer_norms(weft_reducer* reducer, weft_norms* norms, double* per_param);
typedef struct weft_slice {
  uint64_t param;
  uint64_t offset;
  uint64_t count;
} weft_slice;
WEFT_API weft_status weft_reducer_owned(weft_reducer* reducer, int32_t rank, weft_slice* slices,
                                        uint64_t* count);
typedef struct weft_gather_options {
  size_t struct_size;
  uint64_t flags;
  int64_t timeout_ms;
} weft_gather_options;
#define WEFT_GATHER_OPTIONS_INIT {sizeof(weft_gather_options), 0, 0}
WEFT_API weft_status weft_reducer_gather_params(weft_reducer* reducer, const weft_gather_options* options);
typedef struct weft_broadcast_options {
  size_t struct_size;
  uint64_t flags;
  int32_t root;
  uint32_t in_flight;
  uint64_t chunk_bytes;
  int64_t timeout_ms;
} weft_broadcast_options;
#define WEFT_BROADCAST_PARAMS UINT64_C(1)
#define WEFT_BROADCAST_STATE UINT64_C(2)
#define WEFT_BROADCAST_BUFFERS UINT64_C(4)
#define WEFT_BROADCAST_OPTIONS_INIT {sizeof(weft_broadcast_options), 0, 0, 0, 0, 0}
WEFT_API weft_status weft_reducer_broadcast(weft_reducer* reducer, const weft_broadcast_options* options,
                                            weft_error* error);
WEFT_API weft_status weft_reducer_check(weft_reducer* reducer, weft_error* error);
typedef struct weft_join_options {
  size_t struct_size;
  int64_t timeout_ms;
  uint64_t finish_flags;
} weft_join_options;
#define WEFT_JOIN_OPTIONS_INIT {sizeof(weft_join_options), 0, 0}
typedef struct weft_join_result {
  size_t struct_size;
  uint64_t steps;
  int32_t last_active;
  uint32_t reserved;
} weft_join_result;
#define WEFT_JOIN_RESULT_INIT {sizeof(weft_join_result), 0, 0, 0}
WEFT_API weft_status weft_reducer_join(weft_reducer* reducer, const weft_join_options* options,
                                       weft_join_result* result);
typedef struct weft_replan_options {
  size_t struct_size;
  const weft_plan* plan;
  const uint64_t* bucket_limits;
  uint32_t bucket_limit_count;
  weft_planner planner;
} weft_replan_options;
#define WEFT_REPLAN_OPTIONS_INIT {sizeof(weft_replan_options), NULL, NULL, 0, 0}
WEFT_API weft_status weft_reducer_replan(weft_reducer* reducer, const weft_replan_options* options,
                                         weft_error* error);
typedef struct weft_param_info {
  size_t struct_size;
  uint32_t bucket;
  uint8_t absent;
  uint8_t absent_everywhere;
  uint8_t reserved[2];
  uint64_t offset;
  uint64_t count;
} weft_param_info;
#define WEFT_PARAM_INFO_INIT {sizeof(weft_param_info), 0, 0, 0, {0}, 0, 0}
WEFT_API weft_status weft_reducer_param(weft_reducer* reducer, uint64_t param, weft_param_info* info);
typedef struct weft_bucket_info {
  size_t struct_size;
  uint32_t index;
  weft_dtype dtype;
  uint64_t param_count;
  uint64_t count;
  uint64_t bytes;
  uint64_t limit_bytes;
  uint64_t ready_ns;
  uint64_t launch_ns;
  uint64_t done_ns;
  uint64_t transfer_ns;
  uint64_t sent_bytes;
} weft_bucket_info;
#define WEFT_BUCKET_INFO_INIT {sizeof(weft_bucket_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
WEFT_API weft_status weft_reducer_bucket_count(weft_reducer* reducer, uint32_t* count);
WEFT_API weft_status weft_reducer_bucket(weft_reducer* reducer, uint32_t bucket, weft_bucket_info* info,
                                         uint64_t* params, uint64_t capacity);
WEFT_API weft_status weft_reducer_error(weft_reducer* reducer, weft_error* error);
typedef struct weft_reducer_stats {
  size_t struct_size;
  uint64_t steps;
  uint64_t local_steps;
  uint64_t failed_steps;
  uint64_t bytes_reduced;
  uint64_t bucket_bytes;
  uint64_t scratch_bytes;
  uint64_t other_bytes;
  uint64_t step_ns;
  uint64_t exposed_ns;
  uint64_t communication_ns;
  uint64_t retained_bytes;
  uint32_t active_ranks;
  int32_t first_active;
  int32_t last_active;
  uint32_t skipped_buckets;
  double divisor;
  uint64_t absent_params;
  uint64_t absent_everywhere;
  uint64_t hook_bytes;
  uint64_t sent_bytes;
  uint64_t plain_bytes;
  uint64_t plan_generation;
  uint64_t param_bytes;
  uint64_t absent_bytes;
  uint64_t compute_ns;
  uint64_t overlap_ns;
  uint64_t mean_step_ns;
  uint64_t mean_compute_ns;
  uint64_t mean_communication_ns;
  uint64_t mean_overlap_ns;
  uint64_t mean_exposed_ns;
  uint64_t step_p50_ns;
  uint64_t step_p99_ns;
  uint64_t exposed_p50_ns;
  uint64_t exposed_p99_ns;
  uint64_t straggler_ns;
  int32_t straggler;
  uint32_t reserved;
  uint64_t captures;
  uint64_t launches;
  uint64_t replays;
  uint64_t copied_gradients;
  double hook_error;
  uint32_t hook_error_bucket;
  uint32_t reserved2;
} weft_reducer_stats;
#define WEFT_REDUCER_STATS_INIT \
  {sizeof(weft_reducer_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0}
WEFT_API weft_status weft_reducer_query(weft_reducer* reducer, weft_reducer_stats* stats);
WEFT_API weft_status weft_reducer_report(weft_reducer* reducer, char* text, uint64_t* size);
#ifdef __cplusplus
}
#endif
#endif
#ifdef __cplusplus
extern "C" {
#endif
typedef struct weft_averager weft_averager;
typedef struct weft_average_level {
  size_t struct_size;
  uint64_t period;
  weft_comm* comm;
} weft_average_level;
#define WEFT_AVERAGE_LEVEL_INIT {sizeof(weft_average_level), 0, NULL}
typedef struct weft_averager_options {
  size_t struct_size;
  const weft_param* params;
  uint64_t param_count;
  uint64_t param_size;
  const weft_average_level* levels;
  uint64_t level_count;
  uint64_t level_size;
  uint64_t warmup;
  uint64_t first_step;
  uint64_t chunk_bytes;
  int64_t timeout_ms;
} weft_averager_options;
#define WEFT_AVERAGER_OPTIONS_INIT {sizeof(weft_averager_options), NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0}
WEFT_API weft_status weft_averager_create(weft_comm* comm, const weft_averager_options* options,
                                          weft_averager** averager, weft_error* error);
WEFT_API weft_status weft_averager_step(weft_averager* averager, uint64_t* period, weft_error* error);
WEFT_API weft_status weft_averager_destroy(weft_averager** averager);
#ifdef __cplusplus
}
#endif
#endif
#ifndef WEFT_DIAGNOSTICS_H
#define WEFT_DIAGNOSTICS_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct weft_backend_info {
  size_t struct_size;
  char name[32];
  uint8_t available;
  uint8_t is_module;
  uint8_t reserved[6];
  char reason[512];
} weft_backend_info;
#define WEFT_BACKEND_INFO_INIT {sizeof(weft_backend_info), {0}, 0, 0, {0}, {0}}
WEFT_API weft_status weft_backend_count(weft_context* context, uint64_t* count);
WEFT_API weft_status weft_backend_query(weft_context* context, uint64_t index, weft_backend_info* info);
WEFT_API weft_status weft_capability(weft_context* context, const char* backend, weft_coll coll,
                                     weft_dtype dtype, weft_op op, weft_device_kind device_kind,
                                     uint8_t* supported);
typedef struct weft_comm_info {
  size_t struct_size;
  int32_t rank;
  int32_t size;
  int32_t local_size;
  uint8_t failed;
  uint8_t authenticated;
  uint8_t reserved[2];
  char backend[32];
  char algorithm[32];
  uint64_t operations;
  uint64_t bytes_shared;
  uint64_t bytes_direct;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t arena_bytes;
  char transports[128];
} weft_comm_info;
#define WEFT_COMM_INFO_INIT {sizeof(weft_comm_info), 0, 0, 0, 0, 0, {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, {0}}
WEFT_API weft_status weft_comm_query(const weft_comm* comm, weft_comm_info* info);
WEFT_API weft_status weft_trace_start(weft_context* context, uint64_t capacity);
WEFT_API weft_status weft_trace_stop(weft_context* context);
WEFT_API weft_status weft_trace_write(weft_context* context, const char* path);
WEFT_API weft_status weft_flight_write(weft_comm* comm, const char* folder);
#ifdef __cplusplus
}
#endif
#endif
#ifndef WEFT_RECOVERY_H
#define WEFT_RECOVERY_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct weft_shrink_options {
  size_t struct_size;
  int64_t timeout_ms;
  uint64_t flags;
} weft_shrink_options;
#define WEFT_SHRINK_LAST_OF_TWO UINT64_C(1)
#define WEFT_SHRINK_OPTIONS_INIT {sizeof(weft_shrink_options), 0, 0}
WEFT_API weft_status weft_comm_shrink(weft_comm* comm, const weft_shrink_options* options,
                                      weft_comm** survivors, weft_error* error);
typedef struct weft_verdict {
  size_t struct_size;
  uint64_t last_finished_step;
  uint64_t last_committed_step;
  uint64_t next_step;
  uint8_t can_retry;
  uint8_t rolled_back;
  uint8_t reserved[6];
} weft_verdict;
#define WEFT_VERDICT_INIT {sizeof(weft_verdict), 0, 0, 0, 0, 0, {0}}
WEFT_API weft_status weft_reducer_verdict(weft_reducer* reducer, weft_verdict* verdict);
WEFT_API weft_status weft_reducer_rebind(weft_reducer* reducer, weft_comm* comm, weft_error* error);
WEFT_API weft_status weft_reducer_retry(weft_reducer* reducer, const weft_finish_options* options);
#ifdef __cplusplus
}
#endif
#endif
#endif
