// The interface that moves messages between ranks: loopback, ucx, mpi, a user's own. lib/coll builds
// collectives on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/collectives.h"

namespace weft {

class Offload;

// Identifies one message of one operation between two ranks. A send matches the receive with the same tag
// from that rank.
struct MessageTag {
  uint64_t slot = 0;  // of the lane
  uint32_t lane = 0;
  uint32_t step = 0;  // within the operation
  bool operator==(const MessageTag&) const = default;
};

// One posted send or receive. Owned by the caller, at a fixed address until done or cancelled.
struct Message {
  bool done = false;
  bool on_its_way = false;      // sends: the network has all of it, and only the buffer is still in use
  Status status;                // valid when done
  Descriptor peer_descriptor;   // receives, when done: what the sender is executing
  uint64_t received_bytes = 0;  // receives, when done: at most the capacity
  // Sends: the wait statistics to send along (WaitStats); receives, when done: those received.
  uint64_t waits = 0;
  void* impl = nullptr;  // owned by the transport
};

struct TransportCounters {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

// Threads: called with the progress lock held, except counters() (any thread).
class Transport {
 public:
  virtual ~Transport() = default;
  // Posts a send; never blocks. The transport owns the buffer until message->done is set or cancel(message)
  // has returned. Every send carries its operation's descriptor, for comparison at the receiver. Errors
  // appear in message->status.
  virtual void send(int peer, const MessageTag& tag, const Descriptor& descriptor, const std::byte* data,
                    uint64_t size, Message* message) = 0;
  // Posts a receive. A message longer than capacity completes with kMismatch; nothing is written beyond
  // capacity.
  virtual void receive(int peer, const MessageTag& tag, std::byte* data, uint64_t capacity,
                       Message* message) = 0;
  // Completes messages where possible; returns true if any completed.
  virtual bool progress() = 0;
  // Cancels a message. On return its buffer is not touched any more.
  virtual void cancel(Message* message) = 0;
  // Returns true if a message of this slot from `peer` has arrived without a posted receive, and the sender's
  // descriptor. A waiting operation thereby detects that a peer executes a different operation.
  virtual bool peek(int peer, uint32_t lane, uint64_t slot, Descriptor* descriptor) = 0;
  // Returns true if everything sent has left this process; never blocks. A message may be done earlier: then
  // further calls of progress and settled are needed, also when no operation is running.
  virtual bool settled() { return true; }
  // Returns true if messages that are done reach their receiver even if the sender exits. If false, sent_to
  // and received_from return the amount sent to and received from a rank, in a unit of the transport. A rank
  // then delays its goodbye until the others have received what it sent.
  virtual bool outlives_sender() const { return true; }
  virtual uint64_t sent_to(int /*rank*/) const { return 0; }
  virtual uint64_t received_from(int /*rank*/) const { return 0; }
  // Collectives that the transport's library executes itself; null: none.
  virtual Offload* offload() { return nullptr; }
  virtual TransportCounters counters() const = 0;
  virtual int local_size() const { return 1; }  // ranks sharing this host's memory
  // Returns the networks that its messages use, for the user: "sysv/memory, tcp/eth0". Any thread.
  virtual std::string transports() const { return {}; }
  virtual const char* name() const = 0;
};

}  // namespace weft
