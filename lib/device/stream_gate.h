// Orders operations that the host executes with a stream of the program. An event marks when the buffers may
// be touched. Work enqueued on the stream after the call waits for a word in pinned memory, which is written
// when the operation is over, also when it failed. One per context. Called by the C layer and by completing
// requests. Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/accelerator.h"

namespace weft {

class StreamGate {
 public:
  StreamGate(std::shared_ptr<Accelerator> accelerator, bool holds)
      : accelerator_(std::move(accelerator)), holds_(holds) {}
  // Frees the words. All calls have left; words that a stream has yet to pass are leaked.
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  // Records an event after the work that is on the stream now. The accelerator is loaded; device and stream
  // are checked.
  Status enter(int device, DeviceStream stream, DeviceCall* call);
  // Returns true if streams may be held at all. Otherwise the caller waits on the host instead of calling
  // hold. The accelerator is loaded.
  bool holds_streams() const { return holds_ && !accelerator_->loads_lazily(); }
  // Makes work that is enqueued on the stream from now on wait until the call leaves. At most once per call.
  Status hold(const DeviceCall& call);
  // Ends the call: the operation is over and nothing touches the buffers any more. Never blocks.
  void leave(DeviceCall* call);
  // Returns true while streams wait for calls that have not left.
  bool holding() const { return holding_.load(std::memory_order_acquire) > 0; }

 private:
  struct Ticket {
    int device = 0;
    DeviceEvent ready = nullptr;
    DeviceEvent passed = nullptr;  // recorded after the wait: the stream has passed the word
    uint32_t* word = nullptr;
    uint32_t value = 0;
    bool held = false;
  };
  Status take(int device, Ticket** ticket);
  Status make(int device, Ticket** ticket);
  Status new_word(int device, uint32_t** word);
  bool passed(const Ticket& ticket);

  static constexpr uint64_t kSlabBytes = 4096;
  static constexpr uint64_t kWordBytes = 64;  // a cache line

  const std::shared_ptr<Accelerator> accelerator_;
  const bool holds_;
  std::atomic<int> holding_{0};
  // Never held while memory is allocated: an allocation may wait for a stream that waits for Weft.
  std::mutex mutex_;
  std::deque<Ticket> tickets_;                  // guarded by mutex_, as all below; elements never move
  std::map<int, std::deque<Ticket*>> resting_;  // by device: tickets whose calls have left, oldest first
  std::vector<std::byte*> slabs_;
  std::vector<uint32_t*> words_;  // words of the slabs that no ticket uses yet
};

}  // namespace weft
