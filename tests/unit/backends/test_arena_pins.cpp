// Arena::pin and change_pages: devices reach the current pages, whatever was mapped at these addresses
// before.
#include <sys/mman.h>
#include <unistd.h>

#include "device/arena.h"
#include "device_rig.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint64_t kBlock = 2 * Arena::kAlignment;

// Two blocks of shared pages, which can be remapped behind the same addresses.
class Pages final : public Arena {
 public:
  Pages() { map(nullptr); }
  ~Pages() override { ::munmap(base_, 2 * kBlock); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* block(int i) const { return base_ + static_cast<uint64_t>(i) * kBlock; }
  void map(std::byte* at) {
    const int fd = ::memfd_create("weft-test", MFD_CLOEXEC);
    REQUIRE(::ftruncate(fd, 2 * kBlock) == 0);
    void* const mapped =
        ::mmap(at, 2 * kBlock, PROT_READ | PROT_WRITE, MAP_SHARED | (at == nullptr ? 0 : MAP_FIXED), fd, 0);
    REQUIRE(mapped != MAP_FAILED);
    ::close(fd);
    base_ = static_cast<std::byte*>(mapped);
  }
  Status change() {
    return change_pages([&] {
      map(base_);
      return Status();
    });
  }
  Status allocate(uint64_t, std::byte**) override { return {}; }
  Status free(std::byte*) override { return {}; }
  uint64_t populated_bytes() const override { return 2 * kBlock; }

 private:
  std::byte* base_ = nullptr;
};

// Writes `written` to the block's first byte on the host, and returns what the device reads there.
std::byte seen(Device& device, const Pages& pages, int block, std::byte written) {
  Memory memory(1, 0);
  pages.block(block)[0] = written;
  const Status copied = device.runtime().copy(0, device.stream(), memory.get(), pages.block(block), 1);
  INFO(copied.text());
  CHECK(copied.ok());
  device.synchronize();
  return memory.read()[0];
}

}  // namespace

TEST_CASE("a device reads the new pages of a block that is pinned while pages change") {
  Device device;
  Pages pages;
  REQUIRE(pages.pin(device.runtime(), 0, pages.block(0), kBlock).ok());
  REQUIRE(pages.pin(device.runtime(), 0, pages.block(1), kBlock).ok());
  for (int i = 1; i <= 3; i++) {
    for (const int block : {0, 1})
      CHECK(seen(device, pages, block, static_cast<std::byte>(10 * i + block)) ==
            static_cast<std::byte>(10 * i + block));
    REQUIRE(pages.change().ok());
  }
  pages.unpin(pages.block(0));
  pages.unpin(pages.block(0));  // a second call does nothing
  REQUIRE(pages.change().ok());
  CHECK(seen(device, pages, 1, std::byte{77}) == std::byte{77});
  pages.unpin(pages.block(1));
}

#ifndef WEFT_TEST_REAL_CUDA
TEST_CASE("a block that cannot be registered again is an error and not pinned, and can be pinned later") {
  Device device;
  Pages pages;
  for (const int block : {0, 1}) REQUIRE(pages.pin(device.runtime(), 0, pages.block(block), kBlock).ok());
  fake_cuda_fail("cudaHostRegister", cudaErrorMemoryAllocation);
  CHECK(pages.change().code() == Code::kNoMemory);
  // The other block was registered again.
  CHECK(seen(device, pages, 1, std::byte{5}) == std::byte{5});
  CHECK(std::string(fake_cuda_live()).find("registered memory of 8192 bytes\n") == 0);
  REQUIRE(pages.change().ok());
  for (const int block : {0, 1}) {
    REQUIRE(pages.pin(device.runtime(), 0, pages.block(block), kBlock).ok());
    CHECK(seen(device, pages, block, std::byte{6}) == std::byte{6});
  }
  for (const int block : {0, 1}) pages.unpin(pages.block(block));
}
#endif
