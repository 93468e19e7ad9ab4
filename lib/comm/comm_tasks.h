// The tasks that run a communicator's operations: its lanes and parts. Opens and closes lanes, and keeps
// closed ones for reuse where a backend has few. Owned by Comm, whose functions of the same names describe
// them.
//
// Threads: any thread. mutex_ is taken before the progress lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "comm/lane.h"
#include "engine/closed_lanes.h"
#include "engine/flight.h"
#include "transport/collectives.h"

namespace weft {

class Comm;
class CommPart;

class CommTasks {
 public:
  using MakePart = std::shared_ptr<CommPart> (*)(Comm&);

  // comm outlives it.
  explicit CommTasks(Comm& comm) : comm_(comm) {}

  // Opens the lane of the program's collectives: the first lane, which every communicator has.
  Status open_user_lane();
  const std::shared_ptr<Lane>& user_lane() const { return user_lane_; }
  Status lane_for(const CollectiveArgs& args, std::shared_ptr<Lane>* lane);
  Status part(MakePart make, CommPart** part);
  Status open_lane(std::shared_ptr<Lane>* lane, bool overlapping);
  void close_lane(const std::shared_ptr<Lane>& lane);

  // Write this rank's closed lanes, and compare those of all ranks (ClosedLanes).
  void write_closed_lanes(ByteWriter* message);
  void compare_closed_lanes(const std::vector<ClosedLanes::Published>& published);

  bool quiet();
  // Calls CommPart::flush of every part; returns true if all have sent everything.
  bool flush();
  // Adds the time, and the recent operations of all lanes and parts. Takes the progress lock.
  void describe(FlightRecord* record);
  // Completes outstanding operations and ends all tasks. The communicator has failed and is closed, so that
  // none is added.
  void end();

 private:
  // The executors of a lane's operations. second: for a pipelined lane; null for others (Lane's constructor).
  struct Executes {
    std::shared_ptr<CollectiveLane> impl, second;
  };
  Status make_lane(const LaneKey& key, bool overlapping, Executes* executes);
  void add_lane(const LaneKey& key, Executes executes, std::shared_ptr<Lane>* lane);
  uint64_t first_slot() const;  // of new lanes

  Comm& comm_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Lane>> lanes_;                                   // guarded by mutex_
  std::shared_ptr<Lane> user_lane_;                                            // set once
  std::map<std::pair<LaneKey::Kind, int>, std::shared_ptr<Lane>> pair_lanes_;  // guarded by mutex_
  std::vector<std::pair<MakePart, std::shared_ptr<CommPart>>> parts_;          // guarded by mutex_
  uint32_t next_lane_ = 0;                                                     // guarded by mutex_
  ClosedLanes closed_lanes_;  // guarded by mutex_; empty if the backend has many lanes
};

}  // namespace weft
