/* weft/diagnostics.h: backends and what they can do, communicator statistics, traces, flight records. */
#ifndef WEFT_DIAGNOSTICS_H
#define WEFT_DIAGNOSTICS_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"
#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Backends ------------------------------------------------------------------------------------------ */

/* Describes a backend. */
typedef struct weft_backend_info {
  size_t struct_size;
  char name[32];     /* zero-terminated */
  uint8_t available; /* 0 or 1 */
  uint8_t is_module; /* 1: loaded at run time */
  uint8_t reserved[6];
  char reason[512]; /* why the backend is not available, or what it will use */
} weft_backend_info;
#define WEFT_BACKEND_INFO_INIT {sizeof(weft_backend_info), {0}, 0, 0, {0}, {0}}

/* Returns how many backends this library knows. The first call of a context loads the modules.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_backend_count(weft_context* context, uint64_t* count);
/* Describes a backend. The first call of a context loads the modules.
 * index: less than the count, else WEFT_ERR_ARG. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_backend_query(weft_context* context, uint64_t index, weft_backend_info* info);

/* Tells whether a backend executes a collective in memory of a device kind: *supported is 0 or 1.
 * op: 0 for collectives that do not reduce.
 * Returns: WEFT_ERR_ARG for unknown values. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_capability(weft_context* context, const char* backend, weft_coll coll,
                                     weft_dtype dtype, weft_op op, weft_device_kind device_kind,
                                     uint8_t* supported);

/* ---- Communicators ------------------------------------------------------------------------------------- */

/* Topology, backend and byte counters of a communicator. */
typedef struct weft_comm_info {
  size_t struct_size;
  int32_t rank;          /* this rank */
  int32_t size;          /* world size */
  int32_t local_size;    /* ranks on this host */
  uint8_t failed;        /* 0 or 1 */
  uint8_t authenticated; /* 1: members proved that they hold the job's secret, or the communicator's key that
                            the program's own all-gather carried; 0: there is none */
  uint8_t reserved[2];
  char backend[32];        /* its name, zero-terminated */
  char algorithm[32];      /* of the last completed collective */
  uint64_t operations;     /* completed on this communicator */
  uint64_t bytes_shared;   /* payload bytes that this rank moved through shared memory, staged or mapped */
  uint64_t bytes_direct;   /* payload bytes that this rank read or wrote in other processes' private memory */
  uint64_t bytes_sent;     /* payload bytes handed to a transport */
  uint64_t bytes_received; /* payload bytes received from a transport */
  uint64_t arena_bytes;    /* memory of this rank's arena that is populated */
  char transports[128];    /* transports of messages ("tcp/eth0"), and the sizes at which shm changes its
                              algorithm */
  int32_t local_rank;      /* number of this rank among those of its host, in the order of ranks */
  int32_t host_index;      /* number of this host; hosts are in the order of their lowest ranks */
  int32_t host_count;      /* hosts of the communicator, simulated ones (WEFT_HOSTS) included */
  uint32_t reserved2;
} weft_comm_info;
#define WEFT_COMM_INFO_INIT \
  {sizeof(weft_comm_info), 0, 0, 0, 0, 0, {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0}

/* Describes a communicator. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_comm_query(const weft_comm* comm, weft_comm_info* info);

/* ---- Traces and flight records ------------------------------------------------------------------------- */

/* Starts to record the events of all steps and collectives of the context.
 * capacity: events that are kept, then the oldest are overwritten; 0: 65536. Ends the trace of WEFT_TRACE.
 * Returns: WEFT_ERR_STATE if a trace is running; WEFT_ERR_NOMEM. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_trace_start(weft_context* context, uint64_t capacity);
/* Stops recording. Returns: WEFT_ERR_STATE if no trace is running. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_trace_stop(weft_context* context);
/* Writes what was recorded as a Chrome trace (JSON), for Perfetto, `weft trace merge` and `weft report`. For
 * each communicator that exists, it measures the offset of this rank's clock to rank 0's (0.5 s at most).
 * Returns: WEFT_ERR_SYSTEM naming the path. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_trace_write(weft_context* context, const char* path);

/* Writes the metrics of the context's communicators and reducers in Prometheus's text format, for a program
 * that serves them itself. With WEFT_METRICS=FOLDER each context keeps a file of them there.
 * *size: capacity in, bytes of the whole text with its final 0 out; text: NULL to query the size, which may
 * grow until the next call.
 * Returns: WEFT_ERR_ARG if the text was cut to the capacity. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_metrics_text(weft_context* context, char* text, uint64_t* size);

/* Writes the flight record: the last operations of this rank on the communicator's lanes, and its tagged
 * messages, into folder/weft-<communicator>-rank<rank>.json, for `weft trace explain`. For programs that seem
 * to hang. With weft_context_options.flight_path, each rank of a communicator that fails (other than by its
 * own destroy) does so by itself: calls that fail return once the record is written, or after 0.5 s.
 * Returns: WEFT_ERR_SYSTEM if the file cannot be written; WEFT_ERR_STATE from a callback.
 * Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_flight_write(weft_comm* comm, const char* folder);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_DIAGNOSTICS_H */
