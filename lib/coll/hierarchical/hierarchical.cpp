#include "coll/hierarchical/hierarchical.h"

#include <utility>

#include "base/text.h"
#include "coll/calibration.h"
#include "coll/hierarchical/grouping.h"
#include "coll/hierarchical/lane.h"
#include "coll/hierarchical/local_exchange.h"
#include "coll/lane.h"
#include "device/arena.h"

namespace weft::coll {
namespace {

// The transport connects all ranks, so that any two can send to each other. Collectives use it only among the
// counterparts of different hosts.
class Hierarchical final : public Collectives {
 public:
  Hierarchical(Grouping grouping, const BackendArgs& args, const Forced& forced,
               std::unique_ptr<Collectives> local, std::unique_ptr<Transport> transport)
      : grouping_(std::move(grouping)),
        host_(args.host),
        name_(cat(local->name(), "+", transport->name())),
        local_(std::move(local)),
        transport_(std::move(transport)),
        before_(transport_->counters()),
        progress_reports_(*transport_, args.clock, grouping_.rank, grouping_.size()),
        everybody_{*transport_, args.host, grouping_.rank, grouping_.size(), forced},
        column_{*transport_, args.host,         grouping_.host(), grouping_.host_count(),
                forced,      grouping_.column()} {}

  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    if (key.kind != LaneKey::Kind::kCollective) return open_pair(key, lane);
    std::unique_ptr<CollectiveLane> inside;
    WEFT_TRY(local_->open_lane(key, &inside));
    std::unique_ptr<CollectiveLane> across;
    if (!column_.members.empty()) across = std::make_unique<TransportLane>(column_, key);
    *lane = std::make_unique<HierarchicalLane>(grouping_, host_, local_->arena(), progress_reports_, key,
                                               std::move(inside), std::move(across));
    return {};
  }
  bool on_device() const override { return local_->on_device(); }
  // Excludes small 16-bit sums: host memory rounds them once, in less time than NCCL needs to start.
  bool takes(int device, const CollectiveArgs& args) const override {
    const bool composed =
        args.coll == Coll::kAllReduce || args.coll == Coll::kReduce || args.coll == Coll::kBroadcast;
    return composed && args.count > 0 && !args.ordered && !widens(args) && local_->takes(device, args);
  }
  Status allocate_on_device(int device, uint64_t size, std::shared_ptr<std::byte>* memory) override {
    return local_->allocate_on_device(device, size, memory);
  }
  bool progress() override { return transport_->progress(); }
  bool few_lanes() const override { return local_->few_lanes(); }
  bool settled() override { return transport_->settled(); }
  bool outlives_sender() const override { return transport_->outlives_sender(); }
  uint64_t sent_to(int rank) const override { return transport_->sent_to(rank); }
  uint64_t received_from(int rank) const override { return transport_->received_from(rank); }
  std::shared_ptr<Arena> arena() override { return local_->arena(); }
  CollectiveCounters counters() const override {
    CollectiveCounters counters = local_->counters();
    const TransportCounters moved = transport_->counters();
    counters.bytes_sent += moved.bytes_sent - before_.bytes_sent;
    counters.bytes_received += moved.bytes_received - before_.bytes_received;
    return counters;
  }
  int local_size() const override { return local_->local_size(); }
  std::string transports() const override {
    return cat(transport_->transports(), text(column_.forced), "; in hosts: ", local_->transports());
  }
  const char* name() const override { return name_.c_str(); }

 private:
  // Messages inside a host use the local collectives.
  Status open_pair(LaneKey key, std::unique_ptr<CollectiveLane>* lane) {
    if (!grouping_.shares_host(key.peer)) {
      *lane = std::make_unique<TransportLane>(everybody_, key);
      return {};
    }
    key.peer = grouping_.index_of[static_cast<size_t>(key.peer)];
    return local_->open_lane(key, lane);
  }

  const Grouping grouping_;
  const DeviceOps& host_;
  const std::string name_;
  const std::unique_ptr<Collectives> local_;
  const std::unique_ptr<Transport> transport_;
  const TransportCounters before_;  // excludes the traffic of measurements
  ProgressReports progress_reports_;
  const LaneContext everybody_;
  const LaneContext column_;
};

// Makes the collectives inside the host: one backend, or a device backend over another one.
Status make_inside(const Backend& composed, BackendArgs& args, std::unique_ptr<Collectives>* inside) {
  if (composed.under == nullptr) return composed.local->make_collectives(args, inside);
  std::unique_ptr<Collectives> under;
  const Status made = composed.under->make_collectives(args, &under);
  WEFT_TRY(
      agree_on(args.exchange, made.with_prefix(cat("over ", composed.under->name, ": ")), args.deadline));
  args.host_collectives = &under;
  return composed.local->make_collectives(args, inside);
}

Status make_local(const Backend& composed, const BackendArgs& args, const std::vector<int>& members,
                  std::unique_ptr<Collectives>* local) {
  LocalExchange exchange(args.exchange, members);
  std::unique_ptr<LocalFds> fds;
  if (args.fds != nullptr) fds = std::make_unique<LocalFds>(*args.fds, members);
  BackendArgs local_args{exchange, args.clock, args.log, args.host};
  local_args.failpoints = args.failpoints;
  local_args.arena_limit_bytes = args.arena_limit_bytes;
  local_args.deadline = args.deadline;
  local_args.fds = fds.get();
  local_args.allocator = args.allocator;
  local_args.arena = args.arena;
  local_args.names = members;
  local_args.crowded = args.crowded;
  local_args.accelerator = args.accelerator;
  local_args.device = args.device;
  local_args.progress_thread = args.progress_thread;
  local_args.measurements = args.measurements;
  Status made = make_inside(composed, local_args, local);
  const Status together = exchange.finish_together(args.deadline);
  return made.ok() ? together : made;
}

}  // namespace

Status make_hierarchical(const Backend& composed, const BackendArgs& args, const Forced& forced,
                         std::unique_ptr<Collectives>* collectives) {
  Grouping grouping;
  WEFT_TRY(find_grouping(args, &grouping));
  std::unique_ptr<Collectives> inside;
  // Either all ranks of all hosts make it or none does. A rank that failed takes part in the next exchange,
  // to report its error.
  const Status made = make_local(composed, args, grouping.locals(), &inside);
  WEFT_TRY(agree_on(args.exchange, made.with_prefix(cat(composed.local->name, ": ")), args.deadline));
  std::unique_ptr<Transport> transport;
  WEFT_TRY(make_transport(*composed.across, args, &transport).with_prefix(cat(composed.across->name, ": ")));
  Forced chosen = forced;
  if (composed.across->preference >= 0) {
    const LaneContext column{*transport, args.host,        grouping.host(), grouping.host_count(),
                             forced,     grouping.column()};
    WEFT_TRY(measure_one_shot(column, !column.members.empty(), args, &chosen));
  }
  args.log.info(cat("rank ", grouping.rank, ": ", grouping.host_count(), " hosts, ", grouping.locals().size(),
                    " ranks on this one"));
  *collectives = std::make_unique<Hierarchical>(std::move(grouping), args, chosen, std::move(inside),
                                                std::move(transport));
  return {};
}

Status spans_shared_hosts(const BackendArgs& args, bool* yes) {
  Grouping grouping;
  WEFT_TRY(find_grouping(args, &grouping));
  *yes = grouping.host_count() > 1 && grouping.widest > 1;
  return {};
}

}  // namespace weft::coll
