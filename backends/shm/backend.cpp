#include "backend.h"

#include "base/fd.h"
#include "base/text.h"
#include "group_setup.h"
#include "lane.h"
#include "pair.h"
#include "path.h"
#include "segment.h"

namespace weft::shm {
namespace {

constexpr int kMostRanks = 1024;

class ShmCollectives final : public Collectives {
 public:
  explicit ShmCollectives(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    if (key.kind == LaneKey::Kind::kSend) {
      *lane = std::make_unique<SendLane>(group_, key.peer, key.id);
      return {};
    }
    if (key.kind == LaneKey::Kind::kReceive) {
      *lane = std::make_unique<ReceiveLane>(group_, key.peer, key.id);
      return {};
    }
    if (key.id >= kLanes) {
      return Status::error(Code::kUnsupported, cat("a communicator over shm can have ", kLanes - 1,
                                                   " reducers at a time: destroy a reducer, or create a "
                                                   "further communicator with weft_comm_split"));
    }
    *lane = std::make_unique<GroupLane>(group_, key.id);
    return {};
  }
  bool few_lanes() const override { return true; }
  std::shared_ptr<Arena> arena() override { return group_->arena(); }
  InPlaceSlice in_place_slice(const CollectiveArgs& args) const override {
    const uint64_t element = dtype_size(args.dtype), bytes = args.count * element;
    uint64_t place = 0;
    const bool mapped = bytes >= kMappedMin && group_->in_arena(args.src, bytes, element, &place);
    if (args.coll != Coll::kAllReduce || args.src != args.dst || group_->size() == 1 || !mapped) return {};
    const Range own = owned_by(group_->rank(), bytes, group_->size());
    return {own.offset / element, own.bytes / element};
  }
  CollectiveCounters counters() const override {
    CollectiveCounters counters;
    counters.bytes_shared = group_->shared_bytes();
    counters.bytes_direct = group_->direct_bytes();
    return counters;
  }
  int local_size() const override { return group_->size(); }
  std::string transports() const override { return text(group_->thresholds()); }
  const char* name() const override { return "shm"; }

 private:
  const std::shared_ptr<Group> group_;  // shared with lanes: either may end first
};

Status probe(const Libraries&, std::string* detail) {
  Fd fd;
  const Status created = create_file(0, &fd);
  if (!created.ok())
    return Status::error(Code::kUnavailable, cat("shm cannot create shared memory: ", created.text()));
  *detail = "memory shared by the ranks of this host";
  return {};
}

Status make_collectives(const BackendArgs& args, std::unique_ptr<Collectives>* collectives) {
  if (args.exchange.size() > kMostRanks) {
    return Status::error(Code::kUnavailable, cat("shm supports at most ", kMostRanks,
                                                 " ranks, and the communicator has ", args.exchange.size()));
  }
  std::shared_ptr<Group> group;
  WEFT_TRY(make_group(args, &group));
  *collectives = collectives_over(std::move(group));
  return {};
}

}  // namespace

std::unique_ptr<Collectives> collectives_over(std::shared_ptr<Group> group) {
  return std::make_unique<ShmCollectives>(std::move(group));
}

const Backend& backend() {
  static constexpr Backend kBackend = {"shm",    "collectives over memory shared by the ranks of one host",
                                       100,      probe,
                                       nullptr,  make_collectives,
                                       all_local};
  return kBackend;
}

}  // namespace weft::shm
