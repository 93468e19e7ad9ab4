// A queue of operations that run in order on a CollectiveLane. With a second, pipelined CollectiveLane, two
// consecutive operations run concurrently. The C layer submits the user's calls, a reducer submits its
// buckets' collectives.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/composite.h"
#include "engine/engine.h"
#include "engine/flight.h"
#include "transport/collectives.h"
#include "transport/request.h"

namespace weft {

class Comm;

// Threads: submit may be called on any thread, one at a time, because the order of submission must be the
// same on all ranks. poll and start_at_once need the progress lock.
class Lane final : public Task {
 public:
  // Creates a lane for the executor `impl`. comm owns the lane and outlives it.
  // An earlier lane of the same executor may have used the slots before key.first_slot.
  // second is a pipelined executor of the same key, or null. With it, an operation starts when the one two
  // slots before is complete, so the network has work while ranks wait for each other. Operations still
  // complete in order. An operation must not read what the previous one writes.
  Lane(Comm& comm, const LaneKey& key, std::shared_ptr<CollectiveLane> impl,
       std::shared_ptr<CollectiveLane> second = nullptr);

  // Prepares the executor for a request with buffers on a device, before submission
  // (CollectiveLane::prepare). Not available with a second executor.
  Status prepare(const DeviceCall& call) { return runs_[0].impl->prepare(call); }
  // Queues the request. If the lane is closed, completes it at once with the communicator's failure.
  void submit(Request* request);
  // Starts the request without queueing and polls once, which completes most short operations. Returns false,
  // without effect, if an operation is queued or running or the communicator has failed. Called under the
  // progress lock by the thread that submits.
  bool start_at_once(Request* request);
  // Closes the queue: no request is queued from now on. The communicator has failed, so queued requests
  // complete with the next poll.
  void close();
  Poll poll() override;
  void fail(const Status& why) noexcept override;
  bool idle() const { return oldest_ == slot_ && ended_ == nullptr && !queued_; }  // needs the progress lock

  const LaneKey& key() const { return key_; }
  // Return the executor and its next slot, for the next lane of this key once this lane is no longer used.
  // Needs the progress lock. Not available with a second executor.
  const std::shared_ptr<CollectiveLane>& impl() const { return runs_[0].impl; }
  uint64_t next_slot() const { return slot_; }
  uint64_t memory_bytes() const;  // any thread

  // Returns true if the oldest running operation waits for `rank`. Needs the progress lock.
  bool waits_for(int rank) const {
    return oldest_ != slot_ && !abandoned_ && oldest().executor->waits_for(rank);
  }

  // Calls CollectiveLane::share_waits of the executors. No operation may be queued or running. Needs the
  // progress lock.
  void share_waits(WaitStats* stats);

  // Returns this lane's part of the flight record. Both functions need the progress lock.
  FlightLane flight();
  void set_flight_source(std::weak_ptr<const FlightSource> source) { flight_source_ = std::move(source); }

 private:
  struct Run {
    std::shared_ptr<CollectiveLane> impl;
    // Made by the first composite operation. It takes several slots of impl, so later operations pass it too,
    // because it counts those. Only on the user's lane, which is never used again.
    std::optional<CompositeLane> composing;
    CollectiveLane* executor = nullptr;  // impl, or composing
    Request* request = nullptr;
    bool over = false;  // finished, but an earlier operation is not complete yet
  };
  static constexpr uint64_t kRuns = 2;

  // Returns the executor of a running operation. Slots oldest_ to slot_ - 1 are running, each on its own
  // executor.
  Run& run(uint64_t slot) { return runs_[slot % depth_]; }
  const Run& oldest() const { return runs_[oldest_ % depth_]; }
  bool next();  // starts the next request, if there is one
  void start(Request* request);
  bool polled();  // polls the running operations; returns true if one advanced
  void finish();  // completes the oldest operation
  Poll fail_all(const Status& failure);
  // Logs, once per operation, that an operation has made no progress for kLongWaitNs.
  void warn_of_long_wait(uint64_t now_ns);
  bool fenced();  // true if no rank can write into the buffers of running operations, or kFenceMs have passed
  std::string departure_hint() const;
  void watch();        // after an idle poll: checks deadlines and departed peers
  Request* expired();  // returns a request whose deadline has passed, running or queued, or null
  std::string text_of(const Request& request, uint64_t slot) const;

  Comm& comm_;
  const LaneKey key_;
  std::array<Run, kRuns> runs_;  // only the first depth_ are used; their impl never changes
  const uint64_t depth_;
  std::mutex queue_mutex_;
  Request* head_ = nullptr;          // guarded by queue_mutex_
  Request* tail_ = nullptr;          // guarded by queue_mutex_
  bool closed_ = false;              // guarded by queue_mutex_
  std::atomic<bool> queued_{false};  // head_ != nullptr
  // Fields from here on are guarded by the progress lock.
  Request* ended_ = nullptr;  // the request that failed by its own error, while its flight record is written
  uint64_t oldest_ = 0;       // slot of the oldest running operation; equals slot_ if there is none
  uint64_t slot_ = 0;         // slot of the next operation
  FlightRing flight_;
  std::vector<int> waited_for_;  // missing ranks at the time the lane was abandoned
  std::weak_ptr<const FlightSource> flight_source_;
  uint64_t idle_polls_ = 0;  // 32 bits end in a wait of some days
  // Time of the first clock read since the oldest operation last advanced.
  uint64_t waiting_since_ns_ = 0;
  uint64_t warned_slot_ = UINT64_MAX;  // slot of the last operation that warn_of_long_wait has logged
  int departed_ = -1;                  // a departed rank that was missing at the last idle poll; -1: none
  bool abandoned_ = false;
  Deadline fence_ = Deadline::never();  // set when the lane is abandoned
};

}  // namespace weft
