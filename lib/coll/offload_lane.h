// A lane whose collectives are executed by the transport's own library (transport/offload.h). The ranks first
// run a barrier on the lane below, which compares their calls and names absent ranks; without it the library
// could hang or worse. The operation then goes through the lane's own memory, chunk by chunk, because the
// library never returns memory that it was given. If an operation is abandoned, the lane sets that memory
// aside and the caller's buffers are free. The lane below executes what the library does not.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "coll/lane.h"
#include "coll/staged_lane.h"
#include "transport/offload.h"

namespace weft::coll {

// Memory of one chunk, which limits the elements of a block in it. Smaller operations take only what they
// need.
inline constexpr uint64_t kOffloadSlotBytes = uint64_t{4} << 20;
// Smaller operations use the lane below: they cost no more than the barrier would.
inline constexpr uint64_t kOffloadLeastBytes = 256;

// Threads: as transport/collectives.h says.
class OffloadLane final : public CollectiveLane {
 public:
  // context, offload and moved outlive the lane. number: the index of this lane among the offload's lanes.
  OffloadLane(const LaneContext& context, const LaneKey& key, Offload& offload, uint32_t number,
              std::atomic<uint64_t>& moved);
  ~OffloadLane() override { abandon(); }

  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return own_ ? status_ : below_.result(); }
  void abandon() override;
  std::vector<int> missing() const override { return below() ? below_.missing() : std::vector<int>(); }
  bool waits_for(int rank) const override { return below() && below_.waits_for(rank); }
  std::vector<int> absent() const override { return below() ? below_.absent() : std::vector<int>(); }
  void share_waits(WaitStats* stats) override { below_.share_waits(stats); }
  const char* algorithm() const override { return own_ ? offload_.name() : below_.algorithm(); }
  // Returns nothing for an operation that the library executes, because it does not report its bytes.
  std::optional<uint64_t> moved_bytes() const override {
    return own_ ? std::optional<uint64_t>() : below_.moved_bytes();
  }
  uint64_t memory_bytes() const override {
    return below_.memory_bytes() + memory_bytes_.load(std::memory_order_relaxed);
  }
  void rest() override;

 private:
  enum class State : uint8_t { kBarrier, kRunning, kOver };
  bool below() const { return !own_ || state_ == State::kBarrier; }
  void start_below(CollectiveArgs args);
  Poll poll_barrier();
  Status reserve();
  Status begin_chunk();
  Status end_chunk();
  bool under_way();
  void give_up_memory();
  Poll finish(const Status& status);
  uint64_t elements(uint64_t chunk) const;
  std::byte* slot(uint64_t chunk) const { return memory_.get() + chunk % Offload::kDepth * slot_bytes_; }
  std::byte* out_area(uint64_t chunk) const;
  void copy_blocks(uint64_t chunk, bool in);

  const LaneContext& context_;
  const LaneKey key_;
  Offload& offload_;
  const uint32_t number_;
  std::atomic<uint64_t>& moved_;
  TransportLane below_;
  uint64_t operations_ = 0;  // of below_

  // The running operation.
  bool own_ = false;
  State state_ = State::kOver;
  CollectiveArgs args_;
  WholeCall whole_;
  StagedShape shape_;
  Status status_;
  uint64_t count_ = 0;  // elements of a block
  uint64_t chunk_ = 0;  // elements of each block in a chunk
  uint64_t chunks_ = 0;
  uint64_t begun_ = 0;
  uint64_t done_ = 0;
  std::array<bool, Offload::kDepth> busy_{};  // the library uses this slot's memory

  struct FreeBytes {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, FreeBytes> memory_;  // all slots
  uint64_t slot_bytes_ = 0;
  std::atomic<uint64_t> memory_bytes_{0};
};

}  // namespace weft::coll
