// Tells an object inherited by fork from one that was made in this process, in one load: the kernel wipes the
// guard's page in children (MADV_WIPEONFORK).
#pragma once

#include <atomic>

namespace weft {

class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool forked() const { return page_ != nullptr && page_->load(std::memory_order_relaxed) == 0; }

 private:
  std::atomic<int>* page_ = nullptr;  // null where the kernel cannot do it: then nothing is detected
};

}  // namespace weft
