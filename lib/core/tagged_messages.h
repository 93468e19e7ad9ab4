// Messages with tags, and receives from any rank (weft_send_tagged, weft_recv_tagged). The C layer submits
// them; the progress engine polls this task.
//
// Each pair of ranks has one lane in each direction for frames (core/tagged_frame.h), opened at first use.
// Receives are matched here: with the first message that fits, in the order in which messages arrived from
// its source. Short messages are sent at once, as many as fit into the receiver's window. Others are offered.
// A rank receives frames only while it has operations that wait. So an idle communicator costs nothing, and
// ranks that send to a busy one wait once its lane is full.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/collectives.h"
#include "core/engine.h"
#include "core/request.h"
#include "core/tagged_frame.h"

namespace weft {

class Comm;

inline constexpr int kAnySource = -1;
inline constexpr uint64_t kAnyTag = UINT64_MAX;

// The message that a receive has taken.
struct TaggedMessage {
  int source = 0;
  uint64_t tag = 0;
  uint64_t count = 0;  // elements of the message's own dtype
};

// Threads: submit, end and quiet: any thread, without the progress lock. The messages that one thread submits
// keep their order. Everything else needs the progress lock.
class TaggedMessages final : public Task {
 public:
  // Called when a receive has taken a message, before its request completes, under the progress lock. write
  // may be null.
  struct Receipt {
    void (*write)(void* target, const TaggedMessage& message);
    void* target;
  };

  // comm outlives it.
  explicit TaggedMessages(Comm& comm);
  ~TaggedMessages() override;

  // Queues a send or a receive. request->args: coll, dtype, peer, and src or dst of `count` elements; a
  // receive's peer may be kAnySource and its tag kAnyTag, and a shorter message is taken too. If the
  // communicator is closed, completes the request at once.
  void submit(Request* request, uint64_t tag, Receipt receipt);
  // Ends an operation with `why`. One that no other rank has matched completes now. Others: if
  // only_unmatched, returns false; otherwise they complete once no part of their data is being moved, and if
  // that takes longer than a second the communicator fails. Also returns false for an operation that is
  // complete.
  bool end(const Request* request, const Status& why, bool only_unmatched);
  // Waits for a submitted request; drives progress meanwhile. An interrupt ends only the request.
  void await(const Request& request);
  // Closes the queue, as Lane::close.
  void close();
  bool quiet();

  Poll poll() override;
  void fail(const Status& why) noexcept override;

 private:
  enum class State {
    kQueued,     // not begun
    kPosted,     // receive: no message has matched
    kWaiting,    // send: in its peer's `waiting`
    kWriting,    // send: its data was copied, and is being handed to the lane
    kOffered,    // send: no receive has accepted it
    kStreaming,  // send or receive: matched, its data is sent in chunks
  };
  struct Operation {
    Request* request = nullptr;
    uint64_t tag = 0;
    Receipt receipt = {nullptr, nullptr};
    State state = State::kQueued;
    uint64_t order = 0;
    uint64_t id = 0;     // send: of its offer
    uint64_t moved = 0;  // send: bytes of the chunks that were sent
    int source = 0;      // receive that is streaming
    Status ended;        // not ok: completes with it once the chunk that is being moved is complete
    Status cancelled;    // receive that is matched; not ok: completes with it if its sender gives up
    uint64_t fails_ns = 0;
    uint64_t since_ns = 0;  // time at which it began, roughly
    bool warned = false;
    bool counted = false;  // in Peer::users or any_source_
    std::list<Operation>::iterator self;

    bool sends() const { return request->args.coll == Coll::kSend; }
    int peer() const { return request->args.peer; }
    uint64_t bytes() const { return request->args.count * dtype_size(request->args.dtype); }
  };
  // A message that no receive has taken.
  struct Unexpected {
    int source = 0;
    TaggedHeader header;
    std::vector<std::byte> data;  // of an eager message
    Operation* send = nullptr;    // this rank's own
  };
  // An offer that a receive has accepted.
  struct Accepted {
    TaggedHeader header;
    uint64_t received = 0;
    Operation* receive = nullptr;  // null: it has ended, and the data is discarded
  };
  struct Peer {
    int rank = 0;
    uint64_t users = 0;  // operations with this peer
    bool gone = false;   // it has left, and its lanes were abandoned
    uint32_t idle_after_goodbye = 0;

    std::unique_ptr<CollectiveLane> out;
    uint64_t out_slot = 0;
    enum class Out { kNothing, kFrame, kData } writing = Out::kNothing;
    TaggedFrame out_frame;
    const std::byte* out_data = nullptr;  // that follows the frame; null: none
    std::vector<std::byte> out_copy;      // of an eager message
    Operation* eager = nullptr;           // of the frame; null if it has ended
    Operation* chunk = nullptr;           // of the frame
    std::deque<TaggedHeader> answers;
    std::deque<Operation*> waiting;
    std::map<uint64_t, Operation*> offered;
    std::deque<Operation*> streaming;
    bool chunk_next = false;  // messages and chunks take turns
    uint64_t last_id = 0;
    uint64_t credit = kEagerWindowBytes;

    std::unique_ptr<CollectiveLane> in;
    uint64_t in_slot = 0;
    enum class In { kNothing, kFrame, kData } reading = In::kNothing;
    TaggedFrame in_frame;
    std::vector<std::byte> in_copy;
    Accepted* filling = nullptr;  // whose chunk is being received
    std::list<Accepted> accepted;
    uint64_t offers = 0;  // that wait in unexpected_ or are accepted
    uint64_t last_offer = 0;
    uint64_t owed = 0;    // credit to return
    uint64_t window = 0;  // that its messages take; includes `owed`

    bool out_busy() const { return writing != Out::kNothing || !answers.empty() || !accepted.empty(); }
  };
  // A message of this rank to itself that is longer than an eager one.
  struct OwnCopy {
    Operation* send;
    Operation* receive;
  };

  void take_submitted();
  void begin(Operation& operation);
  void begin_send(Operation& send);
  void begin_receive(Operation& receive);
  Status open(int rank);
  Peer& peer(int rank) { return *peers_[static_cast<size_t>(rank)]; }
  bool listens(const Peer& peer) const { return peer.users > 0 || any_source_ > 0 || !peer.accepted.empty(); }
  void complete(Operation& operation, Status status);

  bool poll_in(Peer& peer);
  bool handle(Peer& peer, const TaggedHeader& header);
  bool handle_chunk(Peer& peer, const TaggedHeader& header);
  bool handle_answer(Peer& peer, const TaggedHeader& header);
  void handle_withdrawal(Peer& peer, uint64_t id);
  void read(Peer& peer, std::byte* data, uint64_t bytes);
  void arrived(Peer& peer);
  void arrived_chunk(Peer& peer);
  bool poll_out(Peer& peer);
  bool next_frame(Peer& peer);
  bool next_message(Peer& peer);
  void next_chunk(Peer& peer);
  void write(Peer& peer, const std::byte* data, uint64_t bytes);
  void sent(Peer& peer);
  void return_credit(Peer& peer, const TaggedHeader& header);
  bool poll_own();

  Operation* match(int source, uint64_t tag);
  void post(Operation& receive);
  void deliver(Operation& receive, int source, const TaggedHeader& header, const std::byte* data);
  void accept(Operation& receive, Peer& peer, const TaggedHeader& header);
  void take(Operation& receive, std::list<Unexpected>::iterator message);
  void join(Operation& send, Operation& receive);
  void report(const Operation& receive, int source, const TaggedHeader& header);

  void end(Operation& operation, const Status& why);
  bool end_own_copy(Operation& operation, const Status& why);
  bool moving(const Operation& operation);
  void check_times();
  bool check_departed();
  void lose(Peer& peer);
  bool all_gone() const;
  Poll fail_all();

  bool fits(const Operation& receive, const TaggedHeader& header) const;
  Status mismatch(int from, uint64_t tag, Dtype sent, uint64_t sent_bytes, int to, Dtype received,
                  uint64_t capacity) const;
  Status withdrawn(int source, uint64_t tag, uint64_t received, uint64_t bytes) const;
  Status left(int rank, const Operation& operation) const;
  std::string text_of(const Operation& operation) const;

  Comm& comm_;
  std::mutex queue_mutex_;
  std::list<Operation> submitted_;  // guarded by queue_mutex_
  bool closed_ = false;             // guarded by queue_mutex_
  // Fields from here on are guarded by the progress lock.
  std::list<Operation> operations_;  // all that were begun and are not complete
  std::list<Operation*> posted_;     // receives that wait for a message, in the order of their calls
  std::list<Unexpected> unexpected_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null until opened
  std::vector<Peer*> open_;                   // without this rank
  std::list<OwnCopy> own_copies_;
  uint64_t own_window_ = 0;
  uint64_t any_source_ = 0;         // receives from any rank that are not complete
  std::vector<std::byte> discard_;  // chunks of receives that have ended
  uint64_t next_order_ = 0;
  uint32_t polls_ = 0;
  bool abandoned_ = false;
};

}  // namespace weft
