/* weft_transport.h - bring your own network: a table of functions that carries frames between ranks. Weft
 * makes the rest of it: matching, flow control, long messages, deadlines, all collectives, and the reducer
 * above them.
 *
 * A frame is a few bytes of Weft's and up to a piece of data. What a network must do: deliver frames between
 * two ranks whole, unchanged, once and in order; between different pairs in any order.
 * examples/unix_transport.c is a complete one.
 *
 * All functions of the table are called one at a time for each link, by changing threads of Weft's or the
 * program's (those that wait in Weft's calls), and must not block. They call back (weft_transport_events)
 * only from inside themselves, on the thread they were called on.
 *
 * What is not delivered fails an operation at its deadline; what breaks these rules (a completion twice, an
 * event from elsewhere, limits out of range) fails the communicator with WEFT_ERR_PEER_FAILED, and its text
 * names the transport. Since 0.9 */
#ifndef WEFT_WEFT_TRANSPORT_H
#define WEFT_WEFT_TRANSPORT_H

#include "weft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The longest head of a frame, bytes. */
#define WEFT_TRANSPORT_HEAD 128
/* The longest address, bytes. */
#define WEFT_TRANSPORT_ADDRESS 65536

/* What a link tells Weft. Passed to open; valid until close has returned. */
typedef struct weft_transport_events {
  size_t struct_size;
  void* owner; /* the first argument of the functions below */
  /* A frame came: its bytes, head and data one behind the other, read before this returns. Only from inside
   * progress, and it may call send before it returns. */
  void (*heard)(void* owner, const void* frame, uint64_t size);
  /* A frame that was lent (see send) is not read any more; it went out if status is WEFT_OK, else its peer is
   * lost. From inside send, progress and close_peer. */
  void (*sent)(void* owner, uint64_t token, weft_status status);
  /* Nothing reaches this peer any more, or comes from it. reason: text for the error, may be NULL. From
   * inside send and progress. */
  void (*lost)(void* owner, int32_t peer, const char* reason);
} weft_transport_events;

/* How a peer's frames are best cut. */
typedef struct weft_transport_limits {
  size_t struct_size;
  uint64_t piece_bytes; /* data of one frame at most; 1 KiB to 1 GiB; default 64 KiB */
  uint64_t eager_bytes; /* up to here a message is sent without asking first; default and most: 512 KiB */
} weft_transport_limits;

/* Results of send. */
#define WEFT_TRANSPORT_SENT 0 /* the frame is on its way, or copied */
#define WEFT_TRANSPORT_LENT 1 /* its bytes are still needed, until events.sent(token) */
#define WEFT_TRANSPORT_LOST 2 /* the peer is lost; nothing was sent */

typedef struct weft_transport {
  size_t struct_size;
  const char* name;    /* of the backend: 1 to 31 of a-z, 0-9 and '-'; not one that Weft has */
  const char* summary; /* one line for lists of backends; default: the name */
  void* user_data;
  uint64_t flags; /* 0 */
  /* Make one rank's link of a communicator and say where the others reach it. *address_bytes: room,
   * WEFT_TRANSPORT_ADDRESS; becomes the address's length, at least 1. events may be kept until close has
   * returned. */
  weft_status (*open)(void* user_data, int32_t rank, int32_t size, const weft_transport_events* events,
                      void** link, void* address, uint64_t* address_bytes);
  /* Reach a peer, once for each; the lower rank of a pair first. limits has the defaults. */
  weft_status (*connect)(void* link, int32_t peer, const void* address, uint64_t address_bytes,
                         weft_transport_limits* limits);
  /* Send head and data as one frame; data may be NULL if data_bytes is 0. Returns WEFT_TRANSPORT_*. A full
   * network is no reason to wait: keep the pointers, return LENT and go on in progress. */
  int32_t (*send)(void* link, int32_t peer, const void* head, uint64_t head_bytes, const void* data,
                  uint64_t data_bytes, uint64_t token);
  /* Do what can be done now, a bounded amount of it; 1 if there was anything, else 0. */
  int32_t (*progress)(void* link);
  /* Give a peer up, now: what is lent for it comes back through events.sent, from inside this call or later.
   */
  void (*close_peer)(void* link, int32_t peer);
  /* Whether everything that was sent has left this process. Default (NULL): always. */
  int32_t (*settled)(void* link);
  /* The end: nothing is called back and nothing that was lent is read any more when it returns. */
  void (*close)(void* link);
  /* What frames travel on, for the user. Default (NULL): the name. */
  const char* (*path)(void* link, int32_t peer);
} weft_transport;
#define WEFT_TRANSPORT_INIT \
  {sizeof(weft_transport), NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* Make a transport a backend of this context, under its name, and "shm+" name, which goes through shared
 * memory inside a host; on all ranks. The table is copied, the texts and user_data are the program's until
 * the context and all that was made of it are destroyed. Returns WEFT_ERR_ARG for missing functions, unknown
 * flags or a name that is wrong or taken. error may be NULL. Threads: before anything else is made of the
 * context. Since 0.9 */
WEFT_API weft_status weft_context_add_transport(weft_context* context, const weft_transport* transport,
                                                weft_error* error);

#ifdef __cplusplus
}
#endif
#endif
