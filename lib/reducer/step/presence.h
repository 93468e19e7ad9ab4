// Tracks which parameters contribute to a step: those that earlier local steps accumulated, those absent on
// this rank, and those absent on every rank.
//
// Threads: the thread that claimed a parameter in Readiness writes its absent and accumulated marks, which
// are read once it has arrived. The map belongs to Step, under the engine's progress lock, and after the step
// to the program's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "reducer/step/stamps.h"

namespace weft {

class Presence {
 public:
  // mapped: allocates the map that the ranks exchange.
  Presence(size_t params, bool mapped)
      : params_(params),
        windows_(params),
        absent_(std::make_unique<std::atomic<uint32_t>[]>(params)),
        here_(mapped ? words(params) : 0),
        anywhere_(here_.size()) {}

  // True if local steps of this window have accumulated a gradient of the parameter. A window consists of a
  // synchronised step and the local steps that it sums up.
  bool accumulated(uint64_t param) const { return windows_[param] == window_; }
  void note_accumulated(uint64_t param) { windows_[param] = window_; }
  // Continues with the window after this one, in tests (FailCounter::kStamps).
  void skip_to(uint32_t window) {
    window_ = window;
    next_window();
  }
  void next_window() {
    window_ = stamp_after(window_);
    local_steps_ = 0;
    if (!begins_half(window_)) return;
    for (uint32_t& window : windows_) window = kept_mark(window, window_);
  }
  uint64_t local_steps() const { return local_steps_; }  // in this window, so far
  void note_local_step() { local_steps_++; }

  // stamp: the step's, as in StepWord. A parameter whose accumulated gradient is communicated is not absent.
  void note_absent(uint64_t param, uint32_t stamp) { absent_[param].store(stamp, std::memory_order_relaxed); }
  bool absent(uint64_t param, uint32_t stamp) const {
    return absent_[param].load(std::memory_order_relaxed) == stamp;
  }
  // Copies the marks to another stamp, under which the step is tried again.
  void carry(uint32_t stamp, uint32_t next) {
    for (size_t i = 0; i < params_; i++) {
      if (absent(i, stamp)) note_absent(i, next);
    }
  }

  // Forgets the marks of the half that begins with `stamp` (reducer/step/stamps.h).
  void forget(uint32_t stamp) {
    for (size_t i = 0; i < params_; i++)
      absent_[i].store(kept_mark(absent_[i].load(std::memory_order_relaxed), stamp),
                       std::memory_order_relaxed);
  }

  // The map has one bit for each parameter that is present: a rank sends here() and receives anywhere().
  static size_t words(size_t params) { return (params + 63) / 64; }
  std::vector<uint64_t>& here() { return here_; }
  std::vector<uint64_t>& anywhere() { return anywhere_; }
  void map(uint32_t stamp) {
    std::fill(here_.begin(), here_.end(), 0);
    for (size_t i = 0; i < params_; i++) here_[i / 64] |= uint64_t{!absent(i, stamp)} << (i % 64);
  }
  bool present_anywhere(uint64_t param) const { return (anywhere_[param / 64] >> (param % 64) & 1) != 0; }

  uint64_t memory_bytes() const {
    return params_ * (sizeof(uint32_t) * 2) + (here_.capacity() + anywhere_.capacity()) * sizeof(uint64_t);
  }

 private:
  const size_t params_;
  uint32_t window_ = 1;            // changed by begin and finish only
  uint64_t local_steps_ = 0;       // likewise
  std::vector<uint32_t> windows_;  // per parameter: the last window in which a gradient was accumulated
  std::unique_ptr<std::atomic<uint32_t>[]> absent_;  // per parameter: the last step from which it was absent
  std::vector<uint64_t> here_;
  std::vector<uint64_t> anywhere_;
};

}  // namespace weft
