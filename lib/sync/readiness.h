// Which gradients are ready in the current step: the part of a reducer that any thread may touch at any time.
// Lock-free: one exchange and one decrement for each gradient. The step's number is its stamp, so that
// nothing but the buckets' counts is reset between steps.
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

class Readiness {
 public:
  explicit Readiness(const Plan& plan)
      : plan_(plan),
        stamps_(std::make_unique<std::atomic<uint32_t>[]>(plan.bucket_of.size())),
        pending_(std::make_unique<Pending[]>(plan.buckets.size())) {}

  // ---- one thread at a time: the program's begin and finish
  // Every gradient is awaited again. What happened before is visible to whoever sees the step open.
  // `full`: none is awaited, all are in their buckets already.
  void open(uint32_t stamp, bool local, bool full = false, bool noting = false) {
    for (size_t i = 0; full && i < plan_.bucket_of.size(); i++)
      stamps_[i].store(stamp, std::memory_order_relaxed);
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
  // Parameters that nobody has claimed in this step, ascending.
  std::vector<uint32_t> missing() const {
    std::vector<uint32_t> out;
    const uint32_t stamp = step().stamp();
    for (uint32_t i = 0; i < plan_.bucket_of.size(); i++) {
      if (plan_.bucket_of[i] == kNoBucket) continue;
      if (stamps_[i].load(std::memory_order_acquire) != stamp) out.push_back(i);
    }
    return out;
  }

  bool claimed(uint64_t param, uint32_t stamp) const {
    return stamps_[param].load(std::memory_order_acquire) == stamp;
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
  // False if the parameter was claimed in this step before: of several callers one gets it. Also for a call
  // that was so slow that the next step has claimed it.
  bool claim(uint64_t param, uint32_t stamp) {
    uint32_t last = stamps_[param].load(std::memory_order_relaxed);
    do {
      if (static_cast<int32_t>(last - stamp) >= 0 && last != 0) return false;
    } while (!stamps_[param].compare_exchange_weak(last, stamp, std::memory_order_acq_rel));
    return true;
  }
  // Around the copy of a gradient in a local step, which nobody counts: false if that step has ended
  // meanwhile. Pairs with close() and quiet(): either this sees the step closed, or they see the copy.
  bool enter(StepWord step) {
    copying_.fetch_add(1);
    if (step_.load() == step.word()) return true;
    leave();
    return false;
  }
  void leave() { copying_.fetch_sub(1); }
  bool quiet() const { return copying_.load() == 0; }
  // The claimed gradient is in its bucket. True for the bucket's last.
  bool arrive(uint32_t bucket) { return pending_[bucket].count.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  bool full(uint32_t bucket) const { return pending_[bucket].count.load(std::memory_order_acquire) == 0; }

  uint64_t memory_bytes() const {
    return plan_.bucket_of.size() * sizeof(uint32_t) + plan_.buckets.size() * sizeof(Pending);
  }

 private:
  struct alignas(64) Pending {
    std::atomic<uint32_t> count{0};
  };
  const Plan& plan_;
  std::atomic<uint64_t> step_{0};
  std::atomic<uint32_t> copying_{0};                 // calls of ready that copy in a local step
  std::unique_ptr<std::atomic<uint32_t>[]> stamps_;  // per parameter: the step that claimed it last
  std::unique_ptr<Pending[]> pending_;               // per bucket: gradients that have not arrived
};

}  // namespace weft
