// Scratch memory of an operation, aligned to cache lines. Threads: as its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/dtype.h"
#include "base/round_up.h"
#include "base/status.h"
#include "base/text.h"

namespace weft::coll {

class Scratch {
 public:
  // Makes at least `bytes` available; what it contained is lost if it grows. kNoMemory names the collective.
  Status reserve(uint64_t bytes, Coll coll) {
    if (bytes <= bytes_) return {};
    memory_.reset();
    bytes_ = 0;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kCacheLine, round_up(bytes, kCacheLine))));
    if (memory_ == nullptr) {
      return Status::error(Code::kNoMemory, cat("cannot allocate ", bytes_text(bytes),
                                                " of scratch memory for ", weft::name(coll)));
    }
    bytes_ = bytes;
    return {};
  }
  std::byte* get() const { return memory_.get(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  uint64_t bytes_ = 0;
};

}  // namespace weft::coll
