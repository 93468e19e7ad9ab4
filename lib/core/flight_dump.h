// Writes the flight record of a communicator that has failed, once, on a thread of its own: neither the drive
// lock nor the control channel nor the program's callbacks wait for a disk. Calls that fail wait for it
// before they return, half a second at most, because a program may well end at its first error.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"

namespace weft {

class Comm;

// Threads: any thread.
class FlightDump {
 public:
  FlightDump() : writing_(std::make_shared<Writing>()) {}
  ~FlightDump();

  // A dump will be started: from now on it is pending. Before the failure can be seen.
  void announce(Clock& clock);
  // Once, after announce; takes no lock that the caller may hold. The thread keeps comm until it has the
  // record.
  void start(std::shared_ptr<Comm> comm) noexcept;
  // Whether failed operations should wait: never longer than kPatienceMs.
  bool pending(Clock& clock) const;
  // Wait for the end, 2 s at most, and end the thread; a file system that takes longer is left to itself.
  void close(Clock& clock);

 private:
  static constexpr int64_t kPatienceMs = 500;
  static constexpr int64_t kCloseMs = 2000;

  // Outlives this where a file system hangs.
  struct Writing {
    std::atomic<bool> done{false};
    std::atomic<std::thread::id> writer{};
  };

  const std::shared_ptr<Writing> writing_;
  std::atomic<bool> announced_{false};
  std::atomic<uint64_t> patience_ns_{0};
  std::mutex mutex_;
  std::thread thread_;  // guarded by mutex_
};

}  // namespace weft
