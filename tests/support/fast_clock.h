// The machine's clock, sped up by a factor. Factor 0: the time stands still.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace weft::test {

class FastClock final : public Clock {
 public:
  explicit FastClock(uint64_t faster) : faster_(faster) {}
  uint64_t now_ns() override { return faster_ == 0 ? begin_ns_ : clock_.now_ns() * faster_; }
  void relax(uint32_t round) override { clock_.relax(round); }
  void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) override {
    clock_.sleep(word, expected, until_ns);
  }
  void wake_all(const std::atomic<uint32_t>& word) override { clock_.wake_all(word); }

 private:
  SystemClock clock_;
  const uint64_t faster_;
  const uint64_t begin_ns_ = clock_.now_ns();
};

}  // namespace weft::test
