// Keeps the newest events of a context in memory, until they are written as a timeline. Behind
// weft_trace_start, _stop and _write.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/trace_sink.h"

namespace weft {

// An event with a name of its own: whatever it was named after may be gone when it is written.
struct RecordedEvent {
  static constexpr size_t kNameBytes = 64;
  TraceEvent event;  // its name is not used
  std::array<char, kNameBytes> name{};

  void set(const TraceEvent& from);
};

// Threads: any thread. record allocates nothing and waits for nobody but a writer of the same entry, which
// takes another thread to fall behind by a whole ring.
class TraceRecorder final : public TraceSink {
 public:
  static constexpr uint64_t kDefaultCapacity = 65536;
  static constexpr uint64_t kMaxCapacity = uint64_t{1} << 26;

  explicit TraceRecorder(Clock& clock) : clock_(clock) {}

  // Forget everything and record up to `capacity` events (0: the default); then the oldest are overwritten.
  // kState while recording, kArg beyond the largest capacity, kNoMemory.
  Status start(uint64_t capacity);
  // What was recorded stays. kState unless recording.
  Status stop();
  void record(const TraceEvent& event) override;
  // What was recorded, oldest first; *lost: how many were overwritten. Also while recording.
  std::vector<RecordedEvent> events(uint64_t* lost) const;
  // As a Chrome trace. kSystem naming the path; nothing is left there then but what was before.
  Status write(const std::string& path) const;

 private:
  struct Entry {
    std::atomic<bool> busy{false};
    uint64_t position = UINT64_MAX;  // in the order of recording
    RecordedEvent event;
  };
  void lock(Entry& entry) const;

  Clock& clock_;
  mutable std::mutex mutex_;                 // start, stop, events
  std::atomic<bool> recording_{false};       // entries_ is not changed while it is set or a writer is inside
  mutable std::atomic<uint32_t> inside_{0};  // calls of record
  std::unique_ptr<Entry[]> entries_;
  uint64_t capacity_ = 0;
  std::atomic<uint64_t> next_{0};
};

}  // namespace weft
