#include "support/thread_group.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/text.h"
#include "coll/hierarchical/hierarchical.h"
#include "coll/over_transport.h"
#include "coll/staged.h"
#include "support/sanitized.h"

namespace weft::test {

class ThreadExchange final : public Exchange {
 public:
  ThreadExchange(ThreadGroup& group, int rank) : group_(group), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_.size_; }

  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override {
    const uint32_t round = round_++;
    {
      const std::lock_guard lock(group_.mutex_);
      group_.rounds_[round][rank_] = Bytes(mine.begin(), mine.end());
    }
    for (uint32_t waited = 0;; waited++) {
      {
        const std::lock_guard lock(group_.mutex_);
        const std::map<int, Bytes>& given = group_.rounds_[round];
        if (static_cast<int>(given.size()) == group_.size_) {
          all->clear();
          for (const auto& [rank, bytes] : given) all->push_back(bytes);
          return {};
        }
      }
      if (deadline.expired(group_.clock_)) return absent(round);
      group_.clock_.relax(waited);
    }
  }

 private:
  Status absent(uint32_t round) {
    const std::lock_guard lock(group_.mutex_);
    std::vector<int> ranks;
    for (int r = 0; r < group_.size_; r++) {
      if (!group_.rounds_[round].contains(r)) ranks.push_back(r);
    }
    return Status::error(Code::kTimeout, cat("rank ", list_text(ranks), " did not come")).with_ranks(ranks);
  }

  ThreadGroup& group_;
  const int rank_;
  uint32_t round_ = 0;
};

class ThreadFds final : public FdChannel {
 public:
  ThreadFds(ThreadGroup& group, int rank) : group_(group), rank_(rank) {}
  bool same_host(int) const override { return true; }

  Status send_fd(int rank, int fd) override {
    Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return Status::system("dup", errno);
    const std::lock_guard lock(group_.mutex_);
    group_.descriptors_[{rank_, rank}].push_back(std::move(copy));
    return {};
  }

  Status receive_fd(int rank, Fd* fd, Deadline deadline) override {
    for (uint32_t waited = 0;; waited++) {
      {
        const std::lock_guard lock(group_.mutex_);
        std::deque<Fd>& queue = group_.descriptors_[{rank, rank_}];
        if (!queue.empty()) {
          *fd = std::move(queue.front());
          queue.pop_front();
          return {};
        }
      }
      if (deadline.expired(group_.clock_)) {
        return Status::error(Code::kTimeout, cat("rank ", rank, " sent no descriptor")).with_ranks({rank});
      }
      group_.clock_.relax(waited);
    }
  }

 private:
  ThreadGroup& group_;
  const int rank_;
};

ThreadGroup::ThreadGroup(int size, Clock& clock, std::shared_ptr<loopback::Delays> delays)
    : size_(size),
      clock_(clock),
      hub_(std::make_shared<loopback::ControlHub>(size, clock, std::move(delays))) {}

std::unique_ptr<Exchange> ThreadGroup::exchange(int rank) {
  return std::make_unique<ThreadExchange>(*this, rank);
}

std::unique_ptr<FdChannel> ThreadGroup::fds(int rank) {
  return std::make_unique<ThreadFds>(*this, rank);
}

MakeCollectives collectives_of(const Backend& backend, const std::string& algorithms, const Backend* host) {
  if (backend.on_device) {
    return [&backend, make_host = staged_over(collectives_of(*host, algorithms))](
               BackendArgs args, std::unique_ptr<Collectives>* collectives) -> Status {
      std::unique_ptr<Collectives> below;
      WEFT_TRY(make_host(args, &below));
      args.host_collectives = &below;
      return backend.make_collectives(args, collectives);
    };
  }
  return
      [&backend, algorithms](const BackendArgs& args, std::unique_ptr<Collectives>* collectives) -> Status {
        if (backend.make_collectives != nullptr) return backend.make_collectives(args, collectives);
        std::unique_ptr<Transport> transport;
        coll::Forced forced;
        WEFT_TRY(coll::parse_forced(algorithms, &forced));
        if (backend.local != nullptr) {
          return coll::make_hierarchical(backend, args, forced, collectives);
        }
        WEFT_TRY(make_transport(backend, args, &transport));
        *collectives = over_transport(std::move(transport), args.exchange.rank(), args.exchange.size(),
                                      args.host, args.clock, forced);
        return {};
      };
}

MakeCollectives staged_over(MakeCollectives make) {
  return
      [make = std::move(make)](const BackendArgs& args, std::unique_ptr<Collectives>* collectives) -> Status {
        WEFT_TRY(make(args, collectives));
        *collectives = staged(std::move(*collectives), args.exchange.rank(), args.exchange.size());
        return {};
      };
}

Status form(ThreadGroup& group, int rank, const std::shared_ptr<Context>& context,
            const MakeCollectives& make, const CommOptions& given, std::shared_ptr<Comm>* comm,
            std::vector<int> hosts) {
  CommOptions options = given;
  options.arena_limit_bytes = std::min(options.arena_limit_bytes, kMostArenaBytes);
  const std::unique_ptr<Exchange> exchange = group.exchange(rank);
  const std::unique_ptr<FdChannel> real_fds = group.fds(rank);
  hosts.resize(static_cast<size_t>(group.size()));
  LabelledHosts fds(*real_fds, hosts, rank);
  BackendArgs args{*exchange, context->clock(), context->log(), context->host()};
  args.arena_limit_bytes = options.arena_limit_bytes;
  args.deadline = Deadline::after(context->clock(), options.init_timeout_ms, options.init_timeout_ms);
  args.fds = &fds;
  args.crowded = true;
  args.failpoints = options.failpoints;
  Measurements measurements("off,pull=1M");
  args.measurements = &measurements;
  args.accelerator = context->options().accelerator;
  args.device = options.device;
  if (args.accelerator != nullptr && args.device < 0) {
    WEFT_TRY(args.accelerator->current_device(&args.device));
  }
  std::unique_ptr<Collectives> collectives;
  WEFT_TRY(make(args, &collectives));
  *comm = Comm::create(context, rank, group.size(), options, group.connect(rank), std::move(collectives));
  return *comm ? Status() : Status::error(Code::kInternal, "the communicator could not be made");
}

}  // namespace weft::test
