// The run of one operation along a Path (path.h): decides which stage of which round may run, runs it, and
// publishes what is done. Created with its lane and used for one operation after the other. Threads: needs
// the progress lock.
#pragma once

#include <cstdint>
#include <mutex>

#include "lane_blocks.h"
#include "operation.h"
#include "path.h"

namespace weft::shm {

class PathRun {
 public:
  // All outlive it. op: the lane's running operation. context: has the claims of all ranks.
  PathRun(const Group& group, const Operation& op, const PathContext& context, LaneBlocks& blocks)
      : group_(group), op_(op), context_(context), blocks_(blocks) {}

  // Begins the operation. An error means that it has not begun.
  Status begin(Path& path);
  // Runs the stages whose inputs are there, one round of each, and adds the approximate bytes that they
  // touched to *work. kFinished: the operation is complete, or has failed with *status.
  Poll advance(uint64_t* work, Status* status);
  // Returns true if this rank may wait for `rank`. In rounds every rank waits for every other, and finally
  // for the rank that makes no progress. That rank has done less than the ranks that wait for it.
  bool is_behind(int rank) const {
    return blocks_.rounds_done(rank, op_.slot, rounds_.count) <
           blocks_.rounds_done(op_.rank, op_.slot, rounds_.count);
  }

 private:
  using Stage = LaneBlocks::Stage;
  using enum LaneBlocks::Stage;

  void skip_early_rounds();
  bool has_room();
  bool enter_peers();
  void leave_peers();
  bool all_reached(Stage stage, uint64_t rounds);
  void publish(Stage stage, uint64_t rounds) { blocks_.publish(stage, op_.slot, rounds); }
  void publish_consumed();

  const Group& group_;
  const Operation& op_;
  const PathContext& context_;
  LaneBlocks& blocks_;
  Path* path_ = nullptr;
  Rounds rounds_;
  // Rounds that this rank has done of each stage.
  uint64_t in_ = 0;
  uint64_t mid_ = 0;
  uint64_t out_ = 0;
  uint64_t published_ = 0;  // last value of `consumed`
  // InputSlices' mutex, held while parts of the input are read in place.
  std::unique_lock<std::mutex> slices_lock_;
};

}  // namespace weft::shm
