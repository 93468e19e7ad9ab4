// Layouts of gradients that the program passed in another layout than their parameter's. They are used to
// copy the gradients into the bucket and back. Part of a reducer's state.
//
// Threads: the thread that claimed the parameter calls set() before it publishes the gradient as ready; while
// the reducer still learns how often parameters are used, it does so under Uses::mutex. Step calls of() only
// after the gradient is published.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reducer/bucket/layout.h"

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
