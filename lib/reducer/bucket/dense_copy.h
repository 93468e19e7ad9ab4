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

}  // namespace weft
