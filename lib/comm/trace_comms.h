// The communicators of a context, for the metadata of its traces. A communicator adds itself when it is
// created and may be gone when the trace is written. Threads: any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft {

// The difference between this process's clock and that of rank 0.
struct ClockOffset {
  int64_t offset_ns = 0;  // added to this process's clock, it gives rank 0's
  uint64_t error_ns = 0;  // largest possible error of offset_ns
};

struct TraceComm {
  uint64_t id = 0;
  int32_t rank = 0;
  int32_t size = 0;
  std::string backend;
  std::string job;
  std::optional<ClockOffset> clock;  // absent: not measured
};

class TraceComms {
 public:
  // Keeps the newest kMost.
  void add(TraceComm comm) {
    const std::lock_guard lock(mutex_);
    if (comms_.size() == kMost) comms_.erase(comms_.begin());
    comms_.push_back(std::move(comm));
  }
  void set_clock(uint64_t id, const ClockOffset& clock) {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(comms_.begin(), comms_.end(), [&](const TraceComm& comm) { return comm.id == id; });
    if (found != comms_.end()) found->clock = clock;
  }
  std::vector<TraceComm> list() const {
    const std::lock_guard lock(mutex_);
    return comms_;
  }

  static constexpr size_t kMost = 256;

 private:
  mutable std::mutex mutex_;
  std::vector<TraceComm> comms_;  // guarded by mutex_
};

}  // namespace weft
