#include "coll/over_transport.h"

#include <utility>

#include "coll/lane.h"
#include "core/arena.h"

namespace weft {
namespace {

class OverTransport final : public Collectives {
 public:
  OverTransport(std::unique_ptr<Transport> transport, int rank, int size, const DeviceOps& host,
                const coll::Forced& forced, const HostAllocator& allocator, std::shared_ptr<Arena> arena)
      : arena_(std::dynamic_pointer_cast<HeapArena>(arena)),
        transport_(std::move(transport)),
        context_{*transport_, host, rank, size, forced} {
    if (!arena_) arena_ = std::make_shared<HeapArena>(allocator);
  }

  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    *lane = std::make_unique<coll::TransportLane>(context_, key);
    return {};
  }
  bool overlaps() const override { return true; }
  bool executes(Coll coll) const override { return coll <= Coll::kRecv || has_blocks(coll); }
  bool settled() override { return transport_->settled(); }
  bool progress() override { return transport_->progress(); }
  bool outlives_sender() const override { return transport_->outlives_sender(); }
  uint64_t sent_to(int rank) const override { return transport_->sent_to(rank); }
  uint64_t received_from(int rank) const override { return transport_->received_from(rank); }
  std::shared_ptr<Arena> arena() override { return arena_; }
  CollectiveCounters counters() const override {
    const TransportCounters moved = transport_->counters();
    CollectiveCounters counters;
    counters.bytes_sent = moved.bytes_sent;
    counters.bytes_received = moved.bytes_received;
    return counters;
  }
  std::string transports() const override { return transport_->transports(); }
  int local_size() const override { return transport_->local_size(); }
  const char* name() const override { return transport_->name(); }

 private:
  std::shared_ptr<HeapArena> arena_;
  const std::unique_ptr<Transport> transport_;
  const coll::LaneContext context_;
};

}  // namespace

std::unique_ptr<Collectives> over_transport(std::unique_ptr<Transport> transport, int rank, int size,
                                            const DeviceOps& host, Clock& /*clock*/,
                                            const coll::Forced& forced, const HostAllocator& allocator,
                                            std::shared_ptr<Arena> arena) {
  return std::make_unique<OverTransport>(std::move(transport), rank, size, host, forced, allocator,
                                         std::move(arena));
}

}  // namespace weft
