// Runs the measurements of calibration.h: all_reduces on lanes of its own, over a transport that nothing else
// uses yet. Called by calibration.cpp, on the thread that makes the communicator.
#pragma once

#include <cstddef>

#include "coll/lane.h"
#include "transport/backend.h"

namespace weft::coll {

// Threads: one thread at a time.
class TransportTuner {
 public:
  // ranks: LaneContext of the communicator. memory: enough for the largest operation; it stays zero. ranks,
  // args and memory outlive this object.
  TransportTuner(const LaneContext& ranks, const BackendArgs& args, std::byte* memory);
  // Runs and times one all_reduce (CrossoverSearch::Run). An error is reported to the other ranks; after it
  // nothing more can be run on any rank.
  Status run(bool one_shot, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns);

 private:
  Status synchronise(uint64_t numbers[2]);
  Status finish(TransportLane& lane, const CollectiveArgs& args, uint64_t slot);
  Status check_peers(const TransportLane& lane, uint64_t* next_ns);
  Status give_up(TransportLane& lane, Status why);

  const BackendArgs& args_;
  std::byte* const memory_;
  const LaneContext one_round_, two_rounds_;
  TransportLane one_shot_, direct_;
  uint64_t one_shot_slot_ = 0, direct_slot_ = 0;
  uint64_t runs_ = 0;
  const uint64_t begin_ns_;
};

}  // namespace weft::coll
