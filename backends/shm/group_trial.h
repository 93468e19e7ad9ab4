// Runs what calibration.h tries, on a group that is being founded: on lane 0, which nobody has opened yet.
// Its words must be made anew afterwards. Called by founding.cpp, on the thread that makes the communicator.
#pragma once

#include <memory>

#include "calibration.h"
#include "core/backend.h"
#include "group.h"
#include "lane.h"

namespace weft::shm {

// Threads: one thread at a time.
class GroupTrial final : public Trial {
 public:
  // args outlives this object. bytes: the largest operation on private memory; level_bytes: on arenas, which
  // nobody uses yet. After an error nothing more can be run, here or on other ranks, which get kCancelled.
  GroupTrial(std::shared_ptr<Group> group, const BackendArgs& args, uint64_t bytes, uint64_t level_bytes);
  ~GroupTrial() override;
  Status run(Route route, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns) override;

 private:
  // Of both numbers the largest over ranks; a meeting of all.
  Status meet(uint64_t numbers[2]);
  Status finish(const CollectiveArgs& args);
  Status look(uint64_t* next_ns);
  Status give_up(Status why);
  bool populate_arena();

  const std::shared_ptr<Group> group_;
  const BackendArgs& args_;
  const uint64_t bytes_;
  const uint64_t level_bytes_;
  std::byte* const memory_;     // null: there is none
  std::byte* arena_ = nullptr;  // the same; taken when it is first used
  GroupLane lane_;
  uint64_t slot_ = 0;
  uint64_t begin_ns_ = 0;  // of the first run
};

}  // namespace weft::shm
