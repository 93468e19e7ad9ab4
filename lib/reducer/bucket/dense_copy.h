// Copies of dense gradients in host memory.
#pragma once

#include "reducer/bucket/copy_in.h"
#include "reducer/state.h"

namespace weft {

// Copies a gradient into its place, times scale. Adds it there if local steps have left a sum; scale is 1
// then.
inline void flatten(const ReducerState& s, uint64_t param, const Given& given, const Buckets::Place& place,
                    double scale) {
  const Layout& layout = given.layout != nullptr ? *given.layout : *place.layout;
  layout.flatten(s.comm->context().host(), static_cast<const std::byte*>(given.data), place.memory,
                 place.dtype, s.holds_sum(param), scale, s.buckets->streaming());
}

// Remembers where the result goes, in copy mode.
inline void note_destination(ReducerState& s, uint64_t param, const Given& given) {
  s.gradients[param] = static_cast<std::byte*>(given.data);
  s.given->set(param, given.layout);
}

}  // namespace weft
