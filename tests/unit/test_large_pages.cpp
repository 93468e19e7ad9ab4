// backends/shm on a machine with 64 KiB pages, as ARM64 may have. Memory is populated in whole pages, so that
// a page that the machine cannot provide is an error and no signal.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "shm/segment.h"
#include "support/catch.h"

using namespace weft;
using namespace weft::shm;

namespace {

constexpr uint64_t kLarge = 64 << 10;
std::atomic<bool> large{false};
std::atomic<bool> full{false};  // the machine has no memory left
std::atomic<int> refused{0};    // the errno of a kernel or sandbox without MADV_POPULATE_WRITE
std::atomic<int> populated{0};

}  // namespace

extern "C" int getpagesize() noexcept {
  return large ? static_cast<int>(kLarge) : static_cast<int>(::sysconf(_SC_PAGESIZE));
}

extern "C" int madvise(void* address, size_t size, int advice) noexcept {
  constexpr int kPopulateWrite = 23;
  if (large && reinterpret_cast<uintptr_t>(address) % kLarge != 0) {
    errno = EINVAL;
    return -1;
  }
  if (advice == kPopulateWrite) {
    if (full || refused != 0) {
      errno = full ? ENOMEM : refused.load();
      return -1;
    }
    populated++;
  }
  return static_cast<int>(::syscall(SYS_madvise, address, size, advice));
}

TEST_CASE("memory that the machine cannot provide is an error for any page size") {
  for (const bool pages_are_large : {false, true}) {
    INFO("large " << pages_are_large);
    large = pages_are_large;
    full = false;
    const Layout layout(2, 1 << 20);
    CHECK(layout.arena_bytes % static_cast<uint64_t>(getpagesize()) == 0);
    std::shared_ptr<ArenaMemory> arena;
    Fd fd;
    REQUIRE(create_segments(layout, 7, &fd).ok());
    REQUIRE(ArenaMemory::map(fd, layout, 1, 0, &arena).ok());
    for (const uint64_t offset : {uint64_t{0}, kPage, 3 * kPage, kLarge, kLarge + kPage}) {
      INFO("offset " << offset);
      full = false;
      populated = 0;
      CHECK(populate(arena->base() + offset, 100).ok());
      CHECK(populated == 1);
      full = true;
      CHECK(populate(arena->base() + offset, 100).code() == Code::kNoMemory);
    }
    full = false;
  }
  large = false;
}

TEST_CASE("where the kernel refuses to populate memory, its pages are written, and keep their contents") {
  const Layout layout(2, 4 << 20);
  std::shared_ptr<ArenaMemory> arena;
  Fd fd;
  REQUIRE(create_segments(layout, 7, &fd).ok());
  REQUIRE(ArenaMemory::map(fd, layout, 0, 0, &arena).ok());
  for (const int error : {EINVAL, ENOSYS, EPERM}) {
    INFO("errno " << error);
    std::byte* const pages = arena->base() + static_cast<uint64_t>(error) * kLarge;
    pages[5] = std::byte{7};
    refused = error;
    CHECK(populate(pages, 2 * kLarge).ok());
    refused = 0;
    unsigned char resident = 0;
    CHECK(::mincore(pages + kLarge, 1, &resident) == 0);
    CHECK((resident & 1) == 1);
    CHECK(pages[5] == std::byte{7});
  }
}
