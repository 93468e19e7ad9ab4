// How a gradient lies in the program's memory, against its place in a bucket: the places of a bucket are
// packed, a gradient may have any strides. Used by ready (into the bucket) and by a bucket's completion
// (back). Threads: immutable after construction; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "sync/manifest.h"

namespace weft {

class Layout {
 public:
  explicit Layout(const Param& param);

  // gradient -> place, adding to what is there or not. Reads all of the gradient.
  void flatten(const DeviceOps& ops, const std::byte* gradient, std::byte* place, bool add) const;
  // place -> gradient, elements [first, first + count) in the order of the place. first and count are from
  // piece().
  void unflatten(const DeviceOps& ops, const std::byte* place, std::byte* gradient, uint64_t first,
                 uint64_t count) const;
  // How many elements from `first` on to move in one go so that it takes about `most` elements' time.
  uint64_t piece(uint64_t first, uint64_t most) const;

  uint64_t count() const { return count_; }
  uint32_t element_bytes() const { return element_bytes_; }
  uint64_t memory_bytes() const { return dims_.capacity() * sizeof(Dim); }

 private:
  struct Dim {
    uint64_t extent;
    uint64_t stride;  // of the gradient, in elements
  };
  // Calls move(offset in the gradient, offset in the place, elements) for consecutive elements, in order.
  template <class Move>
  void for_each_run(uint64_t first, uint64_t count, Move&& move) const;

  Dtype dtype_;
  uint32_t element_bytes_;
  uint64_t count_;
  uint64_t run_;           // elements that are consecutive in both; count_ for a dense gradient
  std::vector<Dim> dims_;  // of the runs, outermost first; empty for a dense gradient
};

}  // namespace weft
