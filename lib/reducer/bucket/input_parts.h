// Parts of a bucket that its collective reads in the gradients, because they were not copied. Made with the
// plan by a feature, if there are such parts. Threads: under the engine's progress lock, once all gradients
// of the bucket are ready.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/collectives.h"

namespace weft {

class InputParts {
 public:
  InputParts() = default;
  virtual ~InputParts() = default;
  InputParts(const InputParts&) = delete;
  InputParts& operator=(const InputParts&) = delete;

  // Sets slices->parts to the parts that lie in gradients in the step of this stamp. Sets no other member of
  // `slices`.
  virtual void locate(uint32_t bucket, uint32_t stamp, InputSlices* slices) const = 0;
  virtual size_t most(uint32_t bucket) const = 0;  // most parts of a bucket
  // Forgets the marks of the half that begins with `stamp` (reducer/step/stamps.h). The program's thread,
  // between steps.
  virtual void forget(uint32_t stamp) = 0;
  virtual uint64_t memory_bytes() const = 0;
};

}  // namespace weft
