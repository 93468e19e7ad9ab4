// Writes the flight record of a failed communicator, once, on its own thread. So neither the progress lock
// nor the control channel nor the program's callbacks wait for a disk. Failing calls wait for the write
// before they return, at most half a second, because a program often exits at its first error.
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

  // Marks a dump as pending. Called before other threads can see the failure.
  void announce(Clock& clock);
  // Starts the write. Called once, after announce; takes no lock that the caller may hold. The thread keeps
  // comm alive until it has the record.
  void start(std::shared_ptr<Comm> comm) noexcept;
  // Returns true if failed operations should wait for the write; for at most kPatienceMs.
  bool pending(Clock& clock) const;
  // Waits for the end of the write, at most 2 s, and ends the thread. If the file system takes longer, the
  // thread is detached.
  void close(Clock& clock);

 private:
  static constexpr int64_t kPatienceMs = 500;
  static constexpr int64_t kCloseMs = 2000;

  // Outlives this object if the file system hangs.
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
