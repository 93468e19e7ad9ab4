// Parameters that are used several times in a step (shared weights, checkpointing). Keeps how often each must
// become ready, as the program declares or the first step shows. Readiness counts the uses. Part of a
// reducer's state.
//
// Threads: needed by any thread; learn by the program's thread, in finish, with the mutex held. While uses
// are learned, a thread that notes a use holds the mutex as well. Of two concurrent uses of a parameter, one
// then comes last as a whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "reducer/step/readiness.h"

namespace weft {

class Uses {
 public:
  // needed: for each parameter, at least 1. learning: the first step determines the numbers instead.
  Uses(std::vector<uint32_t> needed, bool learning)
      : needed_(std::move(needed)), learns_(learning), learning_(learning) {}

  bool learns() const { return learns_; }  // the reducer learns uses: the pattern may not change afterwards
  // True during the learning step: every use counts as an earlier one.
  bool learning() const { return learning_.load(std::memory_order_acquire); }
  // Returns the mutex that is held while a use is taken, so that of two concurrent uses one comes last as a
  // whole.
  std::mutex& mutex() { return mutex_; }
  // The parameter whose gradient a thread copies under the mutex, if any.
  void set_copied(uint64_t param) { copied_.store(param, std::memory_order_relaxed); }
  uint64_t copied() const { return copied_.load(std::memory_order_relaxed); }
  uint32_t needed(uint64_t param) const { return needed_[param]; }
  // Returns the number of uses to wait for, as Readiness::use expects it.
  uint32_t awaited(uint64_t param) const { return learning() ? UINT32_MAX : needed_[param]; }

  // Fixes the uses that the step of this stamp has shown; 0: the parameter is absent from every step.
  void learn(const Readiness& readiness, uint32_t stamp) {
    for (size_t i = 0; i < needed_.size(); i++) needed_[i] = readiness.uses(i, stamp);
    learning_.store(false, std::memory_order_release);
  }

  uint64_t memory_bytes() const { return needed_.size() * sizeof(uint32_t); }

 private:
  std::vector<uint32_t> needed_;
  const bool learns_;
  std::atomic<bool> learning_;
  std::mutex mutex_;
  std::atomic<uint64_t> copied_{0};
};

}  // namespace weft
