// Copy mode: fused casts, where copies into a bucket do the rounding. A bucket may be stored in f32, because
// local steps add up there and contributions are retained in that dtype, but communicated in 16 bits. That is
// so for a narrowing hook (Hook::narrows), whose stages are then left out, or with
// WEFT_REDUCER_ACCUMULATE_F32. Normally a pass rounds the bucket in place (Step::make_up). In a step that has
// only its own gradients, and whose divisor is known when it begins, gradients are copied directly in the
// communication dtype. Such a step is called straight, and needs no pass.
//
// Both ways give the same bits: the same product is rounded once. The two places of a gradient overlap those
// of others, so a step is straight as a whole or not at all. Used by Reducer and Step.
#pragma once

#include <cstdint>

#include "sync/state.h"

namespace weft {

// Marks the buckets whose copies narrow, and those that straight steps apply to. For a state that has buckets
// and a schedule; call before the schedule is bound and scratch is made. Local.
void let_copies_round(ReducerState* state);

// True if the synchronised step that begins now may be straight. A step whose ranks may be without data or
// recover may not: clearing a place then expects it in the storage dtype. Threads: that of begin.
inline bool begins_straight(const ReducerState& s) {
  return s.copy && !s.uneven && !s.retain && s.presence->local_steps() == 0;
}

// Returns a parameter's place in its bucket in a straight step. Any thread.
inline Buckets::Place straight_place(const ReducerState& s, uint64_t param) {
  Buckets::Place place = s.buckets->place(param);
  if (!s.schedule.buckets[place.bucket].straight) return place;
  place.dtype = s.travels(place.bucket);
  place.element_bytes = static_cast<uint8_t>(dtype_size(place.dtype));
  place.memory = s.buckets->buffers()[place.bucket] + s.plan.offset_of[param] * place.element_bytes;
  return place;
}

}  // namespace weft
