// Tracks which gradients are ready in the current step. Any thread may call it at any time. It is lock-free:
// each call of ready costs one exchange, and each gradient that is communicated one decrement. The step's
// number is its stamp, so only the buckets' counts are reset between steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "reducer/plan/plan.h"

namespace weft {

// The step's state in one word, so that ready reads it atomically.
class StepWord {
 public:
  StepWord() = default;
  explicit StepWord(uint64_t word) : word_(word) {}
  static StepWord make(uint32_t stamp, bool open, bool local, bool noting = false) {
    return StepWord(uint64_t{stamp} << 3 | (noting ? 4u : 0u) | (local ? 2u : 0u) | (open ? 1u : 0u));
  }
  bool open() const { return (word_ & 1) != 0; }
  bool local() const { return (word_ & 2) != 0; }
  bool noting() const { return (word_ & 4) != 0; }                      // the order of readiness is recorded
  uint32_t stamp() const { return static_cast<uint32_t>(word_ >> 3); }  // 0 before the first step
  uint64_t word() const { return word_; }

 private:
  uint64_t word_ = 0;
};

// The result of one ready call for its parameter.
enum class Use : uint8_t {
  kEarlier,  // the parameter will be used again in this step
  kLast,     // the gradient is complete and the caller has claimed it; only one of several callers gets this
  kRefused,  // the gradient was complete or absent already, or a later step has begun during the call
};

class Readiness {
 public:
  static constexpr uint32_t kMaxUses = (1u << 30) - 1;  // in one step; the count saturates here

  explicit Readiness(const Plan& plan)
      : plan_(plan),
        words_(std::make_unique<std::atomic<uint64_t>[]>(plan.bucket_of.size())),
        pending_(std::make_unique<Pending[]>(plan.buckets.size())) {}

  // ---- one thread at a time: the program's begin and finish
  // Opens a step: every gradient is awaited. Earlier writes are visible to any thread that sees the step
  // open. `full`: no gradient is awaited, because all are in their buckets already.
  void open(uint32_t stamp, bool local, bool full = false, bool noting = false) {
    for (size_t i = 0; full && i < plan_.bucket_of.size(); i++)
      words_[i].store(fresh(stamp) | kClaimed | kCopied, std::memory_order_relaxed);
    if (!local) {
      for (size_t b = 0; b < plan_.buckets.size(); b++) {
        const size_t awaited = full ? 0 : plan_.buckets[b].params.size();
        pending_[b].count.store(static_cast<uint32_t>(awaited), std::memory_order_relaxed);
      }
    }
    step_.store(StepWord::make(stamp, true, local, noting).word(), std::memory_order_release);
  }
  void close() {
    const StepWord now = step();
    step_.store(StepWord::make(now.stamp(), false, now.local()).word());
  }
  // Reopens a local step for threads that still copy a gradient.
  void reopen() {
    const StepWord now = step();
    step_.store(StepWord::make(now.stamp(), true, now.local()).word());
  }
  // Returns the parameters that no thread has claimed in this step, ascending. Empty before the first step.
  std::vector<uint32_t> missing() const {
    std::vector<uint32_t> out;
    const uint32_t stamp = step().stamp();
    for (uint32_t i = 0; stamp != 0 && i < plan_.bucket_of.size(); i++) {
      if (plan_.bucket_of[i] == kNoBucket) continue;
      if (!claimed(i, stamp)) out.push_back(i);
    }
    return out;
  }
  // True while a thread still copies the gradient into its bucket, in a local step that was closed.
  bool copying(uint64_t param) const {
    const uint64_t word = words_[param].load();
    return stamp_of(word) == step().stamp() && (word & (kClaimed | kCopied)) == kClaimed;
  }
  // True when all gradients are in their buckets.
  bool full() const {
    for (uint32_t b = 0; b < plan_.buckets.size(); b++) {
      if (!full(b)) return false;
    }
    return true;
  }

  // True when no thread is copying a gradient in this synchronised step: every claimed gradient has arrived.
  // Arrivals are counted first, so a claim made meanwhile makes the counts differ.
  bool settled() const {
    size_t awaited = 0;
    for (size_t b = 0; b < plan_.buckets.size(); b++)
      awaited += pending_[b].count.load(std::memory_order_acquire);
    return awaited == missing().size();
  }

  // ---- any thread
  StepWord step() const { return StepWord(step_.load(std::memory_order_acquire)); }
  bool claimed(uint64_t param, uint32_t stamp) const {
    const uint64_t word = words_[param].load(std::memory_order_acquire);
    return stamp_of(word) == stamp && (word & kClaimed) != 0;
  }
  // Returns how often the parameter was used in this step.
  uint32_t uses(uint64_t param, uint32_t stamp) const {
    const uint64_t word = words_[param].load(std::memory_order_acquire);
    return stamp_of(word) == stamp ? uses_of(word) : 0;
  }
  // Counts a use of the parameter. The use with which their number reaches `needed` also claims the
  // parameter.
  Use use(uint64_t param, uint32_t stamp, uint32_t needed = 1) {
    uint64_t last = words_[param].load(std::memory_order_relaxed), next = 0;
    do {
      if (needed == 0 || taken(last, stamp)) return Use::kRefused;
      next = stamp_of(last) == stamp ? last : fresh(stamp);
      if (uses_of(next) < kMaxUses) next += kUse;
      if (uses_of(next) >= needed) next |= kClaimed;
    } while (!words_[param].compare_exchange_weak(last, next));
    return (next & kClaimed) != 0 ? Use::kLast : Use::kEarlier;
  }
  // Claims a parameter as complete, however often it was used. False if it was claimed already.
  bool claim(uint64_t param, uint32_t stamp) {
    uint64_t last = words_[param].load(std::memory_order_relaxed), next = 0;
    do {
      if (taken(last, stamp)) return false;
      next = (stamp_of(last) == stamp ? last : fresh(stamp)) | kClaimed;
    } while (!words_[param].compare_exchange_weak(last, next));
    return true;
  }
  // Excludes a parameter from the step. False if it was used or claimed.
  bool leave_out(uint64_t param, uint32_t stamp) {
    uint64_t last = words_[param].load(std::memory_order_relaxed);
    do {
      if (taken(last, stamp) || (stamp_of(last) == stamp && uses_of(last) > 0)) return false;
    } while (!words_[param].compare_exchange_weak(last, fresh(stamp) | kClaimed | kCopied));
    return true;
  }
  // Brackets, with leave(), the copy of a claimed gradient in a local step, where arrivals are not counted.
  // False if that step has ended meanwhile. Pairs with close() and copying(): either enter() sees the step
  // closed, or they see the claim.
  bool enter(uint64_t param, StepWord step) {
    if (step_.load() == step.word()) return true;
    uint64_t word = words_[param].load(std::memory_order_relaxed);
    if (stamp_of(word) == step.stamp()) words_[param].compare_exchange_strong(word, word | kCopied);
    return false;
  }
  // No other thread writes a claimed word before the step is over, and the step's end waits for leave().
  void leave(uint64_t param) {
    const uint64_t word = words_[param].load(std::memory_order_relaxed);
    words_[param].store(word | kCopied, std::memory_order_release);
  }
  // Counts a claimed gradient as being in its bucket. True for the bucket's last.
  bool arrive(uint32_t bucket) { return pending_[bucket].count.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // Like arrive(), but the bucket's last gradient is not counted: false, and the caller must call arrive()
  // for it.
  bool arrive_unless_last(uint32_t bucket) {
    std::atomic<uint32_t>& count = pending_[bucket].count;
    uint32_t left = count.load(std::memory_order_acquire);
    while (left > 1) {
      if (count.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire))
        return true;
    }
    return false;
  }
  bool full(uint32_t bucket) const { return pending_[bucket].count.load(std::memory_order_acquire) == 0; }

  uint64_t memory_bytes() const {
    return plan_.bucket_of.size() * sizeof(uint64_t) + plan_.buckets.size() * sizeof(Pending);
  }

 private:
  struct alignas(64) Pending {
    std::atomic<uint32_t> count{0};
  };
  // A parameter's word: the stamp of the last step that touched it (bits 32 to 63), its number of uses in
  // that step (bits 2 to 31), and these flags:
  static constexpr uint64_t kClaimed = 1;  // no further use is accepted
  static constexpr uint64_t kCopied = 2;   // no thread copies it; local steps and absent parameters only
  static constexpr uint64_t kUse = 4;
  static uint64_t fresh(uint32_t stamp) { return uint64_t{stamp} << 32; }
  static uint32_t stamp_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  static uint32_t uses_of(uint64_t word) { return static_cast<uint32_t>(word) / kUse; }
  // True if this step or a later one has claimed the parameter. Stamps wrap around; no step has stamp 0.
  static bool taken(uint64_t word, uint32_t stamp) {
    const uint32_t last = stamp_of(word);
    if (last == stamp) return (word & kClaimed) != 0;
    return last != 0 && static_cast<int32_t>(last - stamp) > 0;
  }

  const Plan& plan_;
  std::atomic<uint64_t> step_{0};
  std::unique_ptr<std::atomic<uint64_t>[]> words_;  // per parameter
  std::unique_ptr<Pending[]> pending_;              // per bucket: gradients that have not arrived
};

}  // namespace weft
