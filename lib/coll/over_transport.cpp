#include "coll/over_transport.h"

#include <utility>

#include "base/text.h"
#include "coll/lane.h"
#include "coll/offload_lane.h"
#include "device/arena.h"

namespace weft {
namespace {

class OverTransport final : public Collectives {
 public:
  OverTransport(std::unique_ptr<Transport> transport, int rank, int size, const DeviceOps& host, Clock& clock,
                const coll::Forced& forced, const HostAllocator& allocator, std::shared_ptr<Arena> arena)
      : arena_(std::dynamic_pointer_cast<HeapArena>(arena)),
        transport_(std::move(transport)),
        before_(transport_->counters()),
        reports_(*transport_, clock, rank, size),
        context_{*transport_, host, rank, size, forced, {}, &reports_} {
    if (!arena_) arena_ = std::make_shared<HeapArena>(allocator);
  }

  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    Offload* const offload = transport_->offload();
    // Lane numbers of the library: one lane for the user, two for each of the first reducers.
    const uint64_t number = key.id == 0 ? 0 : uint64_t{2} * key.id - 1 + key.pipeline_index;
    const bool whole =
        key.kind == LaneKey::Kind::kCollective && key.pipeline_lanes <= (key.id == 0 ? 1U : 2U);
    if (offload != nullptr && whole && number < offload->lanes()) {
      *lane = std::make_unique<coll::OffloadLane>(context_, key, *offload, static_cast<uint32_t>(number),
                                                  offloaded_bytes_);
    } else {
      *lane = std::make_unique<coll::TransportLane>(context_, key);
    }
    return {};
  }
  bool few_lanes() const override { return transport_->offload() != nullptr; }
  bool overlaps() const override { return true; }
  bool executes(Coll coll) const override { return coll <= Coll::kRecv || has_blocks(coll); }
  bool settled() override { return transport_->settled(); }
  bool progress() override { return transport_->progress(); }
  bool outlives_sender() const override { return transport_->outlives_sender(); }
  // Counts messages, and the operations of the library. Those involve all ranks: two ranks with equal ended()
  // counts have each other's contributions to them.
  uint64_t sent_to(int rank) const override { return transport_->sent_to(rank) + ended(); }
  uint64_t received_from(int rank) const override { return transport_->received_from(rank) + ended(); }
  std::shared_ptr<Arena> arena() override { return arena_; }
  CollectiveCounters counters() const override {
    const TransportCounters moved = transport_->counters();
    CollectiveCounters counters;
    counters.bytes_sent = moved.bytes_sent - before_.bytes_sent;
    counters.bytes_received = moved.bytes_received - before_.bytes_received;
    counters.bytes_sent += offloaded_bytes_;
    return counters;
  }
  std::string transports() const override { return cat(transport_->transports(), text(context_.forced)); }
  int local_size() const override { return transport_->local_size(); }
  const char* name() const override { return transport_->name(); }

 private:
  uint64_t ended() const {
    const Offload* const offload = transport_->offload();
    return offload == nullptr ? 0 : offload->ended();
  }

  std::shared_ptr<HeapArena> arena_;
  std::atomic<uint64_t> offloaded_bytes_{0};
  const std::unique_ptr<Transport> transport_;
  const TransportCounters before_;  // excludes the traffic of measurements
  coll::ProgressReports reports_;
  const coll::LaneContext context_;
};

}  // namespace

std::unique_ptr<Collectives> over_transport(std::unique_ptr<Transport> transport, int rank, int size,
                                            const DeviceOps& host, Clock& clock, const coll::Forced& forced,
                                            const HostAllocator& allocator, std::shared_ptr<Arena> arena) {
  return std::make_unique<OverTransport>(std::move(transport), rank, size, host, clock, forced, allocator,
                                         std::move(arena));
}

}  // namespace weft
