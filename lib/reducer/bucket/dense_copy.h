// Copies of dense gradients in host memory.
#pragma once

#include "reducer/bucket/copy_in.h"
#include "reducer/state.h"

namespace weft {

// Copies a gradient into `to`, times scale. Adds it there if local steps have left a sum; scale is 1 then.
inline void flatten(const ReducerState& s, const Arrival& arrival, const Buckets::Place& to, double scale) {
  const Given& given = arrival.given;
  const Layout& layout = given.layout != nullptr ? *given.layout : *to.layout;
  layout.flatten(s.comm->context().host(), static_cast<const std::byte*>(given.data), to.memory, to.dtype,
                 s.holds_sum(arrival.param), scale, s.buckets->streaming());
}

// Remembers where the result goes, in copy mode.
inline void note_destination(ReducerState& s, const Arrival& arrival) {
  s.gradients[arrival.param] = static_cast<std::byte*>(arrival.given.data);
  s.given->set(arrival.param, arrival.given.layout);
}

// Returns a parameter's place in its bucket in a step. fresh: StepStart::fresh of the step. Any thread.
inline Buckets::Place place_in(const ReducerState& s, uint64_t param, bool fresh) {
  Buckets::Place place = s.buckets->place(param);
  if (!fresh || !s.schedule.buckets[place.bucket].copies_narrow) return place;
  place.dtype = s.comm_dtype(place.bucket);
  place.element_bytes = static_cast<uint8_t>(dtype_size(place.dtype));
  place.memory = s.buckets->buffers()[place.bucket] + s.plan.offset_of[param] * place.element_bytes;
  return place;
}

}  // namespace weft
