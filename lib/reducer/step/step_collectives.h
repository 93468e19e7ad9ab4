// The collectives of a step: submitted in the schedule's order as soon as possible, and collected in the same
// order.
//
// Threads: under the engine's progress lock, except where noted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "reducer/state.h"
#include "reducer/step/bucket_run.h"
#include "reducer/step/step_context.h"
#include "reducer/step/waits.h"
#include "transport/request.h"

namespace weft {

class StepCollectives {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // writing: held while a gradient is written, or read by a collective.
  StepCollectives(ReducerState& state, StepContext& step, BucketRuns& buckets, std::mutex& writing);
  StepCollectives(const StepCollectives&) = delete;
  StepCollectives& operator=(const StepCollectives&) = delete;

  // ---- the end of the step: the program's thread, or any thread where noted
  // Called before a step opens.
  void prepare();
  // Permits the step's end. The collective at find_end() waits for this call, so that a rank that fails the
  // step can notify the others before they have results.
  void let_end() { end_.store(End::kFree, std::memory_order_release); }
  // Permits the step's end if this bucket's result needs it. Any thread.
  void let_end_for(uint32_t bucket);
  // Stops the step: no further collective that takes place is submitted, until let_end.
  void stop() { end_.store(End::kStopped, std::memory_order_release); }
  enum class Stopped : uint8_t {
    kNot,
    kInTime,   // every other rank still needs this rank in the rest of the step
    kTooLate,  // some rank may already have all that it needs from this one
  };
  Stopped stopped() const { return stopped_.load(std::memory_order_acquire); }  // any thread

  // ---- while the step runs
  void start();
  // Submits what can be submitted. True if that is anything. An error fails the step: a hook's count is too
  // large.
  bool submit(Deadline deadline);
  // Collects the oldest collective: the lane completes them in order.
  struct Collected {
    bool any = false;
    bool all_began = false;   // every rank has begun the step
    uint32_t bucket = kNone;  // whose next stage is to run
  };
  Collected collect();
  void set_deadline(Deadline deadline);
  // Waits, after a failure, for the requests on the lane. True once they are complete.
  bool settled();
  bool waiting() const { return collected_ < submitted_; }  // requests are on the lane
  bool over() const { return collected_ == s_.schedule.slots.size(); }
  bool first_over() const { return collected_ >= s_.schedule.leading; }  // those before the buckets'
  // Returns true while only the clock, or finish, can continue the step.
  bool held() const { return held_since_ns_ != 0 && end_.load(std::memory_order_acquire) == End::kAwaited; }
  bool awaits_finish() const { return submitted_ >= end_slot_ && end_.load() == End::kAwaited; }
  std::string awaited() const;  // what the oldest request waits for
  Waits& waits() { return waits_; }
  const Waits& waits() const { return waits_; }
  // Returns the divisor of averages over the hook's communicator (own), or over the reducer's.
  double divisor(bool own) const;
  // Bytes that this rank sends for the step's collectives if each uses the least traffic possible. Also once
  // the step is over, by the program's thread.
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t memory_bytes() const { return waits_.memory_bytes(); }

 private:
  enum class End : uint8_t { kAwaited, kFree, kStopped };
  static constexpr uint64_t kHoldNs = 250'000'000;  // the longest wait for finish

  bool skips(const Slot& slot) const;
  bool left_out(const Slot& slot) const;
  bool may_submit(const Slot& slot) const;
  bool needs(const Slot& slot, int rank) const;
  size_t find_end() const;
  bool held_up();
  bool all_need_rest() const;
  bool allowed(const Slot& slot);
  void fill(const Slot& slot, CollectiveArgs* args);
  void show_micro_batches(const Slot& slot, CollectiveArgs* args) const;
  void count(const Slot& slot, const Request& ended, uint64_t began_ns);
  void counted(const Slot& slot);
  void own_failed(const Slot& slot);
  uint32_t bucket_count() const { return static_cast<uint32_t>(s_.plan.buckets.size()); }
  Request& request(size_t position) { return requests_[position % requests_.size()]; }

  ReducerState& s_;
  StepContext& step_;
  BucketRuns& buckets_;
  Engine& engine_;
  Clock& clock_;
  std::atomic<End> end_{End::kAwaited};
  std::atomic<Stopped> stopped_{Stopped::kNot};
  const size_t end_slot_;  // position of the collective that waits for let_end; the number of slots if none
  uint64_t held_since_ns_ = 0;       // since when only finish holds that collective back; 0: not yet
  std::vector<InputSlices> slices_;  // per bucket, if parts of gradients stay in place
  size_t submitted_ = 0;             // positions in the schedule
  size_t collected_ = 0;
  std::array<Request, 64> requests_;  // requests at the positions [collected_, submitted_)
  std::array<uint64_t, 64> submitted_ns_{};
  uint64_t collected_ns_ = 0;  // when the last collective ended
  uint64_t sent_bytes_ = 0;
  Waits waits_;
};

}  // namespace weft
