// Parameters that are used several times in a step (shared weights, checkpointing): how often each must
// become ready, as the program says or as the first step shows. How often it has is counted in Readiness.
// Part of a reducer's state.
//
// Threads: needed by any thread; learn by the program's thread, in finish, with the mutex held. While uses
// are learned whoever notes one holds it as well, so that of two threads that use a parameter at once one
// comes last, whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "sync/readiness.h"

namespace weft {

class Uses {
 public:
  // needed: of each parameter, at least 1. learning: the first step shows them instead.
  Uses(std::vector<uint32_t> needed, bool learning)
      : needed_(std::move(needed)), learns_(learning), learning_(learning) {}

  bool learns() const { return learns_; }  // at all: the pattern may not change afterwards
  // Now: every use is an earlier one.
  bool learning() const { return learning_.load(std::memory_order_acquire); }
  // Held while a use is taken: of two at once one comes last, whole.
  std::mutex& mutex() { return mutex_; }
  // Whose gradient is copied under the mutex, if any thread does that.
  void set_copied(uint64_t param) { copied_.store(param, std::memory_order_relaxed); }
  uint64_t copied() const { return copied_.load(std::memory_order_relaxed); }
  uint32_t needed(uint64_t param) const { return needed_[param]; }
  // As Readiness::use wants it.
  uint32_t awaited(uint64_t param) const { return learning() ? UINT32_MAX : needed_[param]; }

  // What the step of this stamp has shown holds from now on; 0: the parameter is absent from every step.
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
