// Copy mode: gradients that their copies round. A bucket is held in f32, because local steps add up there and
// contributions are retained as they are held, but travels in 16 bits: for a hook that narrows
// (Hook::narrows), whose stages are then left out, or by WEFT_REDUCER_ACCUMULATE_F32. A pass rounds it in its
// place (Step::make_up). In a step that has nothing but its own gradients, and whose divisor is known when it
// begins, they go straight to where they travel, and nothing is left for a pass.
//
// Which of the two it was changes no bit: the same product is rounded once. The two places of a gradient
// overlap others', so that a step is straight as a whole or not at all. Used by Reducer and Step.
#pragma once

#include <cstdint>

#include "sync/state.h"

namespace weft {

// Marks the buckets that copies narrow, and those that straight steps are for. For a state that has buckets
// and a schedule; before the schedule is bound and scratch is made. Local.
void let_copies_round(ReducerState* state);

// Whether the synchronised step that begins now may be straight. Not one whose ranks may be without data or
// recover: what clears places then looks for gradients where their buckets are held. Threads: that of begin.
inline bool begins_straight(const ReducerState& s) {
  return s.copy && !s.uneven && !s.retain && s.presence->local_steps() == 0;
}

// In a straight step: where a parameter's gradient goes in its bucket. Any thread.
inline Buckets::Place straight_place(const ReducerState& s, uint64_t param) {
  Buckets::Place place = s.buckets->place(param);
  if (!s.schedule.buckets[place.bucket].straight) return place;
  place.dtype = s.travels(place.bucket);
  place.element_bytes = static_cast<uint8_t>(dtype_size(place.dtype));
  place.memory = s.buckets->buffers()[place.bucket] + s.plan.offset_of[param] * place.element_bytes;
  return place;
}

}  // namespace weft
