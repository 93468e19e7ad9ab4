// Streams of the program that wait for results of a step. Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "device/stream_gate.h"

namespace weft {

class HeldStreams {
 public:
  static constexpr uint32_t kWholeStep = UINT32_MAX;

  explicit HeldStreams(StreamGate& gate) : gate_(gate) {}
  HeldStreams(const HeldStreams&) = delete;
  HeldStreams& operator=(const HeldStreams&) = delete;

  // Registers a stream that waits for the result of a bucket, or for the whole step. The caller then checks
  // whether that is over already.
  void add(const DeviceCall& call, uint32_t bucket);
  // True if the calling thread has registered the stream for this bucket or for the whole step.
  bool has(int device, DeviceStream stream, uint32_t bucket);
  // Lets the streams that wait for this bucket continue; kWholeStep: all streams that wait.
  void release(uint32_t bucket);
  bool any() const { return any_.load(std::memory_order_acquire); }
  uint64_t memory_bytes() const { return streams_.capacity() * sizeof(Held); }

 private:
  struct Held {
    DeviceCall call;
    uint32_t bucket = kWholeStep;
    std::thread::id thread;  // the thread that put it on the stream: threads may use the same stream handle
  };
  StreamGate& gate_;
  std::mutex mutex_;
  std::vector<Held> streams_;     // guarded by mutex_
  std::atomic<bool> any_{false};  // streams_ is not empty
};

}  // namespace weft
