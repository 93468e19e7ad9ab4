#include "coll/staged.h"

#include <utility>

#include "coll/staged_lane.h"
#include "device/arena.h"

namespace weft {
namespace {

class Staged final : public Collectives {
 public:
  Staged(std::unique_ptr<Collectives> inner, int rank, int size, uint64_t slot_bytes)
      : inner_(std::move(inner)), rank_(rank), size_(size), slot_bytes_(slot_bytes) {}

  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    std::unique_ptr<CollectiveLane> inner;
    WEFT_TRY(inner_->open_lane(key, &inner));
    auto made =
        std::make_unique<coll::StagedLane>(key, std::move(inner), inner_->arena(), rank_, size_, slot_bytes_);
    if (inner_->executes(Coll::kAllToAllV)) made->send_blocks_as_they_are();
    if (key.kind == LaneKey::Kind::kCollective && inner_->on_device()) made->pass_on(*inner_);
    *lane = std::move(made);
    return {};
  }
  bool executes(Coll coll) const override { return inner_->executes(coll); }
  bool executes_on_device(Coll coll) const override { return has_blocks(coll) || inner_->executes(coll); }
  bool on_device() const override { return inner_->on_device(); }
  bool takes(int device, const CollectiveArgs& args) const override { return inner_->takes(device, args); }
  InPlaceSlice in_place_slice(const CollectiveArgs& args) const override {
    return inner_->in_place_slice(args);
  }
  Status allocate_on_device(int device, uint64_t size, std::shared_ptr<std::byte>* memory) override {
    return inner_->allocate_on_device(device, size, memory);
  }
  Status open_graph_lane(int device, std::shared_ptr<GraphLane>* lane) override {
    return inner_->open_graph_lane(device, lane);
  }
  bool progress() override { return inner_->progress(); }
  bool few_lanes() const override { return inner_->few_lanes(); }
  bool overlaps() const override { return inner_->overlaps(); }
  bool settled() override { return inner_->settled(); }
  bool outlives_sender() const override { return inner_->outlives_sender(); }
  uint64_t sent_to(int rank) const override { return inner_->sent_to(rank); }
  uint64_t received_from(int rank) const override { return inner_->received_from(rank); }
  std::shared_ptr<Arena> arena() override { return inner_->arena(); }
  CollectiveCounters counters() const override { return inner_->counters(); }
  int local_size() const override { return inner_->local_size(); }
  std::string transports() const override { return inner_->transports(); }
  const char* name() const override { return inner_->name(); }

 private:
  const std::unique_ptr<Collectives> inner_;
  const int rank_;
  const int size_;
  const uint64_t slot_bytes_;
};

}  // namespace

std::unique_ptr<Collectives> staged(std::unique_ptr<Collectives> inner, int rank, int size,
                                    uint64_t slot_bytes) {
  return std::make_unique<Staged>(std::move(inner), rank, size, slot_bytes);
}

}  // namespace weft
