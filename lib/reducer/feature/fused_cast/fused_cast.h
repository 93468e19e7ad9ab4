// Copy mode: fused casts, where copies into a bucket do the rounding. A bucket may be stored in f32, because
// local steps add up there and contributions are retained in that dtype, but communicated in 16 bits. That is
// so for a narrowing hook (Hook::cast_dtype), whose stages are then left out, or with
// WEFT_REDUCER_ACCUMULATE_F32. Normally a pass rounds the bucket in place (feature/convert). In a
// step that has only its own gradients, and whose divisor is known when it begins, gradients are copied
// directly in the communication dtype. Such a step has fused casts, and needs no pass.
//
// Both ways give the same bits: the same product is rounded once. The two places of a gradient overlap those
// of others, so a step has fused casts as a whole or not at all. Used by Reducer and Step.
#pragma once

#include <cstdint>

#include "reducer/features.h"
#include "reducer/state.h"

namespace weft {

// Marks the buckets whose copies narrow, and those that steps with fused casts apply to. For a state that has
// buckets and a schedule; call before the schedule is bound and scratch is made. Local.
void mark_fused_casts(ReducerState* state);

// True if the synchronised step that begins now may have fused casts. A step whose ranks may be without data
// or recover may not: clearing a place then expects it in the storage dtype. Threads: that of begin.
inline bool begins_with_fused_casts(const ReducerState& s) {
  const bool adds = s.accumulation == WEFT_ACCUMULATION_REDUCER && s.presence->local_steps() > 0;
  return s.copy && !s.uneven && !s.retain && !adds;
}

// Returns a parameter's place in its bucket in a step with fused casts. Any thread.
inline Buckets::Place fused_cast_place(const ReducerState& s, uint64_t param) {
  Buckets::Place place = s.buckets->place(param);
  if (!s.schedule.buckets[place.bucket].fused_cast) return place;
  place.dtype = s.comm_dtype(place.bucket);
  place.element_bytes = static_cast<uint8_t>(dtype_size(place.dtype));
  place.memory = s.buckets->buffers()[place.bucket] + s.plan.offset_of[param] * place.element_bytes;
  return place;
}

// Lets the copies of such steps narrow. For a state whose fused casts are marked.
extern const StepFeature kFusedCast;

}  // namespace weft
