// The interface that moves messages between ranks: loopback, ucx, mpi, a user's own. lib/coll makes
// collectives of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/collectives.h"

namespace weft {

class Offload;

// Names one message of one operation between two ranks. A send matches the receive with the same tag from
// that rank.
struct MessageTag {
  uint64_t slot = 0;  // of the lane
  uint32_t lane = 0;
  uint32_t step = 0;  // within the operation
  bool operator==(const MessageTag&) const = default;
};

// One posted send or receive. Owned by the caller, at a fixed address until done or cancelled.
struct Message {
  bool done = false;
  Status status;                // valid when done
  Descriptor peer_descriptor;   // receives, when done: what the sender is executing
  uint64_t received_bytes = 0;  // receives, when done: at most the capacity
  uint64_t waits = 0;           // sends: what goes with them (WaitNotes); receives, when done: what came
  void* impl = nullptr;         // the transport's
};

struct TransportCounters {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

// Threads: called with the engine's drive lock held, except counters() (any thread).
class Transport {
 public:
  virtual ~Transport() = default;
  // Post; never blocks. The buffer is the transport's until message->done or cancel(message) has returned.
  // Every send carries the descriptor of its operation, so that the receiver can compare. Errors appear in
  // message->status.
  virtual void send(int peer, const MessageTag& tag, const Descriptor& descriptor, const std::byte* data,
                    uint64_t size, Message* message) = 0;
  // A longer message than capacity completes with kMismatch and writes nothing beyond capacity.
  virtual void receive(int peer, const MessageTag& tag, std::byte* data, uint64_t capacity,
                       Message* message) = 0;
  // Complete what can be; true if anything did.
  virtual bool progress() = 0;
  // Take a message back. On return its buffer is not touched any more.
  virtual void cancel(Message* message) = 0;
  // Whether a message of this slot from `peer` has arrived that no receive was posted for, and what its
  // sender executes: how an operation that waits learns that a peer is executing something else.
  virtual bool peek(int peer, uint32_t lane, uint64_t slot, Descriptor* descriptor) = 0;
  // Whether everything that was sent has left this process; does what it can for it, never blocks. A message
  // may be done before: what is left then needs further calls, also when no operation is under way.
  virtual bool settled() { return true; }
  // Whether messages that are done reach their receiver although the sender goes. If not, these say how much
  // has gone to a rank and come from it, in a unit of the transport's own, so that a rank can wait with its
  // farewell until the others have what it sent.
  virtual bool outlives_sender() const { return true; }
  virtual uint64_t sent_to(int /*rank*/) const { return 0; }
  virtual uint64_t received_from(int /*rank*/) const { return 0; }
  // Collectives that its library executes by itself; null: none.
  virtual Offload* offload() { return nullptr; }
  virtual TransportCounters counters() const = 0;
  virtual int local_size() const { return 1; }  // ranks sharing this host's memory
  // What its messages travel on, for the user: "sysv/memory, tcp/eth0". Any thread.
  virtual std::string transports() const { return {}; }
  virtual const char* name() const = 0;
};

}  // namespace weft
