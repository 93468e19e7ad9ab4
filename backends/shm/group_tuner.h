// Runs the measurements of calibration.h on a group during its setup, on lane 0, which no lane uses yet. The
// lane block must be reset afterwards. Called by group_setup.cpp, on the thread that makes the communicator.
#pragma once

#include <memory>

#include "calibration.h"
#include "group.h"
#include "lane.h"
#include "transport/backend.h"

namespace weft::shm {

// Threads: one thread at a time.
class GroupTuner final : public Tuner {
 public:
  // args outlives this object. bytes: the largest operation. After an error nothing more can be run on any
  // rank; the other ranks get kCancelled.
  GroupTuner(std::shared_ptr<Group> group, const BackendArgs& args, uint64_t bytes);
  Status run(Route route, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns) override;

 private:
  struct Release {
    const HostAllocator* allocator;
    uint64_t bytes;
    void operator()(std::byte* memory) const { allocator->put(memory, bytes); }
  };

  // Replaces both numbers by their maximum over all ranks; synchronises all ranks.
  Status synchronise(uint64_t numbers[2]);
  Status finish(const CollectiveArgs& args);
  Status check_peers(uint64_t* next_ns);
  Status give_up(Status why);

  const std::shared_ptr<Group> group_;
  const BackendArgs& args_;
  const uint64_t bytes_;
  const std::unique_ptr<std::byte, Release> memory_;  // null: no memory
  GroupLane lane_;
  uint64_t slot_ = 0;
  uint64_t begin_ns_ = 0;  // of the first run
};

}  // namespace weft::shm
