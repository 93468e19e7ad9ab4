// Maps a gradient in the program's memory to its place in a bucket. Places are packed and may have another
// dtype, and a gradient may have any strides. Used by ready (into the bucket) and after a bucket's completion
// (back). It also packs and unpacks values of parameters, which have their gradients' layout. Threads:
// immutable after construction; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "reducer/manifest/manifest.h"

namespace weft {

class Layout {
 public:
  explicit Layout(const Param& param);
  // For a gradient with other strides than its parameter: one stride per dimension, in elements, accepted by
  // check_strides.
  Layout(const Param& param, const std::vector<int64_t>& strides);

  // Copies gradient -> place of this dtype: scale * gradient, or adds it to the place (scale is 1 then).
  // Reads the whole gradient. streaming: see CopyArgs.
  void flatten(const DeviceOps& ops, const std::byte* gradient, std::byte* place, Dtype place_dtype, bool add,
               double scale, bool streaming) const;
  // Copies scale * place -> gradient for elements [first, first + count) in the order of the place. first and
  // count come from piece().
  void unflatten(const DeviceOps& ops, const std::byte* place, Dtype place_dtype, std::byte* gradient,
                 uint64_t first, uint64_t count, double scale, bool streaming) const;
  // Copy elements [first, first + count) as plain bytes of any dtype: value -> packed, where element `first`
  // goes to the start of packed, and back.
  void pack(const std::byte* value, std::byte* packed, uint64_t first, uint64_t count) const;
  void unpack(const std::byte* packed, std::byte* value, uint64_t first, uint64_t count) const;
  // Calls move(offset in the gradient, offset in the place, elements) for consecutive elements, in order.
  template <class Move>
  void for_each_run(uint64_t first, uint64_t count, Move&& move) const;
  // Returns how many elements from `first` on to move at once, so that it takes about as long as `most` dense
  // elements.
  uint64_t piece(uint64_t first, uint64_t most) const;

  bool dense() const { return dims_.empty(); }
  uint64_t runs() const { return dims_.empty() ? 1 : count_ / run_; }
  uint64_t run() const { return run_; }
  uint64_t count() const { return count_; }
  Dtype dtype() const { return dtype_; }                     // of the gradient
  uint32_t element_bytes() const { return element_bytes_; }  // of the gradient
  uint64_t memory_bytes() const { return dims_.capacity() * sizeof(Dim); }

 private:
  struct Dim {
    uint64_t extent;
    uint64_t stride;  // of the gradient, in elements
  };
  void add_dim(uint64_t extent, uint64_t stride);
  void take_run();
  void move_run(const DeviceOps& ops, const CopyArgs& args) const;

  Dtype dtype_;
  uint32_t element_bytes_;
  uint64_t count_;
  uint64_t run_;           // elements that are consecutive in both; count_ for a dense gradient
  std::vector<Dim> dims_;  // dimensions over runs, outermost first; empty for a dense gradient
};

template <class Move>
void Layout::for_each_run(uint64_t first, uint64_t count, Move&& move) const {
  if (dims_.empty()) {
    if (count > 0) move(first, first, count);
    return;
  }
  std::array<uint64_t, kMaxParamDims> at{};
  uint64_t offset = 0;
  uint64_t rest = first / run_;
  for (size_t d = dims_.size(); d-- > 0;) {
    at[d] = rest % dims_[d].extent;
    rest /= dims_[d].extent;
    offset += at[d] * dims_[d].stride;
  }
  uint64_t skip = first % run_;
  for (uint64_t done = 0; done < count;) {
    const uint64_t n = std::min(run_ - skip, count - done);
    move(offset + skip, first + done, n);
    done += n;
    skip = 0;
    for (size_t d = dims_.size(); d-- > 0;) {
      offset += dims_[d].stride;
      if (++at[d] < dims_[d].extent) break;
      offset -= dims_[d].extent * dims_[d].stride;
      at[d] = 0;
    }
  }
}

}  // namespace weft
