// A SecureStream on a non-blocking socket. Used by the store's server and client and by the mesh, on the
// thread that owns the connection. After that thread has handed the connection over, SecureStream defines
// which thread may do what.
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

  // Reads a bounded amount of available data and appends the complete frames. *closed: the peer has ended the
  // connection (after those frames). Errors: kAuth, kVersion from the stream; its remaining output has been
  // written. With `fds`, also receives descriptors sent with the bytes; without, they are dropped.
  Status read(std::vector<Bytes>* frames, bool* closed, std::vector<Fd>* fds = nullptr);
  // Queues a frame; flush() writes it.
  void send(ByteView frame) { stream_->send(frame); }
  // Writes as much as the socket accepts now. False: the connection is broken; read() returns the reason.
  bool flush();
  // Writes the queued data, then `frame` with a descriptor. Waits for buffer space until the deadline.
  Status send_with_fd(ByteView frame, int fd, Clock& clock, Deadline deadline);

  // Returns true if descriptors that the peer has sent were lost, because this process has none left.
  bool fds_lost() const { return fds_lost_; }

  size_t queued() const { return stream_->out().size(); }
  // Events for poll and epoll: POLLIN, and POLLOUT while data is queued.
  short events() const;
  // Ends the sending direction, so that the peer reads everything before it sees the end.
  void finish_sending();
  // Ends both directions; the descriptor stays open.
  void shut_down();
  void close();

 private:
  Fd fd_;
  std::unique_ptr<SecureStream> stream_;
  bool fds_lost_ = false;
};

// Waits until `fd` is ready for `events`. At the deadline *ready is false. kInterrupted: the program ends the
// call.
Status await_event(int fd, short events, Clock& clock, Deadline deadline, bool* ready);
// Waits as await_event does, but no interrupt ends it: for a shutdown, which must not be cut short. Returns
// false at the deadline.
bool wait_for(int fd, short events, Clock& clock, Deadline deadline);

}  // namespace weft
