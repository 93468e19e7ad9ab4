// Memory that the peers of a comm reach directly. Offsets are the same thing seen by all: offset o of rank
// r's arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "base/status.h"
#include "core/allocator.h"

namespace weft {

class Accelerator;

// Threads: any thread.
class Arena {
 public:
  virtual ~Arena() = default;
  // Zeroed, populated, aligned to kAlignment. kNoMemory when the limit or the machine's memory is reached.
  virtual Status allocate(uint64_t size, std::byte** memory) = 0;
  // kArg for a pointer that allocate did not return.
  virtual Status free(std::byte* memory) = 0;
  virtual uint64_t populated_bytes() const = 0;
  // A rank that was stopped may write into blocks that are in use now, whenever it wakes: what is freed from
  // here on is never handed out again.
  virtual void taint() {}

  // Registers a block with an accelerator, so that devices reach it, until unpin. A block that is pinned
  // already stays so; one whose registration was lost (change_pages) is registered again. accelerator lives
  // until unpin.
  Status pin(Accelerator& accelerator, int device, std::byte* memory, uint64_t size);
  // Before the block is freed. Does nothing for a block that is not pinned. May wait for devices.
  void unpin(std::byte* memory);
  // Runs `change`, which puts other pages behind the addresses of blocks. A device keeps to the pages that it
  // was given: pinned blocks are unregistered before and registered again afterwards. Returns the first
  // error; a block that cannot be registered again is not pinned any more. Waits for devices.
  Status change_pages(const std::function<Status()>& change);

  static constexpr uint64_t kAlignment = 4096;

 private:
  struct Pin {
    Accelerator* accelerator = nullptr;
    int device = 0;
    uint64_t size = 0;
    bool registered = true;
  };
  std::shared_mutex pages_mutex_;   // shared while a block is registered, exclusive while pages change
  std::mutex pins_mutex_;           // never held while an accelerator is called
  std::map<std::byte*, Pin> pins_;  // guarded by pins_mutex_
};

// First-fit allocation of extents out of a range of offsets that grows at its end. Knows no memory, only
// offsets. Threads: any thread.
class ExtentAllocator {
 public:
  explicit ExtentAllocator(uint64_t limit) : limit_(limit) {}
  // Returns false when the limit is reached. size is rounded up to Arena::kAlignment.
  bool allocate(uint64_t size, uint64_t* offset);
  // Size of the freed extent, 0 if offset is not the start of an allocated one.
  uint64_t free(uint64_t offset);
  uint64_t high_water() const;
  // What is freed from here on is not allocated again, until reclaim.
  void keep_freed();
  void reclaim();

 private:
  mutable std::mutex mutex_;
  bool keep_freed_ = false;            // guarded by mutex_, as all below
  std::map<uint64_t, uint64_t> free_;  // offset -> size, never adjacent
  std::map<uint64_t, uint64_t> used_;
  uint64_t end_ = 0;
  const uint64_t limit_;
};

// Memory of this process alone, for backends whose ranks are threads or whose peers cannot reach memory.
class HeapArena final : public Arena {
 public:
  explicit HeapArena(const HostAllocator& allocator = {}) : allocator_(allocator) {}
  ~HeapArena() override;
  HeapArena(const HeapArena&) = delete;
  HeapArena& operator=(const HeapArena&) = delete;
  Status allocate(uint64_t size, std::byte** memory) override;
  Status free(std::byte* memory) override;
  uint64_t populated_bytes() const override;

 private:
  const HostAllocator allocator_;
  mutable std::mutex mutex_;
  std::map<std::byte*, uint64_t> blocks_;  // guarded by mutex_
  uint64_t bytes_ = 0;                     // guarded by mutex_
};

}  // namespace weft
