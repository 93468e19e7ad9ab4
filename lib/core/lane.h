// A queue of operations that run one after the other on a CollectiveLane. The C layer submits a user's calls,
// a reducer its buckets' collectives.
#pragma once

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
// poll: under the drive lock.
class Lane final : public Task {
 public:
  // comm outlives the lane: the comm owns it. first: its slots before that were another lane's.
  Lane(Comm& comm, const LaneKey& key, std::shared_ptr<CollectiveLane> impl, uint64_t first = 0);

  // Before a request with buffers on a device is submitted: as CollectiveLane::prepare.
  Status prepare(const DeviceCall& call) { return impl_->prepare(call); }
  // Queue the request, or complete it at once with the comm's failure if the lane is closed.
  void submit(Request* request);
  // Nothing is queued from now on. The comm has failed: what is queued completes with the next poll.
  void close();
  Poll poll() override;
  bool idle() const { return current_ == nullptr && ended_ == nullptr && !queued_; }  // drive lock

  const LaneKey& key() const { return key_; }
  // For the next lane of this key, once this one is used no more: what executes, and its next slot. Drive
  // lock.
  const std::shared_ptr<CollectiveLane>& impl() const { return impl_; }
  uint64_t next_slot() const { return slot_; }
  uint64_t memory_bytes() const { return impl_->memory_bytes(); }  // any thread

  // Whether the running operation waits for a rank. Under the drive lock.
  bool waits_for(int rank) const { return current_ != nullptr && !abandoned_ && impl_->waits_for(rank); }

  // Its part of the flight record. Under the drive lock, both.
  FlightLane flight();
  void set_flight_source(std::weak_ptr<const FlightSource> source) { flight_source_ = std::move(source); }

 private:
  bool next();  // start the next request, if any
  void finish(Status status);
  Poll fail_all(const Status& failure);
  bool
  fenced();      // nobody writes into the running operation's buffers any more, or not as far as can be known
  void watch();  // a fruitless poll: deadlines, departed peers
  Request* expired();  // one whose deadline has passed: the running one or one that waits behind it
  std::string text_of(const Request& request, uint64_t slot) const;

  Comm& comm_;
  const LaneKey key_;
  const uint64_t first_slot_;
  const std::shared_ptr<CollectiveLane> impl_;
  std::mutex queue_mutex_;
  Request* head_ = nullptr;          // guarded by queue_mutex_
  Request* tail_ = nullptr;          // guarded by queue_mutex_
  bool closed_ = false;              // guarded by queue_mutex_
  std::atomic<bool> queued_{false};  // head_ != nullptr
  // Under the drive lock.
  Request* current_ = nullptr;
  Request* ended_ = nullptr;  // by the failure that it found itself, whose flight record is being written
  uint64_t slot_ = 0;         // the next one
  FlightRing flight_;
  std::vector<int> waited_for_;  // when it was abandoned
  std::weak_ptr<const FlightSource> flight_source_;
  uint32_t fruitless_ = 0;
  int departed_ = -1;  // a rank that had left and was missing at the last fruitless poll
  bool abandoned_ = false;
  Deadline fence_ = Deadline::never();  // once abandoned
};

}  // namespace weft
