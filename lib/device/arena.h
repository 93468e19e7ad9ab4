// Memory that the peers of a communicator access directly. All ranks use the same offsets: offset o of rank
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
#include "device/allocator.h"

namespace weft {

class Accelerator;

// Threads: any thread.
class Arena {
 public:
  virtual ~Arena() = default;
  // Allocates zeroed, populated memory, aligned to kAlignment. kNoMemory when the arena's limit or the
  // machine's memory is exhausted.
  virtual Status allocate(uint64_t size, std::byte** memory) = 0;
  // Frees a block. kArg for a pointer that allocate did not return.
  virtual Status free(std::byte* memory) = 0;
  virtual uint64_t populated_bytes() const = 0;
  // Stops the reuse of freed memory: a stopped rank may write into blocks that are in use now whenever it
  // resumes. Blocks that are freed after this call are never allocated again.
  virtual void taint() {}

  // Registers a block with an accelerator, so that devices can access it, until unpin. A pinned block stays
  // pinned; a block that lost its registration in change_pages is registered again. accelerator must live
  // until unpin.
  Status pin(Accelerator& accelerator, int device, std::byte* memory, uint64_t size);
  // Unregisters a block. Called before the block is freed. Does nothing for a block that is not pinned. May
  // wait for devices.
  void unpin(std::byte* memory);
  // Runs `change`, which replaces the pages behind the addresses of blocks. A device keeps using the pages
  // that were registered, so pinned blocks are unregistered before and registered again afterwards. Returns
  // the first error. A block that cannot be registered again is no longer pinned. Waits for devices.
  Status change_pages(const std::function<Status()>& change);

  static constexpr uint64_t kAlignment = 4096;

 private:
  struct Pin {
    Accelerator* accelerator = nullptr;
    int device = 0;
    uint64_t size = 0;
    bool registered = true;
  };
  std::shared_mutex pages_mutex_;   // held shared while a block is registered, exclusive while pages change
  std::mutex pins_mutex_;           // never held while an accelerator is called
  std::map<std::byte*, Pin> pins_;  // guarded by pins_mutex_
};

// First-fit allocator of extents in a range of offsets that grows at its end. Manages offsets only, no
// memory. Threads: any thread.
class ExtentAllocator {
 public:
  explicit ExtentAllocator(uint64_t limit) : limit_(limit) {}
  // Returns false when the limit is reached. size is rounded up to Arena::kAlignment.
  bool allocate(uint64_t size, uint64_t* offset);
  // Frees an extent. Returns its size, or 0 if offset is not the start of an allocated extent.
  uint64_t free(uint64_t offset);
  uint64_t high_water() const;
  // Extents freed from here on are not allocated again, until reclaim.
  void keep_freed();
  void reclaim();

 private:
  mutable std::mutex mutex_;
  bool keep_freed_ = false;            // guarded by mutex_, as all below
  std::map<uint64_t, uint64_t> free_;  // offset -> size; adjacent extents are merged
  std::map<uint64_t, uint64_t> used_;
  uint64_t end_ = 0;
  const uint64_t limit_;
};

// Process-private memory, for backends whose ranks are threads or whose peers cannot access memory.
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
