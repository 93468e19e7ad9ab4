#include "engine/fork_guard.h"

#include <sys/mman.h>

#include <new>

#include "base/page.h"

namespace weft {

ForkGuard::ForkGuard() {
  void* const page = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (madvise(page, page_size(), MADV_WIPEONFORK) != 0) {
    munmap(page, page_size());
    return;
  }
  page_ = new (page) std::atomic<int>(1);
}

ForkGuard::~ForkGuard() {
  if (page_ != nullptr) munmap(page_, page_size());
}

}  // namespace weft
