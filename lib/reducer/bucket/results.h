// Where the result of a bucket is, and which part of it goes to the gradients. Threads: under the engine's
// progress lock during a step, then the program's thread.
#pragma once

#include <cstdint>

#include "reducer/state.h"
#include "reducer/step/step_context.h"

namespace weft {

// Returns the address of a bucket's result after its last stage.
inline const std::byte* result_of(const ReducerState& s, uint32_t bucket) {
  if (s.device_bucket(bucket)) return s.device_buckets->memory(bucket);
  const HookedBucket& hooked = s.schedule.buckets[bucket];
  const std::byte* const base =
      hooked.result_space == WEFT_SPACE_BUCKET ? s.buckets->buffers()[bucket] : s.scratch->parts()[bucket];
  return base + hooked.result_offset;
}

// True if the views themselves hold the bucket's result.
inline bool result_in_place(const ReducerState& s, uint32_t bucket) {
  const bool on_device = s.devices && s.devices->has(bucket);
  return !s.copy && !on_device && result_of(s, bucket) == s.buckets->buffers()[bucket];
}

// Returns the part of a parameter's result that this rank receives.
inline Owned received_part(const ReducerState& s, uint32_t param) {
  if (s.ownership) return s.ownership->of(s.comm->rank(), param);
  return {0, s.buckets->place(param).count};
}

// True if this rank's absent parameters are declared to be absent on all ranks (WEFT_BEGIN_FIXED), and no map
// will follow. A rank without data cannot know what is absent. Its buckets are then communicated, and the
// map, if there is one, tells what is absent.
inline bool absent_declared(const ReducerState& s, const StepContext& step) {
  return step.begun.fixed && (step.fixed || !s.has(WEFT_REDUCER_ABSENT));
}

inline bool absent_everywhere(const ReducerState& s, const StepContext& step, uint32_t param) {
  if (!s.presence->absent(param, step.stamp)) return false;
  return absent_declared(s, step) || (s.has(WEFT_REDUCER_ABSENT) && !s.presence->present_anywhere(param));
}

}  // namespace weft
