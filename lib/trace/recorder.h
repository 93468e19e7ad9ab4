// Keeps the newest events of a context in memory until they are written as a timeline. Implements
// weft_trace_start, weft_trace_stop and weft_trace_write.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/trace_comms.h"
#include "comm/trace_sink.h"

namespace weft {

// An event with its own copy of the name, because the original may be gone when the event is written.
struct RecordedEvent {
  static constexpr size_t kNameBytes = 64;
  TraceEvent event;  // its name is not used
  std::array<char, kNameBytes> name{};

  void set(const TraceEvent& from);
};

// Threads: any thread. record allocates nothing. It waits only for another writer of the same entry, which
// must be a whole ring behind.
class TraceRecorder final : public TraceSink {
 public:
  static constexpr uint64_t kDefaultCapacity = 65536;
  static constexpr uint64_t kMaxCapacity = uint64_t{1} << 26;

  explicit TraceRecorder(Clock& clock) : clock_(clock) {}

  // Clears the ring and starts recording up to `capacity` events (0: the default); then the oldest are
  // overwritten. kState while recording, kArg above kMaxCapacity, kNoMemory.
  Status start(uint64_t capacity);
  // Stops recording and keeps the events. kState unless recording.
  Status stop();
  void record(const TraceEvent& event) override;
  // Returns the recorded events, oldest first; *lost: number of overwritten events. Works while recording
  // too.
  std::vector<RecordedEvent> events(uint64_t* lost) const;
  // Writes a Chrome trace. comms: those of the context. kSystem names the path; the previous file then stays.
  Status write(const std::string& path, std::vector<TraceComm> comms) const;

 private:
  struct Entry {
    std::atomic<bool> busy{false};
    uint64_t position = UINT64_MAX;  // in the order of recording
    RecordedEvent event;
  };
  void lock(Entry& entry) const;

  Clock& clock_;
  mutable std::mutex mutex_;  // held by start, stop and events
  // entries_ does not change while this is set or a writer is inside.
  std::atomic<bool> recording_{false};
  mutable std::atomic<uint32_t> inside_{0};  // number of running record calls
  std::unique_ptr<Entry[]> entries_;
  uint64_t capacity_ = 0;
  std::atomic<uint64_t> next_{0};
};

}  // namespace weft
