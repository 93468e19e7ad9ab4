/* A complete transport for Weft in one file. Frames are packets of Unix sockets (SOCK_SEQPACKET), which
 * preserve boundaries and order. Each rank listens under a name that the kernel chooses. Each pair has one
 * connection for each direction, made by the sender. own_network.c uses it, and Weft's conformance tests run
 * over it. */
#define _GNU_SOURCE
#include "unix_transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { kPieceBytes = 32 * 1024, kFrameBytes = kPieceBytes + WEFT_TRANSPORT_HEAD, kPackets = 16 };

/* A frame that a full socket has not accepted yet; Weft owns the bytes. */
struct pending {
  struct pending* next;
  struct iovec parts[2];
  uint64_t token;
};

struct peer {
  int fd; /* we send on it; -1: not connected, or lost */
  struct pending* first;
  struct pending** last;
};

struct link {
  weft_transport_events events;
  int size;
  int listener;
  struct peer* peers; /* by rank */
  int* incoming;      /* connections of other ranks, in the order of arrival */
  int incoming_count;
  unsigned char frame[kFrameBytes];
};

static void close_peer(void* self, int32_t rank);

static weft_status fail(struct link* link) {
  if (link == NULL) return WEFT_ERR_NOMEM;
  if (link->listener >= 0) close(link->listener);
  free(link->peers);
  free(link->incoming);
  free(link);
  return WEFT_ERR_SYSTEM;
}

static weft_status open_link(void* user_data, int32_t rank, int32_t size, const weft_transport_events* events,
                             void** self, void* address, uint64_t* address_bytes) {
  struct sockaddr_un name;
  socklen_t name_bytes = sizeof name;
  struct link* link = calloc(1, sizeof *link);
  int r;
  (void)user_data;
  (void)rank;
  if (link == NULL) return fail(link);
  link->events = *events;
  link->size = size;
  link->peers = calloc((size_t)size, sizeof *link->peers);
  link->incoming = calloc((size_t)size, sizeof *link->incoming);
  link->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (link->peers == NULL || link->incoming == NULL || link->listener < 0) return fail(link);
  for (r = 0; r < size; r++) {
    link->peers[r].fd = -1;
    link->peers[r].last = &link->peers[r].first;
  }
  memset(&name, 0, sizeof name);
  name.sun_family = AF_UNIX;
  /* An empty name: the kernel chooses one outside any file system. */
  if (bind(link->listener, (struct sockaddr*)&name, sizeof name.sun_family) != 0 ||
      listen(link->listener, size) != 0 ||
      getsockname(link->listener, (struct sockaddr*)&name, &name_bytes) != 0 || name_bytes > *address_bytes) {
    return fail(link);
  }
  memcpy(address, &name, name_bytes);
  *address_bytes = name_bytes;
  *self = link;
  return WEFT_OK;
}

static weft_status connect_peer(void* self, int32_t rank, const void* address, uint64_t address_bytes,
                                weft_transport_limits* limits) {
  struct link* link = self;
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return WEFT_ERR_SYSTEM;
  if (connect(fd, address, (socklen_t)address_bytes) != 0) {
    close(fd);
    return WEFT_ERR_PEER_FAILED;
  }
  link->peers[rank].fd = fd;
  limits->piece_bytes = kPieceBytes;
  limits->eager_bytes = kPieceBytes;
  return WEFT_OK;
}

/* 1: the socket took the frame; 0: it is full; -1: the peer is gone. */
static int give(const struct peer* peer, struct iovec* parts) {
  struct msghdr message;
  memset(&message, 0, sizeof message);
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  for (;;) {
    if (sendmsg(peer->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 1;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return 0;
    if (errno != EINTR) return -1;
  }
}

static int32_t send_frame(void* self, int32_t rank, const void* head, uint64_t head_bytes, const void* data,
                          uint64_t data_bytes, uint64_t token) {
  struct link* link = self;
  struct peer* peer = &link->peers[rank];
  struct iovec parts[2];
  struct pending* pending;
  int given = 0;
  if (peer->fd < 0) return WEFT_TRANSPORT_LOST;
  parts[0].iov_base = (void*)(uintptr_t)head;
  parts[0].iov_len = head_bytes;
  parts[1].iov_base = (void*)(uintptr_t)data;
  parts[1].iov_len = data_bytes;
  if (peer->first == NULL) given = give(peer, parts); /* otherwise it would overtake pending frames */
  if (given > 0) return WEFT_TRANSPORT_SENT;
  if (given < 0) return WEFT_TRANSPORT_LOST;
  pending = malloc(sizeof *pending);
  if (pending == NULL) return WEFT_TRANSPORT_LOST;
  pending->next = NULL;
  pending->token = token;
  memcpy(pending->parts, parts, sizeof parts);
  *peer->last = pending;
  peer->last = &pending->next;
  return WEFT_TRANSPORT_LENT;
}

/* Removes the first pending frame and reports its result. */
static void settle_first(struct link* link, struct peer* peer, weft_status status) {
  struct pending* done = peer->first;
  const uint64_t token = done->token;
  peer->first = done->next;
  if (peer->first == NULL) peer->last = &peer->first;
  free(done);
  link->events.sent(link->events.owner, token, status);
}

static int flush(struct link* link, int rank) {
  struct peer* peer = &link->peers[rank];
  int any = 0;
  while (peer->first != NULL && peer->fd >= 0) {
    const int given = give(peer, peer->first->parts);
    if (given == 0) break;
    any = 1;
    if (given > 0) {
      settle_first(link, peer, WEFT_OK);
    } else {
      link->events.lost(link->events.owner, rank, strerror(errno));
      close_peer(link, rank);
    }
  }
  return any;
}

/* Detects a dead peer by its closed connection, even while there is nothing to send. */
static int look_after(struct link* link, int rank) {
  struct peer* peer = &link->peers[rank];
  char byte;
  if (peer->fd < 0 || recv(peer->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 0) return 0;
  link->events.lost(link->events.owner, rank, "it closed its socket");
  close_peer(link, rank);
  return 1;
}

static int hear(struct link* link, int* fd) {
  int packets;
  for (packets = 0; *fd >= 0 && packets < kPackets; packets++) {
    const ssize_t size = recv(*fd, link->frame, sizeof link->frame, MSG_DONTWAIT);
    if (size > 0) {
      link->events.heard(link->events.owner, link->frame, (uint64_t)size);
    } else if (size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      close(*fd); /* no more packets arrive; look_after reports the peer */
      *fd = -1;
    } else {
      break;
    }
  }
  return packets > 0;
}

static int32_t progress(void* self) {
  struct link* link = self;
  int any = 0;
  int r;
  while (link->incoming_count < link->size - 1) {
    const int fd = accept4(link->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) break;
    link->incoming[link->incoming_count++] = fd;
  }
  for (r = 0; r < link->incoming_count; r++) any |= hear(link, &link->incoming[r]);
  for (r = 0; r < link->size; r++) any |= flush(link, r) | look_after(link, r);
  return any;
}

static void close_peer(void* self, int32_t rank) {
  struct link* link = self;
  struct peer* peer = &link->peers[rank];
  if (peer->fd >= 0) close(peer->fd);
  peer->fd = -1;
  while (peer->first != NULL) settle_first(link, peer, WEFT_ERR_CANCELLED);
}

static int32_t settled(void* self) {
  const struct link* link = self;
  int r;
  for (r = 0; r < link->size; r++) {
    if (link->peers[r].first != NULL) return 0;
  }
  return 1;
}

static void close_link(void* self) {
  struct link* link = self;
  int r;
  for (r = 0; r < link->size; r++) {
    if (link->peers[r].fd >= 0) close(link->peers[r].fd);
    while (link->peers[r].first != NULL) {
      struct pending* next = link->peers[r].first->next;
      free(link->peers[r].first);
      link->peers[r].first = next;
    }
  }
  for (r = 0; r < link->incoming_count; r++) {
    if (link->incoming[r] >= 0) close(link->incoming[r]);
  }
  fail(link);
}

const weft_transport* unix_transport(void) {
  static const weft_transport table = {
      .struct_size = sizeof(weft_transport),
      .name = "unix",
      .summary = "packets of Unix sockets between the processes of a host",
      .open = open_link,
      .connect = connect_peer,
      .send = send_frame,
      .progress = progress,
      .close_peer = close_peer,
      .settled = settled,
      .close = close_link,
  };
  return &table;
}
