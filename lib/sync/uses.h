// Parameters that are used several times in a step (shared weights, checkpointing): how often each must
// become ready, as the program says or as the first step shows, and how often it has. Part of a reducer's
// state.
//
// Threads: count by any thread; begin, learn and everything else by the program's thread, between steps or in
// finish.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace weft {

class Uses {
 public:
  enum class Count : uint8_t {
    kEarlier,  // not the last use yet
    kLast,
    kTooMany,
  };

  // needed: of each parameter, at least 1. learning: the first step shows them instead.
  Uses(std::vector<uint32_t> needed, bool learning)
      : needed_(std::move(needed)),
        learns_(learning),
        learning_(learning),
        counts_(std::make_unique<std::atomic<uint64_t>[]>(needed_.size())) {}

  bool learns() const { return learns_; }      // at all: the pattern may not change afterwards
  bool learning() const { return learning_; }  // now: every use is an earlier one
  uint32_t needed(uint64_t param) const { return needed_[param]; }
  uint32_t counted(uint64_t param, uint32_t stamp) const {
    const uint64_t now = counts_[param].load(std::memory_order_acquire);
    return static_cast<uint32_t>(now >> 32) == stamp ? static_cast<uint32_t>(now) : 0;
  }

  // One more use in the step of this stamp.
  Count count(uint64_t param, uint32_t stamp) {
    uint64_t now = counts_[param].load(std::memory_order_relaxed);
    uint64_t next = 0;
    do {
      const bool first = static_cast<uint32_t>(now >> 32) != stamp;
      next = uint64_t{stamp} << 32 | (first ? 1 : static_cast<uint32_t>(now) + 1);
    } while (!counts_[param].compare_exchange_weak(now, next, std::memory_order_acq_rel));
    const auto count = static_cast<uint32_t>(next);
    if (learning_ || count < needed_[param]) return Count::kEarlier;
    return count == needed_[param] ? Count::kLast : Count::kTooMany;
  }
  // What the step of this stamp has shown holds from now on; 0: the parameter is absent from every step.
  void learn(uint32_t stamp) {
    for (size_t i = 0; i < needed_.size(); i++) needed_[i] = counted(i, stamp);
    learning_ = false;
  }

  uint64_t memory_bytes() const { return needed_.size() * (sizeof(uint32_t) + sizeof(uint64_t)); }

 private:
  std::vector<uint32_t> needed_;
  const bool learns_;
  bool learning_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // the step's stamp, and its uses
};

}  // namespace weft
