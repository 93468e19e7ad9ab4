// The state that the ranks of one process share: a mailbox for each ordered pair of ranks. Only
// LoopbackTransport uses it; the backend (loopback.cpp) or a test creates it.
//
// A message up to kEagerBytes is copied into the mailbox, and its send completes at once. For a longer
// message the mailbox holds its address. The receiver copies it in pieces under the mailbox's mutex, so once
// a sender has cancelled a message, no thread reads it any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/transport.h"

namespace weft::loopback {

inline constexpr uint64_t kEagerBytes = 64 * 1024;

struct Envelope {
  uint64_t id = 0;  // never 0, and unique in its mailbox
  MessageTag tag;
  Descriptor descriptor;
  uint64_t waits = 0;  // Message::waits
  uint64_t size = 0;
  uint64_t visible_ns = 0;             // with Delays: invisible before
  bool matched = false;                // a receive is copying it
  std::vector<std::byte> eager;        // the data, or
  const std::byte* data = nullptr;     // its location, and
  std::atomic<bool>* taken = nullptr;  // the flag to set once it is copied: the last access
};

// Messages from one rank to another. Threads: any thread. All members except `arrivals` need the mutex.
struct Mailbox {
  std::mutex mutex;
  std::list<Envelope> messages;
  std::list<Envelope> unused;  // kept to reuse their memory
  uint64_t last_id = 0;
  std::atomic<uint64_t> arrivals{0};  // grows with each message
};

// Delays each message by its own time, so that messages arrive late and out of order. For the simulation.
class Delays {
 public:
  virtual ~Delays() = default;
  virtual uint64_t now_ns() = 0;
  // Returns the time from which a message sent now is visible.
  virtual uint64_t visible_ns(int from, int to) = 0;
  // Returns the time from which all messages that `from` has sent to `to` are visible. A goodbye does not
  // overtake messages.
  virtual uint64_t settled_ns(int from, int to) = 0;
};

// Threads: any thread.
class Fabric {
 public:
  explicit Fabric(int size, std::shared_ptr<Delays> delays = nullptr);

  int size() const { return size_; }
  Mailbox& box(int from, int to) {
    return *boxes_[static_cast<size_t>(from) * static_cast<size_t>(size_) + static_cast<size_t>(to)];
  }
  Delays* delays() const { return delays_.get(); }

 private:
  const int size_;
  const std::shared_ptr<Delays> delays_;
  std::vector<std::unique_ptr<Mailbox>> boxes_;
};

}  // namespace weft::loopback
