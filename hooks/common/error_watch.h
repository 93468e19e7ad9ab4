// Watches the error memory of a hook with error feedback. It compares each bucket's memory with the gradient
// and detects that it keeps growing. With rescue=1 such a bucket is sent uncompressed until it has recovered.
// A member of hooks, whose calls never overlap (hook/hook.h).
//
// If compression cannot empty a memory as fast as it fills, the memory grows until it is sent all at once,
// and that ruins the model. Ranks have different memories, so with rescue=1 they vote. Every few steps an
// additional all-reduce of a single value tells whether any rank wants the bucket uncompressed. In an
// uncompressed step each rank adds a part of its memory, no larger than its gradient, to its contribution.
#pragma once

#include <weft/weft.h>

#include <vector>

#include "common/state.h"
#include "device/device.h"
#include "hook/hook.h"

namespace weft {

class ErrorWatch {
 public:
  // Bytes of scratch for a vote.
  static constexpr uint64_t kVoteBytes = sizeof(float);

  ErrorWatch(HookState& state, const DeviceOps& host, bool rescue)
      : errors_(state), host_(host), rescue_(rescue), watched_(rescue ? state : own_) {}
  ErrorWatch(const ErrorWatch&) = delete;
  ErrorWatch& operator=(const ErrorWatch&) = delete;

  bool rescues() const { return rescue_; }
  uint64_t memory_bytes() const { return own_.memory_bytes(); }  // in addition to the hook's state
  // Allocates the fields of a bucket.
  void plan(const weft_bucket& bucket) { fields(bucket); }
  // Append to a bucket's collectives: the all-reduce of uncompressed steps, and the vote, whose value is at
  // this offset of the scratch.
  static void declare_plain(const weft_bucket& bucket, weft_hook_plan* plan);
  static void declare_vote(weft_hook_plan* plan, uint64_t offset_bytes);
  // Forgets the measurements, because the buckets change.
  void replan() { watched_.drop(HookState::kWatch); }

  // Measures this rank's gradient. Called in stage 0, before the hook changes the bucket.
  void measure_gradient(const weft_bucket& bucket);
  // True if the bucket is not compressed in this step. Equal on all ranks.
  bool uncompressed(const weft_bucket& bucket) { return rescue_ && fields(bucket)[kUncompressed] != 0; }
  // Moves a part of the error memory into the bucket. Called in stage 0 of an uncompressed step.
  void release(const weft_bucket& bucket);
  // Measures the error memory. Called once it has this step's value.
  void measure_memory(const weft_bucket& bucket);
  ErrorMemory of(const weft_bucket& bucket);

  // Runs the rescue=1 part of every stage: sets whether the next collective takes place, writes this rank's
  // vote, and evaluates the ranks' votes. The hook's collectives before `plain` must be those of compressed
  // steps. Collective `plain` must be the uncompressed all-reduce, and the next one the vote. The hook must
  // measure the memory in stage `plain`. iteration: the hook's, equal on all ranks.
  void stage(const weft_bucket& bucket, uint64_t iteration, uint32_t plain, void* vote, weft_stage* stage);

 private:
  bool wants_rescue(const weft_bucket& bucket);
  void decide(const weft_bucket& bucket, bool uncompressed);

  // The measurements of a bucket, in f32, so that they are saved with the hook's state.
  enum Field : uint8_t {
    kGradient,      // norm of this rank's gradient; 0: not measured in this step
    kMemory,        // norm of the error memory
    kRatio,         // of the last step that was measured
    kMemorySum,     // sum of kMemory over the window's steps
    kGradientSum,   // sum of kGradient over the window's steps
    kSteps,         // steps in the window so far
    kMean,          // mean of kMemory in the last window; 0: there is none
    kRises,         // windows in a row whose mean has risen
    kGrowing,       // 1: the memory keeps growing
    kUncompressed,  // 1: sent uncompressed until it has recovered
    kFields
  };

  std::vector<float>& fields(const weft_bucket& bucket) {
    return watched_.array(HookState::kWatch, bucket.params[0].name, kFields);
  }
  static void end_window(std::vector<float>& bucket);

  HookState& errors_;
  const DeviceOps& host_;
  const bool rescue_;
  HookState own_{nullptr};  // used without rescue; not saved
  HookState& watched_;      // key: the name of a bucket's first parameter
};

}  // namespace weft
