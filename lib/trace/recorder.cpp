#include "trace/recorder.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/text.h"
#include "trace/timeline.h"

namespace weft {

void RecordedEvent::set(const TraceEvent& from) {
  event = from;
  event.name = "";
  const size_t length = strnlen(from.name, 4096);
  const size_t room = kNameBytes - 1;
  if (length <= room) {
    std::memcpy(name.data(), from.name, length);
    name[length] = 0;
    return;
  }
  // Keeps the end of a long name: parameter names differ there.
  std::memcpy(name.data(), "...", 3);
  std::memcpy(name.data() + 3, from.name + length - (room - 3), room - 3);
  name[room] = 0;
}

Status TraceRecorder::start(uint64_t capacity) {
  if (capacity == 0) capacity = kDefaultCapacity;
  if (capacity > kMaxCapacity) {
    return Status::error(Code::kArg, cat("the trace capacity is ", capacity, " events: allowed are 1 to ",
                                         kMaxCapacity, ", or 0 for the default, ", kDefaultCapacity));
  }
  const std::lock_guard lock(mutex_);
  if (recording_.load())
    return Status::error(
        Code::kState,
        "a trace is already running in this context: call weft_trace_stop before weft_trace_start");
  // Threads that saw the last trace running may still be writing into its entries, briefly.
  for (uint32_t round = 0; inside_.load() != 0; round++) clock_.relax(round);
  std::unique_ptr<Entry[]> entries(new (std::nothrow) Entry[capacity]);
  if (!entries) {
    return Status::error(Code::kNoMemory,
                         cat("cannot allocate ", bytes_text(capacity * sizeof(Entry)), " for a trace of ",
                             capacity, " events: start it with a lower capacity"));
  }
  entries_ = std::move(entries);
  capacity_ = capacity;
  next_.store(0);
  recording_.store(true);
  return {};
}

Status TraceRecorder::stop() {
  const std::lock_guard lock(mutex_);
  if (!recording_.exchange(false))
    return Status::error(Code::kState, "no trace is running in this context: call weft_trace_start first");
  return {};
}

void TraceRecorder::lock(Entry& entry) const {
  for (uint32_t round = 0; entry.busy.exchange(true, std::memory_order_acquire); round++) clock_.relax(round);
}

void TraceRecorder::record(const TraceEvent& event) {
  // Incremented before the check of recording_, so that start sees this call, or this call sees that nothing
  // is recorded.
  inside_.fetch_add(1);
  if (recording_.load()) {
    const uint64_t position = next_.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = entries_[position % capacity_];
    lock(entry);
    // A writer one ring ahead may have written this entry already.
    if (entry.position == UINT64_MAX || entry.position < position) {
      entry.position = position;
      entry.event.set(event);
    }
    entry.busy.store(false, std::memory_order_release);
  }
  inside_.fetch_sub(1);
}

std::vector<RecordedEvent> TraceRecorder::events(uint64_t* lost) const {
  const std::lock_guard guard(mutex_);
  std::vector<std::pair<uint64_t, RecordedEvent>> found;
  const uint64_t recorded = next_.load();
  found.reserve(std::min(recorded, capacity_));
  for (uint64_t i = 0; i < std::min(recorded, capacity_); i++) {
    Entry& entry = entries_[i];
    lock(entry);
    if (entry.position != UINT64_MAX) found.emplace_back(entry.position, entry.event);
    entry.busy.store(false, std::memory_order_release);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RecordedEvent> out;
  out.reserve(found.size());
  for (auto& [position, event] : found) out.push_back(event);
  *lost = recorded - std::min(recorded, capacity_);
  return out;
}

Status TraceRecorder::write(const std::string& path, std::vector<TraceComm> comms) const {
  TraceProcess process = describe_process();
  process.comms = std::move(comms);
  const std::vector<RecordedEvent> recorded = events(&process.lost);
  return write_timeline(recorded, process, path);
}

}  // namespace weft
