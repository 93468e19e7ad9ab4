// Which gradients are ready in the current step: the part of a reducer that any thread may touch at any time.
// Lock-free: one exchange for each call of ready, and one decrement for each gradient that travels. The
// step's number is its stamp, so that nothing but the buckets' counts is reset between steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "sync/plan.h"

namespace weft {

// The step as one word, so that ready sees all of it at once.
class StepWord {
 public:
  StepWord() = default;
  explicit StepWord(uint64_t word) : word_(word) {}
  static StepWord make(uint32_t stamp, bool open, bool local, bool noting = false) {
    return StepWord(uint64_t{stamp} << 3 | (noting ? 4u : 0u) | (local ? 2u : 0u) | (open ? 1u : 0u));
  }
  bool open() const { return (word_ & 1) != 0; }
  bool local() const { return (word_ & 2) != 0; }
  bool noting() const { return (word_ & 4) != 0; }                      // the order of readiness
  uint32_t stamp() const { return static_cast<uint32_t>(word_ >> 3); }  // 0 before the first step
  uint64_t word() const { return word_; }

 private:
  uint64_t word_ = 0;
};

// What a call of ready is for its parameter.
enum class Use : uint8_t {
  kEarlier,  // it is used again in this step
  kLast,     // it is complete, and the caller's: of several callers one gets it
  kRefused,  // it was complete before, or absent; or the call was so slow that a later step has come
};

class Readiness {
 public:
  static constexpr uint32_t kMaxUses = (1u << 30) - 1;  // in one step, as far as is counted

  explicit Readiness(const Plan& plan)
      : plan_(plan),
        words_(std::make_unique<std::atomic<uint64_t>[]>(plan.bucket_of.size())),
        pending_(std::make_unique<Pending[]>(plan.buckets.size())) {}

  // ---- one thread at a time: the program's begin and finish
  // Every gradient is awaited again. What happened before is visible to whoever sees the step open.
  // `full`: none is awaited, all are in their buckets already.
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
  // As if the local step had not been closed, for who still copies a gradient.
  void reopen() {
    const StepWord now = step();
    step_.store(StepWord::make(now.stamp(), true, now.local()).word());
  }
  // Parameters that nobody has claimed in this step, ascending; none before the first one.
  std::vector<uint32_t> missing() const {
    std::vector<uint32_t> out;
    const uint32_t stamp = step().stamp();
    for (uint32_t i = 0; stamp != 0 && i < plan_.bucket_of.size(); i++) {
      if (plan_.bucket_of[i] == kNoBucket) continue;
      if (!claimed(i, stamp)) out.push_back(i);
    }
    return out;
  }
  // Of the local step that was closed: somebody is still copying the gradient into its bucket.
  bool copying(uint64_t param) const {
    const uint64_t word = words_[param].load();
    return stamp_of(word) == step().stamp() && (word & (kClaimed | kCopied)) == kClaimed;
  }
  // All gradients are in their buckets.
  bool full() const {
    for (uint32_t b = 0; b < plan_.buckets.size(); b++) {
      if (!full(b)) return false;
    }
    return true;
  }

  // No gradient is being copied in this synchronised step: what was claimed has arrived. What arrived is
  // counted first, so that a claim meanwhile is one too many.
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
  // How often it was used in this step.
  uint32_t uses(uint64_t param, uint32_t stamp) const {
    const uint64_t word = words_[param].load(std::memory_order_acquire);
    return stamp_of(word) == stamp ? uses_of(word) : 0;
  }
  // One more use of so many in a step. It is counted and, the last time, claimed at once.
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
  // However often it was used: it is complete.
  bool claim(uint64_t param, uint32_t stamp) {
    uint64_t last = words_[param].load(std::memory_order_relaxed), next = 0;
    do {
      if (taken(last, stamp)) return false;
      next = (stamp_of(last) == stamp ? last : fresh(stamp)) | kClaimed;
    } while (!words_[param].compare_exchange_weak(last, next));
    return true;
  }
  // It takes no part in the step: false if it was used.
  bool leave_out(uint64_t param, uint32_t stamp) {
    uint64_t last = words_[param].load(std::memory_order_relaxed);
    do {
      if (taken(last, stamp) || (stamp_of(last) == stamp && uses_of(last) > 0)) return false;
    } while (!words_[param].compare_exchange_weak(last, fresh(stamp) | kClaimed | kCopied));
    return true;
  }
  // Around the copy of a claimed gradient in a local step, which nobody counts: false if that step has ended
  // meanwhile. Pairs with close() and copying(): either this sees the step closed, or they see the claim.
  bool enter(uint64_t param, StepWord step) {
    if (step_.load() == step.word()) return true;
    uint64_t word = words_[param].load(std::memory_order_relaxed);
    if (stamp_of(word) == step.stamp()) words_[param].compare_exchange_strong(word, word | kCopied);
    return false;
  }
  // Nobody else writes a claimed word before the step is over, and that waits for this.
  void leave(uint64_t param) {
    const uint64_t word = words_[param].load(std::memory_order_relaxed);
    words_[param].store(word | kCopied, std::memory_order_release);
  }
  // The claimed gradient is in its bucket. True for the bucket's last.
  bool arrive(uint32_t bucket) { return pending_[bucket].count.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // The same, unless it would be the bucket's last: false, and it has yet to arrive.
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
  // A parameter's word: the stamp of the last step that has touched it, how often that has used it, and
  static constexpr uint64_t kClaimed = 1;  // no further use is taken
  static constexpr uint64_t kCopied = 2;   // nobody is copying it; of local steps and absent parameters alone
  static constexpr uint64_t kUse = 4;
  static uint64_t fresh(uint32_t stamp) { return uint64_t{stamp} << 32; }
  static uint32_t stamp_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  static uint32_t uses_of(uint64_t word) { return static_cast<uint32_t>(word) / kUse; }
  // By this step or a later one. Stamps wrap around; 0 is no step's.
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
