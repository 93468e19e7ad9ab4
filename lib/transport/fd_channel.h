// Passes file descriptors to ranks of the same host while a communicator is being created: the shm backend
// shares its memfds this way. Implemented by lib/rendezvous/mesh. A communicator without unix sockets has
// none (BackendArgs::fds is null).
#pragma once

#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"

namespace weft {

// Threads: one thread at a time, before Control::start.
class FdChannel {
 public:
  virtual ~FdChannel() = default;
  // Returns true if `rank` is connected by a unix socket: it runs as the same user, on the same kernel and in
  // the same network namespace. Both sides get the same answer. True for this rank itself.
  virtual bool same_host(int rank) const = 0;
  // Sends `rank` a duplicate of fd. In order per rank; does not wait for the receiver. kArg for this rank
  // itself and for ranks on other hosts; kPeerFailed when the rank is gone.
  virtual Status send_fd(int rank, int fd) = 0;
  // Receives the next descriptor from `rank`, close-on-exec. kTimeout, kPeerFailed; kArg as above.
  virtual Status receive_fd(int rank, Fd* fd, Deadline deadline) = 0;
};

// Simulated hosts: ranks are on the same host if their labels are equal and they really are.
class LabelledHosts final : public FdChannel {
 public:
  // fds and labels (by rank) outlive it.
  LabelledHosts(FdChannel& fds, const std::vector<int>& labels, int rank)
      : fds_(fds), labels_(labels), rank_(rank) {}
  bool same_host(int rank) const override { return same_label(rank) && fds_.same_host(rank); }
  Status send_fd(int rank, int fd) override { return fds_.send_fd(rank, fd); }
  Status receive_fd(int rank, Fd* fd, Deadline deadline) override {
    return fds_.receive_fd(rank, fd, deadline);
  }

 private:
  bool same_label(int rank) const {
    return labels_[static_cast<size_t>(rank)] == labels_[static_cast<size_t>(rank_)];
  }
  FdChannel& fds_;
  const std::vector<int>& labels_;
  const int rank_;
};

}  // namespace weft
