// Progress in a bucket's list of works. Threads: under the engine's progress lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reducer/bucket/bucket_work.h"

namespace weft {

class WorkRun {
 public:
  void start() { *this = {}; }
  // Does the next piece of a list's works. kDone: nothing is left to do, and another list may follow.
  Progress go_on(const std::vector<BucketWork*>& works, StepContext& step, uint32_t bucket) {
    for (; done_ < works.size(); done_++) {
      if (current_ == nullptr) {
        current_ = works[done_];
        current_->begin(step, bucket);
      }
      const Progress progress = current_->piece(step, bucket);
      if (progress == Progress::kOver) break;
      if (progress != Progress::kDone) return progress;
      current_ = nullptr;
    }
    start();
    return Progress::kDone;
  }
  // Returns the work that has begun; null: the list has not.
  BucketWork* current() const { return current_; }

 private:
  size_t done_ = 0;  // works
  BucketWork* current_ = nullptr;
};

}  // namespace weft
