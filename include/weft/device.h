/* weft/device.h: kinds of devices, their streams, and information about them. */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kind of memory and of the processor that owns it. */
typedef int32_t weft_device_kind;
#define WEFT_DEVICE_HOST 0 /* the host and its memory */
#define WEFT_DEVICE_CUDA 1 /* a CUDA device */

/* Names the device and the stream on which work is ordered. A NULL pointer to a weft_stream means the
 * host. */
struct weft_stream {
  size_t struct_size;
  weft_device_kind kind; /* default WEFT_DEVICE_HOST */
  int32_t device;        /* index of the device; 0 for the host */
  void* handle;          /* for WEFT_DEVICE_CUDA a cudaStream_t, for which NULL is a valid value; borrowed */
};
#define WEFT_STREAM_INIT {sizeof(weft_stream), 0, 0, NULL}

/* Describes the devices of one kind. */
typedef struct weft_device_info {
  size_t struct_size;
  int32_t device_count; /* 0 if not available */
  uint8_t available;    /* 0 or 1 */
  uint8_t reserved[3];
  char reason[512]; /* why the kind is not available, or which library it uses */
} weft_device_info;
#define WEFT_DEVICE_INFO_INIT {sizeof(weft_device_info), 0, 0, {0}, {0}}

/* Describes the devices of a kind. The first call loads the library of that kind.
 * Returns: WEFT_ERR_ARG for an unknown kind and for WEFT_DEVICE_HOST. Threads: any thread. Since 0.9 */
WEFT_API weft_status weft_device_query(weft_context* context, weft_device_kind device_kind,
                                       weft_device_info* info);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_DEVICE_H */
