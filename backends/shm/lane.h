// One ordered sequence of collectives over the segments. The steps of an operation are: post an arrival; wait
// for the arrivals of all ranks and compare them; move the data inline, through staging halves, or along a
// Path. Short operations do all of it in one or two polls. Called by comm/lane under the progress lock.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "group.h"
#include "lane_blocks.h"
#include "operation.h"
#include "path.h"
#include "path_run.h"
#include "transport/collectives.h"

namespace weft::shm {

class GroupLane final : public CollectiveLane {
 public:
  GroupLane(std::shared_ptr<Group> group, uint32_t id);

  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return result_; }
  void abandon() override;
  std::vector<int> writers() const override;
  std::vector<int> missing() const override;
  bool waits_for(int rank) const override;
  const char* algorithm() const override { return algorithm_; }
  std::optional<uint64_t> moved_bytes() const override { return moved_; }

 private:
  enum class State { kDone, kArriving, kHalves, kRounds };

  Poll advance();
  void post(const Descriptor& descriptor);
  Claims claims();
  bool arrivals();  // all ranks have arrived (or the operation has failed)
  void dispatch();
  void finish(Status status);

  void take_inline();
  // Short operations: every rank puts its whole input into a staging half.
  bool fits_half() const;
  Status fill_half();
  void regain_half();
  Status not_mapped() const;
  bool take_halves();
  bool goes_two_shot() const;  // unless all buffers are in arenas

  bool is_behind(int rank) const;
  // True if a rank's counter shows that its input is in its half.
  bool half_filled(int rank) const {
    return reached(blocks_.published(rank, LaneBlocks::kProduced), phase(op_.slot, 1));
  }
  void begin(Path& path);
  bool advance_rounds(uint64_t* work);

  LaneBlock& block(int rank) const { return blocks_.of(rank); }
  std::byte* half(int rank) const {
    return group_->memory(rank, context_.staging + (op_.slot & 1) * kHalfBytes);
  }

  const std::shared_ptr<Group> group_;
  LaneBlocks blocks_;
  PathContext context_;
  Paths paths_;

  State state_ = State::kDone;
  Operation op_;
  Status result_;
  const char* algorithm_ = "";
  uint64_t moved_ = 0;
  Descriptor descriptor_;             // of the running operation
  uint64_t hash_ = 0;                 // of descriptor_
  std::array<bool, 2> written_ = {};  // the post already contains descriptor_
  bool inline_ = false;
  int arrived_ = 0;          // all ranks below it have arrived
  uint64_t half_ready_ = 0;  // populated bytes of the halves
  // Bytes of each half that peers have read since this core owned their lines.
  std::array<uint64_t, 2> shown_ = {};
  PathRun run_;  // of the running operation, in State::kRounds
};

}  // namespace weft::shm
