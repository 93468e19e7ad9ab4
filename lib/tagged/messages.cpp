#include "tagged/messages.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "comm/comm.h"
#include "comm/context.h"
#include "comm/trace_sink.h"

namespace weft::tagged {
namespace {

constexpr uint32_t kTaggedLane = 2;  // LaneKey::id, after 0 of the user and 1 of a backend
constexpr uint32_t kPollsPerTimeCheck = 256;
constexpr uint64_t kEndNs = 1'000'000'000;       // see end()
constexpr uint64_t kPatienceNs = 5'000'000'000;  // after which the log describes a waiting operation

}  // namespace

Status Messages::of(Comm& comm, Messages** messages) {
  CommPart* part = nullptr;
  WEFT_TRY(
      comm.part([](Comm& of) -> std::shared_ptr<CommPart> { return std::make_shared<Messages>(of); }, &part));
  *messages = static_cast<Messages*>(part);
  return {};
}

Messages::Messages(Comm& comm)
    : comm_(comm),
      first_(first_of(comm.options().failpoints, FailCounter::kMessages)),
      own_(*this, matching_, comm.rank()),
      peers_(static_cast<size_t>(comm.size())),
      next_order_(first_) {}

Messages::~Messages() = default;

Messages::Peer::Peer(Messages& messages, const LaneKey& key, std::unique_ptr<CollectiveLane> out,
                     std::unique_ptr<CollectiveLane> in)
    : rank(key.peer),
      outgoing(messages, messages.comm_.rank(), key, std::move(out), messages.first_),
      incoming(messages, messages.matching_, outgoing, messages.comm_.rank(), key, std::move(in),
               messages.first_) {}

void Messages::submit(Request* request, uint64_t tag, Receipt receipt) {
  std::list<Operation> one(1);
  one.front().request = request;
  one.front().tag = tag;
  one.front().receipt = receipt;
  bool queued = false;
  {
    const std::lock_guard lock(queue_mutex_);
    if (!closed_) submitted_.splice(submitted_.end(), one);
    queued = one.empty();
  }
  if (!queued) return request->complete(comm_.failure());
  Poll polled = Poll::kWaiting;
  Engine& engine = comm_.context().engine();
  const auto begin_at_once = [&] {
    polled = Engine::poll(*this);
    return true;
  };
  // The progress thread continues what a complete request has left to do. Others have a thread that waits, or
  // that notifies.
  if (engine.try_locked(begin_at_once) && polled != Poll::kParked && request->done()) engine.notify();
}

void Messages::close() {
  const std::lock_guard lock(queue_mutex_);
  closed_ = true;
}

bool Messages::quiet() {
  const std::lock_guard lock(queue_mutex_);
  return submitted_.empty() && operations_.empty() &&
         !any_peer([](const Peer& peer) { return peer.outgoing.busy(); });
}

// Returns true if one of the ranks that have not left has the property.
template <class Has>
bool Messages::any_peer(Has&& has) const {
  return std::any_of(open_.begin(), open_.end(), [&](const Peer* peer) { return !peer->gone && has(*peer); });
}

// A rank that closes may wait for this one to receive: from the first call on, this one receives from all.
bool Messages::flush() {
  if (comm_.failed() || !any_peer([](const Peer& peer) { return peer.outgoing.owes(); })) return true;
  if (!std::exchange(flushes_, true)) {
    // Without a lane from a rank, this one receives nothing from it, and that rank waits in vain.
    for (int rank = 0; rank < comm_.size(); rank++) (void)open(rank).ok();
  }
  return false;
}

bool Messages::listens(int rank) const {
  const Peer& other = peer(rank);
  // The frames of a rank that has left are received before those to it are dropped.
  return any_source_ > 0 || other.users > 0 || flushes_ || (other.outgoing.busy() && comm_.departed(rank));
}

void Messages::describe(FlightRecord* record) {
  const uint64_t kept = std::min<uint64_t>(ended_count_, ended_.size());
  for (uint64_t i = ended_count_ - kept; i < ended_count_; i++)
    record->messages.push_back(ended_[i % ended_.size()]);
  for (const Operation& operation : operations_) record->messages.push_back(flight_of(operation));
  const std::lock_guard lock(queue_mutex_);
  for (const Operation& operation : submitted_) record->messages.push_back(flight_of(operation));
}

// Calls `act` for the operation, unless it is complete.
template <class Act>
void Messages::with_operation(const Request& request, Act&& act) {
  comm_.context().engine().locked([&] {
    if (comm_.failed()) return;
    take_submitted();
    const auto it = std::find_if(operations_.begin(), operations_.end(),
                                 [&](const Operation& operation) { return operation.request == &request; });
    if (it != operations_.end()) act(*it);
  });
  comm_.context().engine().notify();  // the other rank may have to learn of it
}

void Messages::end(const Request& request, const Status& why) {
  with_operation(request, [&](Operation& operation) { end(operation, why); });
}

void Messages::cancel(const Request& request) {
  with_operation(request, [&](Operation& operation) {
    const Status why =
        Status::error(Code::kCancelled, cat("the program cancelled ", text_of(operation, comm_.rank())));
    if (operation.state != Operation::State::kStreaming) return end(operation, why);
    operation.cancelled = why;
  });
}

void Messages::await(Request& request) {
  const Waiter waiter(request);
  Engine& engine = comm_.context().engine();
  const auto done = [&] { return request.done(); };
  if (engine.wait(done, Deadline::never())) return;
  end(request, comm_.interrupted(call_text(request.args)));
  engine.settle(done, Deadline::never());
}

void Messages::fail(const Status& why) noexcept {
  comm_.fail(why);
}

Poll Messages::poll() {
  if (comm_.failed()) return fail_all();
  take_submitted();
  bool advanced = own_.poll();
  bool sends = false, receives = flushes_;
  for (Peer* const peer : open_) {
    if (peer->gone) continue;
    advanced |= progress(*peer);
    sends |= peer->outgoing.busy();
    receives |= peer->incoming.busy();
    if (comm_.failed()) return Poll::kAdvanced;
  }
  const bool waits = !operations_.empty() || receives;
  if (!waits && !sends) return Poll::kParked;
  if (++polls_ % kPollsPerTimeCheck == 0) check_times();
  if (!advanced && comm_.any_departed()) advanced = check_departed();
  if (advanced) return Poll::kAdvanced;
  return waits ? Poll::kWaiting : Poll::kLater;
}

// Answers to the frames that were received leave with the same poll.
bool Messages::progress(Peer& peer) {
  bool advanced = false;
  Status status = peer.incoming.progress(&advanced);
  if (status.ok()) status = peer.outgoing.progress(&advanced);
  if (!status.ok()) {
    // A rank that leaves closes its connections. An invalid frame is never excused.
    const bool leaves = comm_.departed(peer.rank) && status.info().evidence != Evidence::kDescriptor;
    leaves ? lose(peer) : comm_.fail(status);
    return true;
  }
  if (advanced) peer.idle_after_goodbye = 0;
  return advanced;
}

// Begins one operation after the other, so that all of them complete if one throws.
void Messages::take_submitted() {
  for (;;) {
    {
      const std::lock_guard lock(queue_mutex_);
      if (submitted_.empty()) return;
      operations_.splice(operations_.end(), submitted_, submitted_.begin());
    }
    begin(operations_.back());
  }
}

void Messages::begin(Operation& operation) {
  comm_.continue_after_error();
  operation.self = std::prev(operations_.end());
  operation.order = next_order_++;
  if (comm_.context().trace() != nullptr) operation.request->start_ns = comm_.context().clock().now_ns();
  if (Status injected = comm_.reach(FailPlace::kOperation, operation.order); !injected.ok()) [[unlikely]]
    return comm_.fail(injected);
  if (operation.sends()) return begin_send(operation);
  begin_receive(operation);
}

bool Messages::is_own(int rank) const {
  return rank == comm_.rank();
}

// Opens the lanes to and from another rank, if they are not open.
Status Messages::open(int rank) {
  std::unique_ptr<Peer>& known = peers_[static_cast<size_t>(rank)];
  if (known != nullptr || is_own(rank)) return {};
  std::unique_ptr<CollectiveLane> out, in;
  LaneKey key{LaneKey::Kind::kSend, kTaggedLane, rank};
  key.first_slot = first_of(comm_.options().failpoints, FailCounter::kSlots);
  WEFT_TRY(comm_.collectives().open_lane(key, &out));
  key.kind = LaneKey::Kind::kReceive;
  WEFT_TRY(comm_.collectives().open_lane(key, &in));
  open_.reserve(open_.size() + 1);
  known = std::make_unique<Peer>(*this, key, std::move(out), std::move(in));
  open_.push_back(known.get());
  return {};
}

// Counts an operation among those for which frames are received, until it completes.
void Messages::count(Operation& operation) {
  const int rank = operation.peer();
  if (rank != kAnySource && is_own(rank)) return;
  operation.counted = true;
  (rank == kAnySource ? any_source_ : peer(rank).users)++;
}

void Messages::begin_send(Operation& send) {
  const int rank = send.peer();
  if (is_own(rank)) return own_.send(send);
  if (Status opened = open(rank); !opened.ok()) return complete(send, std::move(opened));
  if (peer(rank).gone || comm_.departed(rank)) return complete(send, left(comm_.rank(), rank, send));
  count(send);
  peer(rank).outgoing.send(send);
}

void Messages::begin_receive(Operation& receive) {
  const bool any = receive.peer() == kAnySource;
  for (int rank = any ? 0 : receive.peer(); rank <= (any ? comm_.size() - 1 : receive.peer()); rank++) {
    if (Status opened = open(rank); !opened.ok()) return complete(receive, std::move(opened));
  }
  count(receive);
  post(receive);
}

void Messages::post(Operation& receive) {
  Unexpected message;
  if (matching_.post(receive, &message)) {
    if (is_own(message.source)) return own_.deliver(receive, message);
    return peer(message.source).incoming.deliver(receive, message);
  }
  const int rank = receive.peer();
  const bool lost = rank == kAnySource ? all_gone() : !is_own(rank) && peer(rank).gone;
  if (!lost) return;
  matching_.forget_receive(receive);
  complete(receive, left(comm_.rank(), rank, receive));
}

void Messages::complete(Operation& operation, Status status) {
  const int rank = operation.peer();
  if (operation.counted) (rank == kAnySource ? any_source_ : peer(rank).users)--;
  Request* const request = operation.request;
  record(operation, status.ok());
  if (status.ok()) comm_.count_operation("tagged");
  operations_.erase(operation.self);
  request->complete(std::move(status));
}

// Keeps an operation that ends for the flight record, and records it in the trace.
void Messages::record(const Operation& operation, bool ok) {
  FlightMessage& message = ended_[ended_count_++ % ended_.size()];
  message = flight_of(operation);
  message.state = ok ? FlightMessage::State::kFinished : FlightMessage::State::kFailed;
  TraceSink* const trace = comm_.context().trace();
  if (trace == nullptr || operation.request->start_ns == 0) return;
  const std::string name = message.text();
  TraceEvent event;
  event.kind = TraceKind::kMessage;
  event.name = name.c_str();
  event.begin_ns = operation.request->start_ns;
  event.end_ns = comm_.context().clock().now_ns();
  event.comm = comm_.options().id;
  event.rank = comm_.rank();
  event.index = operation.tag;
  event.bytes = operation.bytes();
  trace->record(event);
}

// ---- Operations that end early ----

// Returns true if a lane reads or writes the operation's buffer.
bool Messages::moving(const Operation& operation) const {
  if (operation.state != Operation::State::kStreaming) return false;
  if (operation.sends()) return peer(operation.peer()).outgoing.moving(operation);
  return peer(operation.source).incoming.moving(operation);
}

void Messages::end(Operation& operation, const Status& why) {
  if (!operation.ended.ok()) return;
  if (own_.end(operation, why)) return;
  if (moving(operation)) {
    operation.ended = why;
    operation.fails_ns = comm_.context().clock().now_ns() + kEndNs;
    return;
  }
  if (operation.state == Operation::State::kPosted) {
    matching_.forget_receive(operation);
  } else if (operation.sends()) {
    peer(operation.peer()).outgoing.forget(operation);
  } else {
    peer(operation.source).incoming.forget(operation);
  }
  complete(operation, why);
}

void Messages::check_times() {
  const uint64_t now_ns = comm_.context().clock().now_ns();
  for (auto it = operations_.begin(); it != operations_.end();) {
    Operation& operation = *it++;
    if (!operation.ended.ok()) {
      if (now_ns < operation.fails_ns) continue;
      comm_.fail(operation.ended);
      return;
    }
    const uint64_t deadline_ns = operation.request->deadline.ns();
    if (now_ns >= deadline_ns) {
      end(operation, late(comm_.rank(), operation));
      // Both ends of a message of this rank to itself may have completed.
      it = operations_.begin();
      continue;
    }
    if (operation.since_ns == 0) operation.since_ns = now_ns;
    if (operation.warned || now_ns - operation.since_ns < kPatienceNs) continue;
    operation.warned = true;
    if (comm_.context().log().enabled(LogLevel::kWarn)) {
      comm_.context().log().warn(cat(text_of(operation, comm_.rank()), " has waited for ",
                                     (now_ns - operation.since_ns) / 1'000'000'000, " s"));
    }
  }
}

// A rank that has left sends nothing more once a second poll after its goodbye is idle too. Returns true if
// there is such a rank.
bool Messages::check_departed() {
  for (Peer* const peer : open_) {
    if (peer->gone || !comm_.departed(peer->rank) || !(peer->incoming.busy() || listens(peer->rank)))
      continue;
    if (peer->idle_after_goodbye++ == 0) continue;
    lose(*peer);
    return true;
  }
  return false;
}

// Ends the operations that need a rank that has left. Complete messages of the rank can still be received.
void Messages::lose(Peer& lost) {
  lost.gone = true;
  lost.incoming.abandon();
  lost.outgoing.abandon();
  matching_.forget_offers(lost.rank);
  const bool none_left = all_gone();
  for (auto it = operations_.begin(); it != operations_.end();) {
    Operation& operation = *it++;
    const bool streams = operation.state == Operation::State::kStreaming && !operation.sends();
    const bool needs = streams                          ? operation.source == lost.rank
                       : operation.peer() == kAnySource ? none_left
                                                        : operation.peer() == lost.rank;
    if (!needs) continue;
    if (operation.state == Operation::State::kPosted) matching_.forget_receive(operation);
    complete(operation, operation.ended.ok() ? left(comm_.rank(), lost.rank, operation) : operation.ended);
  }
}

// Returns true if there are other ranks, and all of them have left.
bool Messages::all_gone() const {
  const auto others = static_cast<size_t>(comm_.size() - 1);
  return others > 0 && open_.size() == others &&
         std::all_of(open_.begin(), open_.end(), [](const Peer* peer) { return peer->gone; });
}

Poll Messages::fail_all() {
  if (!std::exchange(abandoned_, true)) {
    for (Peer* const peer : open_) {
      if (peer->gone) continue;
      peer->incoming.abandon();
      peer->outgoing.abandon();
    }
    own_.abandon();
  }
  {
    const std::lock_guard lock(queue_mutex_);
    operations_.splice(operations_.end(), submitted_);
  }
  if (!operations_.empty() && comm_.dumping()) return Poll::kWaiting;
  const Status failure = comm_.failure();
  while (!operations_.empty()) {
    Request* const request = operations_.front().request;
    operations_.pop_front();
    request->complete(failure);
  }
  return Poll::kParked;
}

}  // namespace weft::tagged
