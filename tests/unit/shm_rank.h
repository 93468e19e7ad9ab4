// One rank of an shm communicator without the layers above: creates the backend's objects and drives lanes.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "device/arena.h"
#include "kernels/host_ops.h"
#include "shm/backend.h"
#include "shm/group_setup.h"
#include "support/links.h"
#include "transport/backend.h"

namespace weft::test {

class ShmRank {
 public:
  // thresholds: as WEFT_SHM_THRESHOLDS.
  explicit ShmRank(SocketLinks& links, uint64_t arena_limit = 64 << 20,
                   const std::string& thresholds = "off,pull=1M")
      : links_(links), measurements_(thresholds) {
    clock_.set_crowded(links.size() > 2);
    BackendArgs args{links, clock_, log_, host_ops(), arena_limit, Deadline::after(clock_, 20'000, 0),
                     &links};
    args.crowded = links.size() > 2;
    args.measurements = &measurements_;
    WEFT_EXPECT_OK(shm::make_group(args, &group_));
    collectives_ = shm::collectives_over(group_);
  }

  int rank() const { return links_.rank(); }
  int size() const { return links_.size(); }
  shm::Group& group() { return *group_; }
  Collectives& collectives() { return *collectives_; }
  CollectiveLane& lane(const LaneKey& key = {}) {
    auto& lane = lanes_[{static_cast<int>(key.kind), key.id, key.peer}];
    if (lane == nullptr) WEFT_EXPECT_OK(collectives_->open_lane(key, &lane));
    return *lane;
  }
  std::byte* allocate(uint64_t size) {
    std::byte* memory = nullptr;
    WEFT_EXPECT_OK(collectives_->arena()->allocate(size, &memory));
    return memory;
  }

  Status call(const CollectiveArgs& args, int timeout_ms = 20'000) { return call({}, args, timeout_ms); }
  Status call(const LaneKey& key, const CollectiveArgs& args, int timeout_ms = 20'000) {
    CollectiveLane& runner = lane(key);
    uint64_t& slot = slots_[&runner];
    runner.start(args, slot++);
    return finish(runner, timeout_ms);
  }
  Status finish(CollectiveLane& runner, int timeout_ms = 20'000) {
    CollectiveLane* const one[] = {&runner};
    return finish_all(one, timeout_ms);
  }
  // Drives all lanes until they finish. Returns the first failure, if any.
  Status finish_all(std::span<CollectiveLane* const> runners, int timeout_ms = 20'000) {
    const Deadline deadline = Deadline::after(clock_, timeout_ms, 0);
    for (uint32_t round = 0;; round++) {
      CollectiveLane* waiting = nullptr;
      for (CollectiveLane* runner : runners) {
        const Poll poll = runner->poll();
        if (poll == Poll::kAdvanced) round = 0;
        if (poll != Poll::kFinished) waiting = runner;
        if (poll == Poll::kFinished && !runner->result().ok()) return runner->result();
      }
      if (waiting == nullptr) return {};
      if (round % 64 == 63 && deadline.expired(clock_)) {
        const std::vector<int> missing = waiting->missing();
        return Status::error(Code::kTimeout, cat("waiting for rank ", list_text(missing)))
            .with_ranks(missing);
      }
      clock_.relax(round);
    }
  }

 private:
  SocketLinks& links_;
  Measurements measurements_;
  SystemClock clock_;
  Log log_;
  std::shared_ptr<shm::Group> group_;
  std::unique_ptr<Collectives> collectives_;
  std::map<std::tuple<int, uint32_t, int>, std::unique_ptr<CollectiveLane>> lanes_;
  std::map<CollectiveLane*, uint64_t> slots_;
};

}  // namespace weft::test
