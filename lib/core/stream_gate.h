// The order between a stream of the program's and an operation that the host carries out: an event says when
// the buffers may be touched, and what is put on the stream after the call waits for a word of pinned memory
// that is written when the operation is over, also when it failed. One a context. Called by the C layer and
// by requests that complete. Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/accelerator.h"

namespace weft {

class StreamGate {
 public:
  StreamGate(std::shared_ptr<Accelerator> accelerator, bool holds)
      : accelerator_(std::move(accelerator)), holds_(holds) {}
  // All calls have left. Words that a stream has yet to pass stay behind.
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  // Note what is on the stream now. The accelerator is loaded, device and stream are checked.
  Status enter(int device, DeviceStream stream, DeviceCall* call);
  // Whether streams may be held at all. Otherwise whoever would call hold waits on the host instead
  // (WEFT_CONTEXT_HOST_WAITS).
  bool holds_streams() const { return holds_; }
  // What is put on the stream from now on waits until the call leaves. At most once.
  Status hold(const DeviceCall& call);
  // The operation is over: nothing touches the buffers any more. Never blocks.
  void leave(DeviceCall* call);
  // Streams wait for calls that have not left.
  bool holding() const { return holding_.load(std::memory_order_acquire) > 0; }

 private:
  struct Ticket {
    int device = 0;
    DeviceEvent ready = nullptr;
    DeviceEvent passed = nullptr;  // the stream has gone on after it waited for the word
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
  std::mutex mutex_;  // never held while memory is allocated: that may wait for a stream that waits for us
  std::deque<Ticket> tickets_;                  // guarded by mutex_, as all below; never moves
  std::map<int, std::deque<Ticket*>> resting_;  // by device: those whose calls have left, oldest first
  std::vector<std::byte*> slabs_;
  std::vector<uint32_t*> words_;  // of the slabs, that no ticket has yet
};

}  // namespace weft
