// Gradients that are not laid out as their parameters: how each of them lies in the program's memory, for the
// copy into its bucket and for the copy of its result. Part of a reducer's state.
//
// Threads: set by who claimed the parameter, before it is counted (while uses are learned: under
// Uses::mutex); of by Step once the parameter has arrived.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sync/layout.h"

namespace weft {

class GivenLayouts {
 public:
  explicit GivenLayouts(size_t params) : layouts_(params) {}

  // null: the gradient is laid out as its parameter.
  void set(uint64_t param, const Layout* layout) {
    std::optional<Layout>& mine = layouts_[param];
    if (layout == nullptr) {
      if (mine) mine.reset();
    } else if (!mine || &*mine != layout) {
      mine = *layout;
    }
  }
  const Layout* of(uint64_t param) const { return layouts_[param] ? &*layouts_[param] : nullptr; }
  uint64_t memory_bytes() const { return layouts_.capacity() * sizeof(layouts_[0]); }

 private:
  std::vector<std::optional<Layout>> layouts_;
};

}  // namespace weft
