// Time and waiting. The library reads the time and waits only through a Clock, so that a seeded simulation
// can replace it (tests/support/simulation.h). Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

class Clock {
 public:
  virtual ~Clock() = default;
  // Returns monotonic nanoseconds.
  virtual uint64_t now_ns() = 0;
  // Called by a polling loop after an idle round; `round` counts idle rounds since the last progress. Spins
  // first, then yields, then sleeps briefly: see docs/dev/threading.md.
  virtual void relax(uint32_t round) = 0;
  // Sleeps until *word differs from `expected`, until_ns has passed, or wake_all(word) is called. May return
  // early.
  virtual void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) = 0;
  virtual void wake_all(const std::atomic<uint32_t>& word) = 0;
  // A library thread begins or ends a computation, for which it may have to share a core with waiting
  // threads.
  virtual void computing(bool /*begins*/) {}
};

// The system clock. A waiting thread yields at once instead of spinning if this host has more ranks than
// cores (crowded), or while a library thread computes.
class SystemClock final : public Clock {
 public:
  uint64_t now_ns() override;
  void relax(uint32_t round) override;
  void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) override;
  void wake_all(const std::atomic<uint32_t>& word) override;
  void computing(bool begins) override { computing_.fetch_add(begins ? 1 : -1, std::memory_order_relaxed); }

  void set_crowded(bool crowded) { crowded_.store(crowded, std::memory_order_relaxed); }

 private:
  bool gives_way() const {
    return crowded_.load(std::memory_order_relaxed) || computing_.load(std::memory_order_relaxed) > 0;
  }

  std::atomic<bool> crowded_{false};
  std::atomic<int> computing_{0};
};

// The point in time at which a wait ends, or never.
class Deadline {
 public:
  static Deadline never() { return Deadline(UINT64_MAX); }
  static Deadline at(uint64_t ns) { return Deadline(ns); }
  // Returns the deadline after a timeout. timeout_ms is as in weft.h: 0 is default_ms, WEFT_TIMEOUT_INFINITE
  // (-1) never, WEFT_TIMEOUT_POLL (-2) now.
  static Deadline after(Clock& clock, int64_t timeout_ms, int64_t default_ms);

  bool expired(Clock& clock) const { return ns_ != UINT64_MAX && clock.now_ns() >= ns_; }
  uint64_t ns() const { return ns_; }
  // Milliseconds left, at least 0; -1 for never, as poll(2) expects.
  int remaining_ms(Clock& clock) const;
  Deadline earlier(Deadline other) const { return ns_ < other.ns_ ? *this : other; }

 private:
  explicit Deadline(uint64_t ns) : ns_(ns) {}
  uint64_t ns_;
};

}  // namespace weft
