// Copy mode: parts of gradients that are not copied into their bucket. In some backends one rank alone reads
// certain elements of its own bucket (Collectives::in_place_slice: shm's owner of a slice). It reads them in
// the gradients, which must not change until the bucket is done, and their copy is saved. This applies only
// to gradients copied without conversion, in one piece, and to steps that read the bucket in no other way.
// Results are written to the bucket as usual. Made with the plan.
//
// Threads: stated for each call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/collectives.h"
#include "core/device.h"
#include "reducer/bucket/buckets.h"
#include "reducer/features.h"

namespace weft {

struct ReducerState;

class InPlaceSlices {
 public:
  // Makes the table for a state that is otherwise complete. Null if there are no such parts.
  static std::unique_ptr<InPlaceSlices> make(const ReducerState& state);

  // ---- any thread: the one that claimed the parameter, before it is counted
  bool has(uint64_t param) const { return parts_[param].count > 0; }
  // Copies a gradient into its place, except for the part that stays in place.
  void copy_rest(const DeviceOps& ops, const Buckets::Place& place, uint64_t param, const std::byte* gradient,
                 uint32_t stamp, bool streaming);

  // ---- progress lock, once all gradients of the bucket are ready
  // Sets slices->parts to the parts that lie in gradients in the step of this stamp. Sets no other member of
  // `slices`.
  void locate(const ReducerState& state, uint32_t bucket, uint32_t stamp, InputSlices* slices) const;
  size_t most(uint32_t bucket) const { return params_[bucket].size(); }  // most parts of a bucket
  uint64_t memory_bytes() const;

 private:
  // Elements of a gradient that are not copied.
  struct Part {
    uint64_t first = 0;
    uint64_t count = 0;
    uint32_t stamp = 0;  // of the last step in which the part stayed in its gradient
  };
  InPlaceSlices() = default;

  std::vector<Part> parts_;                    // by parameter
  std::vector<std::vector<uint32_t>> params_;  // by bucket: the parameters with a part, in the bucket's order
};

// Lets the copies leave those parts out.
extern const StepFeature kInPlaceSlices;

}  // namespace weft
