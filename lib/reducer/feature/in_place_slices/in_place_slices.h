// Copy mode: parts of gradients that are not copied into their bucket. In some backends one rank alone reads
// certain elements of its own bucket (Collectives::in_place_slice: shm's owner of a slice). It reads them in
// the gradients, which must not change until the bucket is done, and their copy is saved. This applies only
// to gradients copied without conversion, in one piece, and to steps that read the bucket in no other way.
// Results are written to the bucket as usual.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kInPlaceSlices;

}  // namespace weft
