// The half of a reducer that the engine polls. It launches buckets in order, runs the hook's stages, and
// submits collectives in the schedule's order. It copies a result back as soon as its bucket is done.
//
// Threads: poll and all private members under the engine's progress lock. prepare and set_deadline: the
// program's thread that begins and finishes. finished: any thread; result and times after it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "reducer/bucket/results.h"
#include "reducer/bucket/work_run.h"
#include "reducer/state.h"
#include "reducer/step/bucket_run.h"
#include "reducer/step/held_streams.h"
#include "reducer/step/step_collectives.h"
#include "reducer/step/step_context.h"
#include "reducer/step/step_results.h"

namespace weft {

class Step final : public Task, public FlightSource {
 public:
  explicit Step(std::shared_ptr<ReducerState> state);

  // ---- the program's thread
  // Sets the coming step's arguments. Called before Readiness::open, while no step is under way.
  void prepare(const StepStart& start);
  // Sets the deadline when finish is called: the step fails when it passes.
  void set_deadline(Deadline deadline) { deadline_ns_.store(deadline.ns(), std::memory_order_release); }
  // Permits the step's end: called by finish, and by other calls that need the results of all buckets.
  void let_end() { collectives_.let_end(); }
  void let_end_for(uint32_t bucket) { collectives_.let_end_for(bucket); }  // any thread
  void stop() { collectives_.stop(); }                                     // for weft_reducer_fail
  using Stopped = StepCollectives::Stopped;
  Stopped stopped() const { return collectives_.stopped(); }
  // Ends all writing of gradients when finish gives up on a stage that does not return. The step continues if
  // the stage does return. False if a write in progress, by this process or a device, does not end by the
  // deadline.
  bool seal(Deadline deadline);
  // Returns the clock time at which the bucket's result was in the gradients, in a step that may still run.
  // done() reports whether that is so. Any thread.
  uint64_t done_ns(uint32_t bucket) const { return buckets_[bucket].done_ns.load(std::memory_order_relaxed); }
  // Sets the deadline of the step if finish has not set one. Any thread.
  void limit(Deadline deadline) {
    uint64_t none = UINT64_MAX;
    deadline_ns_.compare_exchange_strong(none, deadline.ns(), std::memory_order_acq_rel);
  }
  // Registers a stream of the program that waits. It continues when the step of this stamp is over, or when
  // the named bucket's result is in the gradients. Any thread.
  void hold(const DeviceCall& call, uint32_t stamp, uint32_t bucket = HeldStreams::kWholeStep);
  HeldStreams& held_streams() { return streams_; }
  // True if the step of this stamp has ended, with or without an error. The library then no longer accesses
  // gradients. A hook may, if they are views and one of its stages was given up (stage_given_up, stage_out).
  bool finished(uint32_t stamp) const { return reached(finished_.load(std::memory_order_acquire), stamp); }
  // True if the bucket's result is in the gradients, in the step of this stamp. Any thread.
  bool done(uint32_t bucket, uint32_t stamp) const {
    return reached(buckets_[bucket].done.load(std::memory_order_acquire), stamp);
  }
  // True if the pre-step of the step of this stamp has completed. Any thread.
  bool pre_step_done(uint32_t stamp) const { return pre_step_done_.load(std::memory_order_acquire) == stamp; }
  // Records that the Step object before a re-plan ended the step of this stamp. results: its results are in
  // place.
  void adopt(uint32_t stamp, bool results) {
    for (BucketRun& r : buckets_) r.done.store(results ? stamp : 0, std::memory_order_release);
    finished_.store(stamp, std::memory_order_release);
  }
  // Returns a step number: every rank has finished all steps below it.
  uint64_t committed() const { return committed_.load(std::memory_order_acquire); }
  void commit(uint64_t steps) {
    uint64_t known = committed();
    while (known < steps && !committed_.compare_exchange_weak(known, steps)) {
    }
  }

  // ---- once the step is finished
  struct Times {
    uint64_t ready_ns = 0;  // clock time; 0 for an event that has not happened
    uint64_t launch_ns = 0;
    uint64_t done_ns = 0;
    uint64_t transfer_ns = 0;                 // time its collectives took, one after the other
    uint64_t sent_bytes = 0;                  // for them, as the backend counted
    uint64_t least_bytes = 0;                 // for them, as in sent_bytes()
    uint32_t absent = 0;                      // parameters
    bool skipped = false;                     // the bucket was not communicated
    std::optional<ErrorMemory> error_memory;  // of the hook, for this bucket
  };
  Times times(uint32_t bucket) const;
  // Returns the number of buckets whose contributions are in retained copies. The contributions of the others
  // are in the buckets.
  uint32_t retained() const {
    const bool next = step_.launched < bucket_count() && step_.buckets[step_.launched].retained;
    return step_.launched + (next ? 1 : 0);
  }
  // Moves contributions into the buckets that were not launched, after a failure. All gradients must be
  // ready. False if that takes longer than the deadline. The program's thread.
  bool bring_rest(Deadline deadline);
  uint64_t first_launch_ns() const { return first_launch_ns_; }
  uint64_t last_done_ns() const { return results_.last_done_ns(); }
  // Returns the factor still to be applied to the values at result_of(); 1 if the views hold the scaled
  // results.
  double factor_of(uint32_t bucket) const { return result_in_place(s_, bucket) ? 1.0 : step_.factor; }
  bool absent_everywhere(uint32_t param) const { return weft::absent_everywhere(s_, step_, param); }
  // Returns the handshake's outcome, which says whether anything was reduced.
  const StepHandshake& handshake() const { return step_.handshake; }
  uint32_t skipped() const { return skipped_; }  // buckets
  // Describes what the step waits for, or where it failed.
  std::string where() const;
  WaitStats& waits() { return collectives_.waits().stats(); }
  // Bytes that this rank sends for the step's collectives if each uses the least traffic possible.
  uint64_t sent_bytes() const { return collectives_.sent_bytes(); }
  // True if a stage was given up while it was pending: its thread may still write into the bucket and the
  // scratch. Any thread, once the step is finished and stage_out() is false.
  bool stage_given_up() const {
    return std::any_of(buckets_.begin(), buckets_.end(),
                       [](const BucketRun& r) { return r.job->unfinished(); });
  }
  // True if a stage's call has not returned, or its caller still holds the job's state. Any thread.
  bool stage_out() const {
    return std::any_of(buckets_.begin(), buckets_.end(), [](const BucketRun& r) {
      const std::shared_ptr<StageJob> seen = r.job;  // releasing this copy acquires the last holder's writes
      return seen.use_count() > 2;
    });
  }
  // Describes the stage that a given-up step was in; empty if there is none.
  const std::string& left_text() const { return left_text_; }
  uint64_t memory_bytes() const;

  Poll poll() override;
  void fail(const Status& why) noexcept override { s_.comm->fail(why); }
  FlightStep flight_step() const override;
  const char* departure_hint() const override;

 private:
  void start(uint32_t stamp);
  Poll give_up();
  void end();
  // Each does one bounded piece of work; false if there was none.
  bool resume();
  bool collect();
  bool launch();
  bool give_back() { return worked(results_.give_back()); }
  // True if a piece of work is done.
  bool worked(Progress progress) {
    device_waits_ |= progress == Progress::kWaiting;
    return progress == Progress::kMore;
  }
  void apply_deadline();
  Deadline request_deadline() const;
  void watch();

  // True if the step of this stamp has begun, where `last` is the last step's stamp. Stamps wrap around, and
  // no step has stamp 0.
  static bool reached(uint32_t last, uint32_t stamp) {
    return last == stamp || (last != 0 && static_cast<int32_t>(last - stamp) > 0);
  }
  void watch_pre_step();
  void run_stage(uint32_t bucket, bool joins = false);
  bool stages_ended();
  // Returns kWaiting while only the clock or a device can continue the step. That is a device to be polled
  // again, a deadline that a stream waits for, or the bounded wait for finish.
  Poll idle() const {
    return collectives_.held() || device_waits_ || streams_.any() ? Poll::kWaiting : Poll::kParked;
  }
  void stage_done(uint32_t bucket);
  uint32_t bucket_count() const { return static_cast<uint32_t>(state_->plan.buckets.size()); }

  const std::shared_ptr<ReducerState> state_;
  ReducerState& s_;
  Clock& clock_;

  StepContext step_;
  BucketRuns buckets_;
  HeldStreams streams_;
  StepResults results_;
  StepCollectives collectives_;
  std::atomic<uint64_t> deadline_ns_{UINT64_MAX};
  std::atomic<uint32_t> finished_{0};
  std::atomic<uint32_t> pre_step_done_{0};
  std::atomic<uint64_t> committed_{0};

  bool active_ = false;
  WorkRun preparing_;  // the next bucket to be launched
  uint64_t applied_deadline_ns_ = UINT64_MAX;
  uint32_t idle_polls_ = 0;
  std::string left_text_;
  uint64_t given_up_ns_ = 0;  // when the failure was noticed; 0: there is none
  uint32_t skipped_ = 0;
  uint64_t first_launch_ns_ = 0;
  std::vector<uint32_t> pending_;  // buckets whose stage is not complete
  bool device_waits_ = false;      // this poll asked a device that was not done
};

}  // namespace weft
