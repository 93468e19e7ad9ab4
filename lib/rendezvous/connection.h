// A SecureStream on a non-blocking socket. Used by the store's server and client and by the mesh, each on the
// thread that owns the connection; after that thread has handed it over, see SecureStream for who may do
// what.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "rendezvous/secure_stream.h"

namespace weft {

class Connection {
 public:
  Connection() = default;
  Connection(Fd fd, Role role, const AuthKey& key)
      : fd_(std::move(fd)), stream_(std::make_unique<SecureStream>(role, key)) {}

  int fd() const { return fd_.get(); }
  bool open() const { return fd_.valid(); }
  bool established() const { return stream_->established(); }
  bool greeted() const { return stream_->greeted(); }
  void set_limit(size_t limit) { stream_->set_limit(limit); }

  // Read what is there, a bounded amount, and append the frames. *closed: the peer has ended the connection
  // (after those frames). Errors: kAuth, kVersion from the stream; what it still wants to say has been
  // written. With `fds`, descriptors that came with the bytes are taken as well; otherwise they are dropped.
  Status read(std::vector<Bytes>* frames, bool* closed, std::vector<Fd>* fds = nullptr);
  // Queue a frame; flush() writes it.
  void send(ByteView frame) { stream_->send(frame); }
  // Write what the socket takes now. False when the connection is broken; reading will tell why.
  bool flush();
  // Write what is queued, then `frame` with a descriptor, waiting for room until the deadline.
  Status send_with_fd(ByteView frame, int fd, Clock& clock, Deadline deadline);

  size_t queued() const { return stream_->out().size(); }
  // Events for poll and epoll: POLLIN, and POLLOUT while something is queued.
  short events() const;
  // Tell the peer that nothing follows, so that it reads everything before it sees the end.
  void finish_sending();
  // No more bytes in either direction; the descriptor stays taken.
  void shut_down();
  void close();

 private:
  Fd fd_;
  std::unique_ptr<SecureStream> stream_;
};

// Waits until `fd` is ready for `events`, or the deadline: then *ready is false. kInterrupted: the program
// ends the call.
Status await_event(int fd, short events, Clock& clock, Deadline deadline, bool* ready);
// The same for a farewell, which no interrupt cuts short. False at the deadline.
bool wait_for(int fd, short events, Clock& clock, Deadline deadline);

}  // namespace weft
