// Watches the error memory of a hook with error feedback: compares it with the gradient, bucket by
// bucket, detects that it keeps growing and, with rescue=1, lets such a bucket go uncompressed
// until it has recovered. A member of hooks, whose calls never overlap (core/hook.h).
//
// A memory that compression cannot empty as fast as it fills grows until it leaves in one piece,
// and that ruins the model. Ranks hold different memories, so with rescue=1 they vote: every few
// steps one more all-reduce, of a single value, says whether any rank wants the bucket
// uncompressed. In an uncompressed step each rank adds a part of its memory, no larger than its
// gradient, to what it contributes.
#pragma once

#include <weft/weft.h>

#include <vector>

#include "common/state.h"
#include "core/device.h"
#include "core/hook.h"

namespace weft {

class ErrorWatch {
 public:
  // The bytes of scratch that a vote takes.
  static constexpr uint64_t kVoteBytes = sizeof(float);

  ErrorWatch(HookState& state, const DeviceOps& host, bool rescue)
      : errors_(state), host_(host), rescue_(rescue), watched_(rescue ? state : own_) {}
  ErrorWatch(const ErrorWatch&) = delete;
  ErrorWatch& operator=(const ErrorWatch&) = delete;

  bool rescues() const { return rescue_; }
  uint64_t memory_bytes() const { return own_.memory_bytes(); }  // beside the hook's state
  // Allocates what the bucket's steps need.
  void plan(const weft_bucket& bucket) { fields(bucket); }
  // Append to a bucket's collectives: the all-reduce of uncompressed steps; the vote, whose value
  // is at this offset of the scratch.
  static void declare_plain(const weft_bucket& bucket, weft_hook_plan* plan);
  static void declare_vote(weft_hook_plan* plan, uint64_t offset_bytes);
  // The buckets change: every bucket starts anew.
  void replan() { watched_.drop(HookState::kWatch); }

  // In stage 0, before the hook changes the bucket: measures this rank's gradient.
  void measure_gradient(const weft_bucket& bucket);
  // Whether the bucket is not compressed in this step. All ranks agree.
  bool uncompressed(const weft_bucket& bucket) { return rescue_ && fields(bucket)[kUncompressed] != 0; }
  // In stage 0 of an uncompressed step: moves a part of the error memory into the bucket.
  void release(const weft_bucket& bucket);
  // After the error memory has its value of this step.
  void measure_memory(const weft_bucket& bucket);
  ErrorMemory of(const weft_bucket& bucket);

  // With rescue=1, in every stage of a hook whose collectives before `plain` are those of
  // compressed steps, which measures the memory in stage `plain` and declares the vote behind it:
  // says whether the next collective runs, and casts and counts votes. iteration: the hook's, equal
  // on all ranks.
  void stage(const weft_bucket& bucket, uint64_t iteration, uint32_t plain, void* vote, weft_stage* stage);

 private:
  bool wants_rescue(const weft_bucket& bucket);
  void decide(const weft_bucket& bucket, bool uncompressed);

  // What is known of a bucket, in f32, so that it can be saved with the hook's state.
  enum Field : uint8_t {
    kGradient,      // norm of this rank's gradient; 0: not measured in this step
    kMemory,        // norm of the error memory
    kRatio,         // of the last step that was measured
    kMemorySum,     // of kMemory in the window's steps
    kGradientSum,   // of kGradient
    kSteps,         // of the window
    kMean,          // of kMemory in the last window; 0: there is none
    kRises,         // windows, one after the other, whose mean has risen
    kGrowing,       // 1: the memory keeps growing
    kUncompressed,  // 1: until it has recovered
    kFields
  };

  std::vector<float>& fields(const weft_bucket& bucket) {
    return watched_.array(HookState::kWatch, bucket.params[0].name, kFields);
  }
  static void end_window(std::vector<float>& bucket);

  HookState& errors_;
  const DeviceOps& host_;
  const bool rescue_;
  HookState own_{nullptr};  // without rescue nothing of it is saved
  HookState& watched_;      // by the name of a bucket's first parameter
};

}  // namespace weft
