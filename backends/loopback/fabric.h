// What the ranks of one process share: a mailbox for each ordered pair of ranks. Used by LoopbackTransport
// alone; made by the backend (loopback.cpp) or by tests.
//
// A message up to kEagerBytes is copied into the mailbox and its send is complete at once. A longer one
// leaves its address there; the receiver copies it in pieces under the mailbox's mutex, so that a sender that
// takes its message back knows that nobody reads it any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "core/transport.h"

namespace weft::loopback {

inline constexpr uint64_t kEagerBytes = 64 * 1024;

struct Envelope {
  uint64_t id = 0;  // never 0 and never used again in its mailbox
  MessageTag tag;
  Descriptor descriptor;
  uint64_t waits = 0;  // Message::waits
  uint64_t size = 0;
  uint64_t visible_ns = 0;             // with Delays: not to be seen before
  bool matched = false;                // a receive is copying it
  std::vector<std::byte> eager;        // the data, or
  const std::byte* data = nullptr;     // where it is, and
  std::atomic<bool>* taken = nullptr;  // what to set when it has been copied: the last touch
};

// Messages from one rank to another. Threads: any thread; everything but `arrivals` under the mutex.
struct Mailbox {
  std::mutex mutex;
  std::list<Envelope> messages;
  std::list<Envelope> unused;  // kept for their memory
  uint64_t last_id = 0;
  std::atomic<uint64_t> arrivals{0};  // grows with each message
};

// Holds messages back, each for its own time, so that they arrive late and out of order. For the simulation.
class Delays {
 public:
  virtual ~Delays() = default;
  virtual uint64_t now_ns() = 0;
  // When a message that is sent now may be seen.
  virtual uint64_t visible_ns(int from, int to) = 0;
  // When everything that `from` has sent to `to` so far may be seen: a farewell does not overtake messages.
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
