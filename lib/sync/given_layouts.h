// Layouts of gradients that are not laid out as their parameters, for the copies into the bucket and back.
// Part of a reducer's state.
//
// Threads: the thread that claimed the parameter calls set() before the gradient is counted (while uses are
// learned, under Uses::mutex). Step calls of() once the parameter has arrived.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sync/layout.h"

namespace weft {

class GivenLayouts {
 public:
  explicit GivenLayouts(size_t params) : layouts_(params) {}

  // null: the gradient has the parameter's layout.
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
