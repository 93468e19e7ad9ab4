// The page size of this machine: 4 KiB on x86-64, up to 64 KiB on ARM64.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace weft {

// Returns the page size. Threads: any thread.
inline uint64_t page_size() {
  return static_cast<uint64_t>(::getpagesize());
}

}  // namespace weft
