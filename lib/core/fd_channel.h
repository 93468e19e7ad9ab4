// Handing file descriptors to ranks of the same host while a comm is being formed: how the shm backend shares
// its memfds. Implemented by lib/rendezvous/mesh; a comm without unix sockets has none (BackendArgs::fds is
// null).
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
  // Whether `rank` is connected by a unix socket, which is so exactly if it runs as the same user on the same
  // kernel and in the same network namespace. Equal on both sides. True for the own rank.
  virtual bool same_host(int rank) const = 0;
  // Give `rank` a duplicate of fd. In order per rank; does not wait for the receiver. kArg for the own rank
  // and for ranks that are not same_host; kPeerFailed when it is gone.
  virtual Status send_fd(int rank, int fd) = 0;
  // The next descriptor that `rank` sent, close-on-exec. kTimeout, kPeerFailed; kArg as above.
  virtual Status receive_fd(int rank, Fd* fd, Deadline deadline) = 0;
};

// Simulated hosts: ranks share one if their labels are equal, and they really do.
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
