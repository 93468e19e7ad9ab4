// Tells an object inherited by fork from one that was made in this process, in one load: the kernel wipes the
// guard's page in children (MADV_WIPEONFORK). Where it refuses, the process's number is compared, which is a
// system call; a child whose namespace gives it the same number is then not told apart.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>

namespace weft {

// Threads: any thread.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool forked() const {
    return page_ != nullptr ? page_->load(std::memory_order_relaxed) == 0 : ::getpid() != pid_;
  }

 private:
  const pid_t pid_ = ::getpid();
  std::atomic<int>* page_ = nullptr;  // null where the kernel refuses
};

}  // namespace weft
