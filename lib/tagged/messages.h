// The tagged messages of a communicator: takes the calls of the C layer, begins them in their order, and ends
// them early when they are cancelled, their deadline passes, or a rank that they need has left.
//
// Each pair of ranks has one lane in each direction for frames, opened at first use.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/comm_part.h"
#include "engine/engine.h"
#include "tagged/incoming.h"
#include "tagged/matching.h"
#include "tagged/operation.h"
#include "tagged/outgoing.h"
#include "tagged/own.h"
#include "tagged/owner.h"

namespace weft {
class Comm;
}

namespace weft::tagged {

// Threads: of, submit, end, cancel, await and close: any thread, without the progress lock. The messages that
// one thread submits keep their order. Everything else needs the progress lock.
class Messages final : public CommPart, private Owner {
 public:
  // Returns the communicator's messages, which live as long as it. kCancelled: it is closed.
  static Status of(Comm& comm, Messages** messages);
  // comm outlives it.
  explicit Messages(Comm& comm);
  ~Messages() override;

  // Queues a send or a receive. request->args: coll, dtype, peer, and src or dst of `count` elements; a
  // receive's peer may be kAnySource and its tag kAnyTag, and a shorter message is taken too. If the
  // communicator is closed, completes the request at once.
  void submit(Request* request, uint64_t tag, Receipt receipt);
  // Ends an operation with `why`. One of which data is being moved completes once that part is complete; if
  // that takes longer than a second the communicator fails.
  void end(const Request& request, const Status& why);
  // Ends an operation with kCancelled if no other rank has matched it. A receive that has a message completes
  // with kCancelled only if its sender gives up that message.
  void cancel(const Request& request);
  // Waits for a submitted request; drives progress meanwhile. An interrupt ends only the request.
  void await(Request& request);

  void close() override;
  bool quiet() override;
  bool flush() override;
  void describe(FlightRecord* record) override;
  Poll poll() override;
  void fail(const Status& why) noexcept override;

 private:
  // Another rank.
  struct Peer {
    // key: of either lane.
    Peer(Messages& messages, const LaneKey& key, std::unique_ptr<CollectiveLane> out,
         std::unique_ptr<CollectiveLane> in);
    const int rank;
    uint64_t users = 0;  // operations with this rank
    bool gone = false;   // it has left, and its lanes were abandoned
    uint32_t idle_after_goodbye = 0;
    Outgoing outgoing;
    Incoming incoming;
  };

  void complete(Operation& operation, Status status) override;
  void post(Operation& receive) override;
  bool listens(int rank) const override;

  template <class Act>
  void with_operation(const Request& request, Act&& act);
  void take_submitted();
  void begin(Operation& operation);
  void begin_send(Operation& send);
  void begin_receive(Operation& receive);
  Status open(int rank);
  Peer& peer(int rank) const { return *peers_[static_cast<size_t>(rank)]; }
  bool is_own(int rank) const;
  void count(Operation& operation);
  void record(const Operation& operation, bool ok);

  bool progress(Peer& peer);
  void end(Operation& operation, const Status& why);
  bool moving(const Operation& operation) const;
  template <class Has>
  bool any_peer(Has&& has) const;
  void check_times();
  bool check_departed();
  void lose(Peer& peer);
  bool all_gone() const;
  Poll fail_all();

  Comm& comm_;
  const uint64_t first_;  // number of the first call, and of the first offer to each rank
  std::mutex queue_mutex_;
  std::list<Operation> submitted_;  // guarded by queue_mutex_
  bool closed_ = false;             // guarded by queue_mutex_
  // Fields from here on are guarded by the progress lock.
  std::list<Operation> operations_;  // all that were begun and are not complete
  Matching matching_;
  OwnMessages own_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null until opened, and for this rank
  std::vector<Peer*> open_;
  uint64_t any_source_ = 0;  // receives from any rank that are not complete
  uint64_t next_order_;
  // For the flight record: the last operations that ended; number i is in entry i modulo their number.
  std::array<FlightMessage, 64> ended_;
  uint64_t ended_count_ = 0;
  uint32_t polls_ = 0;
  bool flushes_ = false;  // the communicator is about to close
  bool abandoned_ = false;
};

}  // namespace weft::tagged
