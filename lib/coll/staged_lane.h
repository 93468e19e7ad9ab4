// A lane of lib/coll/staged: the chunks of one operation at a time.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/accelerator.h"
#include "transport/collectives.h"

namespace weft::coll {

// Describes the blocks of a collective, of which one chunk each is in pinned memory at a time. A buffer's
// blocks lie one behind the other, with `count` elements each, as in all_gather's dst, or where the call's
// lists say.
struct StagedShape {
  int in = 0;             // blocks of src on this rank
  int out = 0;            // blocks of dst
  int room = 0;           // blocks that a chunk's memory holds; equal on all ranks
  bool in_place = false;  // src and dst share the chunk's memory
};
StagedShape staged_shape(const CollectiveArgs& args, int rank, int size);
// Returns the elements of the longest block, equal on all ranks.
uint64_t staged_count(const CollectiveArgs& args, int size);
// Returns the elements of a block in a chunk. It depends only on values that all ranks know.
uint64_t staged_chunk(const StagedShape& shape, uint64_t element, uint64_t slot_bytes);

// The streams and pinned memory that a lane uses on one device.
class Staging {
 public:
  static constexpr size_t kSlots = 3;  // one is filled, one is communicated, one is drained
  struct Slot {
    std::byte* memory = nullptr;
    DeviceEvent filled = nullptr;
    DeviceEvent drained = nullptr;
  };

  // Allocates and pins the memory, which may take long. accelerator outlives it.
  static Status make(Accelerator& accelerator, int device, std::shared_ptr<Arena> arena, uint64_t slot_bytes,
                     std::unique_ptr<Staging>* staging);
  Staging(Accelerator& accelerator, int device, std::shared_ptr<Arena> arena)
      : accelerator_(accelerator), device_(device), arena_(std::move(arena)) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  Slot& slot(uint64_t chunk) { return slots_[chunk % kSlots]; }
  Status copy_in(std::byte* dst, const std::byte* src, uint64_t size) {
    return accelerator_.copy(device_, in_, dst, src, size);
  }
  Status copy_out(std::byte* dst, const std::byte* src, uint64_t size) {
    return accelerator_.copy(device_, out_, dst, src, size);
  }
  Status filling(Slot& slot) { return accelerator_.record(device_, slot.filled, in_); }
  Status draining(Slot& slot) { return accelerator_.record(device_, slot.drained, out_); }
  Status query(DeviceEvent event, bool* done) { return accelerator_.query(device_, event, done); }

 private:
  Accelerator& accelerator_;
  const int device_;
  const std::shared_ptr<Arena> arena_;
  std::byte* memory_ = nullptr;  // all slots
  DeviceStream in_ = nullptr;
  DeviceStream out_ = nullptr;
  std::array<Slot, kSlots> slots_{};
};

class StagedLane final : public CollectiveLane {
 public:
  StagedLane(const LaneKey& key, std::unique_ptr<CollectiveLane> inner, std::shared_ptr<Arena> arena,
             int rank, int size, uint64_t slot_bytes)
      : key_(key),
        inner_(std::move(inner)),
        arena_(std::move(arena)),
        rank_(rank),
        size_(size),
        slot_bytes_(slot_bytes) {}
  ~StagedLane() override;
  // Called before the first operation: inner executes blocks of different sizes. Otherwise they are padded.
  void send_blocks_as_they_are();
  // Called before the first operation: inner itself executes device operations that `taken` accepts. taken
  // outlives the lane.
  void pass_on(const Collectives& taken) { taken_ = &taken; }

  Status prepare(const DeviceCall& call) override;
  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return staging_ == nullptr ? inner_->result() : status_; }
  void abandon() override;
  std::vector<int> writers() const override;
  std::vector<int> missing() const override;
  bool waits_for(int rank) const override;
  std::vector<int> absent() const override;
  void share_waits(WaitStats* stats) override { inner_->share_waits(stats); }
  const char* algorithm() const override { return inner_->algorithm(); }
  std::optional<uint64_t> moved_bytes() const override {
    return staging_ == nullptr ? inner_->moved_bytes() : moved_;
  }
  uint64_t memory_bytes() const override { return inner_->memory_bytes(); }
  void rest() override { inner_->rest(); }

 private:
  bool passes_on(const CollectiveArgs& args) const {
    return args.device == nullptr || (taken_ != nullptr && taken_->takes(args.device->device, args));
  }
  bool communicating() const { return staging_ == nullptr || communicating_; }
  // Each returns true if it did something; errors go to status_.
  bool poll_stream();
  bool fill();
  bool communicate();
  bool drain();
  bool done(DeviceEvent event);
  void copy_blocks(uint64_t chunk, bool in);
  void cut_blocks(uint64_t chunk, CollectiveArgs* part);
  // A block's elements in the chunk: their number, and where they begin in src or dst.
  struct Extent {
    uint64_t begin = 0;
    uint64_t count = 0;
  };
  Extent extent(uint64_t chunk, uint64_t block, bool in) const;
  uint64_t clipped(uint64_t chunk, uint64_t count) const;
  uint64_t elements(uint64_t chunk) const { return clipped(chunk, count_); }
  std::byte* out_area(uint64_t chunk);
  void fail(const Status& status);

  uint64_t next_slot() {  // of inner_
    return key_.first_slot + key_.pipeline_index + key_.pipeline_lanes * operations_++;
  }

  const LaneKey key_;
  const std::unique_ptr<CollectiveLane> inner_;
  const std::shared_ptr<Arena> arena_;
  const int rank_;
  const int size_;
  const uint64_t slot_bytes_;
  const Collectives* taken_ = nullptr;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Staging>> stagings_;  // by device; guarded by mutex_; entries stay
  uint64_t operations_ = 0;                           // of inner_
  // Counts and offsets of both lists for the blocks of the chunk in flight; empty if blocks are padded.
  std::vector<uint64_t> cut_;
  Blocks cut_blocks_;

  // The running operation, if its buffers are on a device. Chunks: drained_ <= travelled_ <= filled_.
  Staging* staging_ = nullptr;
  CollectiveArgs args_;
  WholeCall whole_;
  StagedShape shape_;
  Status status_;
  uint64_t count_ = 0;    // elements of the longest block
  uint64_t chunk_ = 0;    // elements of each block in a chunk
  uint64_t chunks_ = 0;   // at least 1
  bool arrived_ = false;  // the program's stream has reached the operation
  uint64_t filled_ = 0;   // chunks whose copies into pinned memory were started
  uint64_t communicated_ = 0;
  uint64_t drained_ = 0;
  bool communicating_ = false;     // inner_ runs
  std::optional<uint64_t> moved_;  // by inner_ so far
};

}  // namespace weft::coll
