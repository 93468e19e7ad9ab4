// An Exchange and an FdChannel among the ranks of one host, on top of those of all ranks. Used during group
// setup, on the thread that makes the communicator.
#pragma once

#include <vector>

#include "transport/exchange.h"
#include "transport/fd_channel.h"

namespace weft::coll {

// Every all-gather of a host is part of one all-gather of all ranks. So a host that needs fewer of them, or
// fails, keeps taking part until all hosts are done: finish_together().
class LocalExchange final : public Exchange {
 public:
  // members: ranks of `all`, ascending. members and `all` outlive this object.
  LocalExchange(Exchange& all, const std::vector<int>& members);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int name(int rank) const override { return all_.name(members_[static_cast<size_t>(rank)]); }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override;
  int watch_fd() const override { return all_.watch_fd(); }

  // Takes part in the all-gathers of other hosts until all hosts are done. Called once by every rank, whether
  // its setup succeeded or failed.
  Status finish_together(Deadline deadline);

 private:
  Status news() override { return all_.check(); }

  Exchange& all_;
  const std::vector<int>& members_;
  int rank_ = 0;
};

class LocalFds final : public FdChannel {
 public:
  LocalFds(FdChannel& all, const std::vector<int>& members) : all_(all), members_(members) {}
  bool same_host(int rank) const override { return all_.same_host(member(rank)); }
  Status send_fd(int rank, int fd) override { return all_.send_fd(member(rank), fd); }
  Status receive_fd(int rank, Fd* fd, Deadline deadline) override {
    return all_.receive_fd(member(rank), fd, deadline);
  }

 private:
  int member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  FdChannel& all_;
  const std::vector<int>& members_;
};

}  // namespace weft::coll
