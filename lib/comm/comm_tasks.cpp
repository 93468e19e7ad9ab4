#include "comm/comm_tasks.h"

#include <algorithm>

#include "base/text.h"
#include "comm/comm.h"
#include "engine/comm_part.h"

namespace weft {

uint64_t CommTasks::first_slot() const {
  return first_of(comm_.options().failpoints, FailCounter::kSlots);
}

Status CommTasks::open_user_lane() {
  WEFT_TRY(open_lane(&user_lane_, false));
  const uint32_t first = first_of_32(comm_.options().failpoints, FailCounter::kLanes);
  if (!comm_.collectives().few_lanes()) next_lane_ = std::max(next_lane_, first);
  return {};
}

Status CommTasks::make_lane(const LaneKey& key, bool overlapping, Executes* executes) {
  std::unique_ptr<CollectiveLane> impl;
  std::unique_ptr<CollectiveLane> second;
  LaneKey lane_key = key;
  lane_key.pipeline_lanes = overlapping ? 2 : 1;
  const auto open = [&] {
    const Status opened = comm_.collectives().open_lane(lane_key, &impl);
    lane_key.pipeline_index = 1;
    return opened.ok() && overlapping ? comm_.collectives().open_lane(lane_key, &second) : opened;
  };
  WEFT_TRY(comm_.context().engine().locked(open));
  executes->impl = std::move(impl);
  executes->second = std::move(second);
  return {};
}

// Adds a lane. Called with mutex_ held. Comm::close() marks the communicator as closed before it ends the
// tasks, so it misses none.
void CommTasks::add_lane(const LaneKey& key, Executes executes, std::shared_ptr<Lane>* lane) {
  auto made = std::make_shared<Lane>(comm_, key, std::move(executes.impl), std::move(executes.second));
  lanes_.reserve(lanes_.size() + 1);
  comm_.context().engine().add(made);
  lanes_.push_back(made);  // the engine and lanes_ both have the lane, or neither has, whatever throws
  *lane = std::move(made);
}

Status CommTasks::open_lane(std::shared_ptr<Lane>* lane, bool overlapping) {
  const std::lock_guard lock(mutex_);
  if (comm_.closed()) return comm_.cancelled();
  LaneKey key;
  ClosedLanes::Entry kept{nullptr, first_slot()};
  if (!closed_lanes_.take(&key.id, &kept)) {
    if (next_lane_ >= LaneKey::kMostIds) {
      return Status::error(Code::kUnsupported,
                           cat("at most ", LaneKey::kMostIds - 1,
                               " reducers can be created on a communicator over this backend, one after the "
                               "other: create a further communicator with weft_comm_split"));
    }
    key.id = next_lane_++;
  }
  key.first_slot = kept.next_slot;
  Executes executes{kept.impl, nullptr};
  if (!executes.impl) {
    const Status made = make_lane(key, overlapping && comm_.collectives().overlaps(), &executes);
    // This rank failed to open the lane, but other ranks may have opened it. It is kept here as a closed
    // lane, so that all ranks can open it again once the others have closed it too.
    if (!made.ok() && comm_.collectives().few_lanes()) closed_lanes_.keep(key.id, kept);
    WEFT_TRY(made);
  }
  add_lane(key, std::move(executes), lane);
  return {};
}

void CommTasks::close_lane(const std::shared_ptr<Lane>& lane) {
  comm_.context().engine().remove(lane.get());
  const std::lock_guard lock(mutex_);
  lanes_.erase(std::remove(lanes_.begin(), lanes_.end(), lane), lanes_.end());
  if (comm_.closed() || comm_.failed() || !comm_.collectives().few_lanes()) return;
  const auto next_slot = [&] { return lane->idle() ? lane->next_slot() : UINT64_MAX; };
  const ClosedLanes::Entry kept = {lane->impl(), comm_.context().engine().locked(next_slot)};
  if (kept.next_slot == UINT64_MAX) return;
  kept.impl->rest();
  closed_lanes_.keep(lane->key().id, kept);
}

Status CommTasks::lane_for(const CollectiveArgs& args, std::shared_ptr<Lane>* lane) {
  if (args.coll != Coll::kSend && args.coll != Coll::kRecv) {
    *lane = user_lane_;
    return {};
  }
  LaneKey key;
  key.kind = args.coll == Coll::kSend ? LaneKey::Kind::kSend : LaneKey::Kind::kReceive;
  key.peer = args.peer;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Lane>& known = pair_lanes_[{key.kind, key.peer}];
  if (!known) {
    if (comm_.closed()) return comm_.cancelled();
    Executes executes;
    key.first_slot = first_slot();
    WEFT_TRY(make_lane(key, false, &executes));
    add_lane(key, std::move(executes), &known);
  }
  *lane = known;
  return {};
}

Status CommTasks::part(MakePart make, CommPart** part) {
  const std::lock_guard lock(mutex_);
  for (const auto& [maker, known] : parts_) {
    if (maker != make) continue;
    *part = known.get();
    return {};
  }
  if (comm_.closed()) return comm_.cancelled();
  parts_.reserve(parts_.size() + 1);
  std::shared_ptr<CommPart> made = make(comm_);
  comm_.context().engine().add(made);
  *part = made.get();
  parts_.emplace_back(make, std::move(made));
  return {};
}

void CommTasks::write_closed_lanes(ByteWriter* message) {
  const std::lock_guard lock(mutex_);
  closed_lanes_.write(message);
}

void CommTasks::compare_closed_lanes(const std::vector<ClosedLanes::Published>& published) {
  const std::lock_guard lock(mutex_);
  closed_lanes_.compare(published);
}

bool CommTasks::quiet() {
  const std::lock_guard lock(mutex_);
  return comm_.context().engine().locked([&] {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->idle(); }) &&
           std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part.second->quiet(); });
  });
}

bool CommTasks::flush() {
  const std::lock_guard lock(mutex_);
  return std::all_of(parts_.begin(), parts_.end(), [&](const auto& part) {
    return comm_.context().engine().locked([&] { return part.second->flush(); });
  });
}

void CommTasks::describe(FlightRecord* record) {
  const std::lock_guard lock(mutex_);
  comm_.context().engine().locked([&] {
    record->now_ns = comm_.context().clock().now_ns();
    for (const auto& lane : lanes_) record->lanes.push_back(lane->flight());
    for (const auto& [make, part] : parts_) part->describe(record);
  });
}

void CommTasks::end() {
  std::vector<std::shared_ptr<Lane>> lanes;
  std::vector<std::shared_ptr<CommPart>> parts;
  {
    const std::lock_guard lock(mutex_);
    lanes.swap(lanes_);
    pair_lanes_.clear();
    for (const auto& [make, part] : parts_) parts.push_back(part);
  }
  Engine& engine = comm_.context().engine();
  const auto end_task = [&](auto& task) {
    task.close();
    const auto waits = [&] { return engine.locked([&] { return Engine::poll(task); }) != Poll::kParked; };
    for (uint32_t round = 0; waits(); round++) comm_.context().clock().relax(round);
    engine.remove(&task);
  };
  for (const auto& lane : lanes) end_task(*lane);
  for (const auto& part : parts) end_task(*part);
}

}  // namespace weft
