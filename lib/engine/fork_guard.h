// Tells whether an object was inherited through fork or created in this process, with a single load: the
// kernel wipes the guard's page in child processes (MADV_WIPEONFORK). If the kernel refuses, the guard
// compares process ids, which is a system call. It then misses a child that has the same id in its own pid
// namespace.
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
  std::atomic<int>* page_ = nullptr;  // null if the kernel refuses
};

}  // namespace weft
