// A queue of operations that run one after the other on a CollectiveLane, or beside the one before on a
// second one. The C layer submits a user's calls, a reducer its buckets' collectives.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/collectives.h"
#include "core/engine.h"
#include "core/flight.h"
#include "core/request.h"

namespace weft {

class Comm;

// Threads: submit: any thread, but the order of submission must be the same on all ranks, so one at a time.
// poll, start_at_once: under the drive lock.
class Lane final : public Task {
 public:
  // comm outlives the lane: the comm owns it. first: its slots before that were another lane's.
  // second: of the same key, or null. With it an operation starts when the one before the last is complete,
  // so that the network has work while ranks wait for each other; they complete in order all the same, and
  // none may read what the one before writes.
  Lane(Comm& comm, const LaneKey& key, std::shared_ptr<CollectiveLane> impl, uint64_t first = 0,
       std::shared_ptr<CollectiveLane> second = nullptr);

  // Before a request with buffers on a device is submitted: as CollectiveLane::prepare. Not with a second.
  Status prepare(const DeviceCall& call) { return runs_[0].impl->prepare(call); }
  // Queue the request, or complete it at once with the comm's failure if the lane is closed.
  void submit(Request* request);
  // The same, past the queue: start it and poll once, which completes most short ones. False, and nothing has
  // happened, unless nothing is before it. Under the drive lock, on the thread that submits.
  bool start_at_once(Request* request);
  // Nothing is queued from now on. The comm has failed: what is queued completes with the next poll.
  void close();
  Poll poll() override;
  void fail(const Status& why) noexcept override;
  bool idle() const { return oldest_ == slot_ && ended_ == nullptr && !queued_; }  // drive lock

  const LaneKey& key() const { return key_; }
  // For the next lane of this key, once this one is used no more: what executes, and its next slot. Drive
  // lock. Not with a second.
  const std::shared_ptr<CollectiveLane>& impl() const { return runs_[0].impl; }
  uint64_t next_slot() const { return slot_; }
  uint64_t memory_bytes() const;  // any thread

  // Whether the oldest running operation waits for a rank. Under the drive lock.
  bool waits_for(int rank) const { return oldest_ != slot_ && !abandoned_ && oldest().impl->waits_for(rank); }

  // As CollectiveLane says; what is queued has completed. Under the drive lock.
  void share_waits(WaitNotes* notes);

  // Its part of the flight record. Under the drive lock, both.
  FlightLane flight();
  void set_flight_source(std::weak_ptr<const FlightSource> source) { flight_source_ = std::move(source); }

 private:
  struct Run {
    std::shared_ptr<CollectiveLane> impl;
    Request* request = nullptr;
    bool over = false;  // and waits for the one before to be complete
  };
  static constexpr uint64_t kRuns = 2;

  // Of a running operation; slots from oldest_ to slot_ run, one after the other on each.
  Run& run(uint64_t slot) { return runs_[slot % depth_]; }
  const Run& oldest() const { return runs_[oldest_ % depth_]; }
  bool next();  // start the next request, if any
  void start(Request* request);
  bool polled();  // poll what runs; whether that was of use
  void finish();  // the oldest
  Poll fail_all(const Status& failure);
  // An operation that has made no progress for kLongWaitNs: one line of the log, once an operation.
  void warn_of_long_wait(uint64_t now_ns);
  bool fenced();  // nobody writes into running operations' buffers any more, or not as far as can be known
  std::string departure_hint() const;
  void watch();        // a fruitless poll: deadlines, departed peers
  Request* expired();  // one whose deadline has passed: a running one or one that waits behind them
  std::string text_of(const Request& request, uint64_t slot) const;

  Comm& comm_;
  const LaneKey key_;
  const uint64_t first_slot_;
  std::array<Run, kRuns> runs_;  // the first depth_ of them; their impl is never changed
  const uint64_t depth_;
  std::mutex queue_mutex_;
  Request* head_ = nullptr;          // guarded by queue_mutex_
  Request* tail_ = nullptr;          // guarded by queue_mutex_
  bool closed_ = false;              // guarded by queue_mutex_
  std::atomic<bool> queued_{false};  // head_ != nullptr
  // Under the drive lock.
  Request* ended_ = nullptr;  // by the failure that it found itself, whose flight record is being written
  uint64_t oldest_ = 0;       // the slot of the oldest running operation; slot_ when there is none
  uint64_t slot_ = 0;         // the next one
  FlightRing flight_;
  std::vector<int> waited_for_;  // when it was abandoned
  std::weak_ptr<const FlightSource> flight_source_;
  uint32_t fruitless_ = 0;
  uint64_t waiting_since_ns_ = 0;      // first clock read since the oldest operation last advanced
  uint64_t warned_slot_ = UINT64_MAX;  // the last operation that warn_of_long_wait has logged
  int departed_ = -1;                  // a rank that had left and was missing at the last fruitless poll
  bool abandoned_ = false;
  Deadline fence_ = Deadline::never();  // once abandoned
};

}  // namespace weft
