/* weft/weft_transport.h: transports of the program: a table of functions that carries frames between ranks.
 *
 * Weft adds matching, flow control, long messages, deadlines, all collectives, and the reducer. A frame is a
 * head of a few bytes and at most one piece of data. A transport delivers frames between two ranks whole,
 * unchanged, once and in order; between different pairs in any order. examples/unix_transport.c is complete.
 *
 * Threads: the functions of a link are called one at a time, by varying threads of Weft or of the program
 * (those that wait in Weft's calls), and must not block. They call weft_transport_events only from inside
 * themselves, on the thread on which they were called.
 *
 * Errors: a frame that is not delivered fails an operation at its deadline. A transport that breaks these
 * rules (a repeated completion, an event outside of these calls) fails the communicator with
 * WEFT_ERR_PEER_FAILED. Limits or an address out of range fail its creation with WEFT_ERR_UNAVAILABLE. The
 * text names the transport. Since 0.9 */
#ifndef WEFT_WEFT_TRANSPORT_H
#define WEFT_WEFT_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "weft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Longest head of a frame, bytes. */
#define WEFT_TRANSPORT_HEAD 128
/* Longest address, bytes. */
#define WEFT_TRANSPORT_ADDRESS 65536

/* Events that a link reports to Weft. Passed to open; valid until close has returned. */
typedef struct weft_transport_events {
  size_t struct_size;
  void* owner; /* the first argument of the functions below */
  /* Reports a received frame: head and data in one piece of memory, which is read before this returns. Only
   * from inside progress. May call send before it returns. */
  void (*heard)(void* owner, const void* frame, uint64_t size);
  /* Ends the use of a frame for which send returned WEFT_TRANSPORT_LENT: its memory is not read any more. The
   * frame was sent if status is WEFT_OK, else its peer is lost. From inside send, progress and close_peer. */
  void (*sent)(void* owner, uint64_t token, weft_status status);
  /* Reports that the connection to a peer is lost. reason: text for the error, may be NULL. From inside send
   * and progress. */
  void (*lost)(void* owner, int32_t peer, const char* reason);
} weft_transport_events;

/* Sizes of a peer's frames and messages. */
typedef struct weft_transport_limits {
  size_t struct_size;
  uint64_t piece_bytes; /* largest data of a frame, 1 KiB to 1 GiB; default 64 KiB */
  uint64_t eager_bytes; /* largest message that is sent without a handshake; default and maximum: 512 KiB */
} weft_transport_limits;

/* Result of send. */
typedef int32_t weft_transport_result;
#define WEFT_TRANSPORT_SENT 0 /* the frame was sent or copied */
#define WEFT_TRANSPORT_LENT 1 /* the memory is in use until events.sent(token) */
#define WEFT_TRANSPORT_LOST 2 /* the peer is lost; nothing was sent */

/* A transport. All functions but settled and path are required. */
typedef struct weft_transport {
  size_t struct_size;
  const char* name;    /* of the backend: 1 to 27 of a-z, 0-9 and '-'; not one of Weft's */
  const char* summary; /* one line for lists of backends; default: the name */
  void* user_data;
  uint64_t flags; /* 0 */
  /* Creates this rank's link of a communicator and returns the address at which other ranks reach it.
   * *address_bytes: WEFT_TRANSPORT_ADDRESS in, length of the address out, at least 1. events may be kept
   * until close has returned. */
  weft_status (*open)(void* user_data, int32_t rank, int32_t size, const weft_transport_events* events,
                      void** link, void* address, uint64_t* address_bytes);
  /* Connects to a peer; called once for each, first by the lower rank of a pair. limits: the defaults in. */
  weft_status (*connect)(void* link, int32_t peer, const void* address, uint64_t address_bytes,
                         weft_transport_limits* limits);
  /* Sends head and data as one frame; data may be NULL if data_bytes is 0. If the network has no room, keep
   * the pointers, return WEFT_TRANSPORT_LENT and send the frame in progress. */
  weft_transport_result (*send)(void* link, int32_t peer, const void* head, uint64_t head_bytes,
                                const void* data, uint64_t data_bytes, uint64_t token);
  /* Does a bounded amount of the work that is possible now. Returns 1 if it did any, else 0. */
  int32_t (*progress)(void* link);
  /* Closes the connection to a peer at once. Frames in use for it end through events.sent, from inside this
   * call or later. */
  void (*close_peer)(void* link, int32_t peer);
  /* Returns 1 if all sent frames have left this process, else 0. Default (NULL): always 1. */
  int32_t (*settled)(void* link);
  /* Ends the link: when it returns no event is reported and no frame is read any more. */
  void (*close)(void* link);
  /* Returns the path of a peer's frames, as text for the user. Default (NULL): the name. */
  const char* (*path)(void* link, int32_t peer);
} weft_transport;
#define WEFT_TRANSPORT_INIT \
  {sizeof(weft_transport), NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* Registers a transport as the backend `name` of this context, and as "shm+name", which uses shared memory
 * inside a host. Call it on all ranks.
 * transport: copied; its texts and user_data must exist until the context and all objects made from it are
 * destroyed. error: may be NULL.
 * Returns: WEFT_ERR_ARG for missing functions, unknown flags, or a name that is invalid or taken.
 * Threads: one thread, before anything else is made from the context. Since 0.9 */
WEFT_API weft_status weft_context_add_transport(weft_context* context, const weft_transport* transport,
                                                weft_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_WEFT_TRANSPORT_H */
