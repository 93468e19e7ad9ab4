// The last phase of the buckets of a step: results go back to the gradients, a piece at a time, and are
// reported. Part of Step.
//
// Threads: under the engine's progress lock, except where noted.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "reducer/bucket/work_run.h"
#include "reducer/state.h"
#include "reducer/step/bucket_run.h"
#include "reducer/step/held_streams.h"
#include "reducer/step/step_context.h"

namespace weft {

class StepResults {
 public:
  // streams: they continue when the result of the bucket that they wait for is in the gradients.
  StepResults(ReducerState& state, StepContext& step, BucketRuns& buckets, HeldStreams& streams);
  StepResults(const StepResults&) = delete;
  StepResults& operator=(const StepResults&) = delete;

  void start();
  // Takes over a bucket whose last stage has run, or that is skipped.
  void add(uint32_t bucket) { queue_.push_back(bucket); }
  // Gives results back bucket by bucket, in pieces, while later buckets are communicated. With a gate, all
  // results are reviewed first. kDone: there is nothing to do now.
  Progress give_back();
  // Ends all writing of gradients. False if a write in progress, by this process or a device, does not end by
  // the deadline. The program's thread.
  bool seal(Deadline deadline);
  // Reports the buckets that have no result.
  void report_rest(Code code);
  std::mutex& writing() { return writing_; }  // held while a gradient is written, or read by a collective
  bool complete() const { return done_ == s_.plan.buckets.size(); }
  uint32_t done() const { return done_; }  // buckets
  uint64_t last_done_ns() const { return last_done_ns_; }
  const char* awaited() const;  // what the results wait for, once every bucket is launched
  uint64_t memory_bytes() const { return (queue_.capacity() + late_.capacity()) * sizeof(uint32_t); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  bool reviews() const { return s_.works.gate != nullptr && !decided_; }
  bool next_result();
  void bucket_done(uint32_t bucket);
  void report(uint32_t bucket, Code code);

  ReducerState& s_;
  StepContext& step_;
  BucketRuns& buckets_;
  HeldStreams& streams_;
  std::mutex writing_;
  std::vector<uint32_t> queue_;  // buckets whose last stage has run, in that order
  size_t next_ = 0;              // position in queue_
  std::vector<uint32_t> late_;   // those of the queue that wait for the map
  size_t next_late_ = 0;         // position in late_
  uint32_t bucket_ = kNone;      // the bucket that is reviewed, or given back
  WorkRun work_;                 // on it
  bool decided_ = false;         // the gate has decided about the results
  uint32_t done_ = 0;            // buckets
  uint32_t reported_up_to_ = 0;  // report_rest has reported the buckets below it that have no result
  uint64_t last_done_ns_ = 0;
};

}  // namespace weft
