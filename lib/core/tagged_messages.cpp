#include "core/tagged_messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "core/comm.h"
#include "core/context.h"

namespace weft {
namespace {

constexpr uint32_t kTaggedLane = 2;  // LaneKey::id
constexpr int kFramesPerPoll = 64;   // of one peer and direction
constexpr uint32_t kPollsPerTimeCheck = 256;
constexpr uint64_t kEndNs = 1'000'000'000;             // see end()
constexpr uint64_t kPatienceNs = 5'000'000'000;        // after which the log describes a waiting operation
constexpr uint64_t kOwnCopyBytes = uint64_t{1} << 20;  // that one poll copies

std::string elements(Dtype dtype, uint64_t bytes) {
  return cat(name(dtype), " x ", bytes / std::max<uint32_t>(dtype_size(dtype), 1));
}

}  // namespace

TaggedMessages::TaggedMessages(Comm& comm) : comm_(comm), peers_(static_cast<size_t>(comm.size())) {}

TaggedMessages::~TaggedMessages() = default;

void TaggedMessages::submit(Request* request, uint64_t tag, Receipt receipt) {
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

void TaggedMessages::close() {
  const std::lock_guard lock(queue_mutex_);
  closed_ = true;
}

bool TaggedMessages::quiet() {
  return comm_.context().engine().locked([&] {
    const std::lock_guard lock(queue_mutex_);
    return submitted_.empty() && operations_.empty();
  });
}

bool TaggedMessages::end(const Request* request, const Status& why, bool only_unmatched) {
  const auto ended = [&] {
    if (comm_.failed()) return false;
    take_submitted();
    const auto it = std::find_if(operations_.begin(), operations_.end(),
                                 [&](const Operation& operation) { return operation.request == request; });
    if (it == operations_.end()) return false;
    const bool matched = it->state == State::kWriting || it->state == State::kStreaming;
    if (matched && only_unmatched) {
      it->cancelled = why;
      return false;
    }
    end(*it, why);
    return true;
  };
  const bool found = comm_.context().engine().locked(ended);
  comm_.context().engine().notify();  // the other rank may have to learn of it
  return found;
}

void TaggedMessages::await(const Request& request) {
  Engine& engine = comm_.context().engine();
  const auto done = [&] { return request.done(); };
  if (engine.wait(done, Deadline::never())) return;
  end(&request, comm_.interrupted(call_text(request.args)), false);
  engine.settle(done, Deadline::never());
}

void TaggedMessages::fail(const Status& why) noexcept {
  comm_.fail(why);
}

Poll TaggedMessages::poll() {
  if (comm_.failed()) return fail_all();
  take_submitted();
  bool advanced = poll_own();
  bool busy = false;
  for (Peer* const peer : open_) {
    if (peer->gone) continue;
    // Answers to the frames that were received leave with the same poll.
    const bool moved = static_cast<int>(poll_in(*peer)) + static_cast<int>(poll_out(*peer)) > 0;
    if (moved) peer->idle_after_goodbye = 0;
    advanced |= moved;
    busy |= peer->out_busy();
    if (comm_.failed()) return Poll::kAdvanced;
  }
  if (operations_.empty() && !busy) return Poll::kParked;
  if (++polls_ % kPollsPerTimeCheck == 0) check_times();
  if (!advanced && comm_.any_departed()) advanced = check_departed();
  return advanced ? Poll::kAdvanced : Poll::kWaiting;
}

// Begins one operation after the other, so that all of them complete if one throws.
void TaggedMessages::take_submitted() {
  for (;;) {
    {
      const std::lock_guard lock(queue_mutex_);
      if (submitted_.empty()) return;
      operations_.splice(operations_.end(), submitted_, submitted_.begin());
    }
    begin(operations_.back());
  }
}

void TaggedMessages::begin(Operation& operation) {
  comm_.continue_after_error();
  operation.self = std::prev(operations_.end());
  operation.order = next_order_++;
  if (Status injected = comm_.reach(FailPlace::kOperation, operation.order); !injected.ok()) [[unlikely]]
    return comm_.fail(injected);
  if (operation.sends()) return begin_send(operation);
  begin_receive(operation);
}

// Opens the lanes to and from a rank, if they are not open.
Status TaggedMessages::open(int rank) {
  std::unique_ptr<Peer>& known = peers_[static_cast<size_t>(rank)];
  if (known != nullptr) return {};
  auto made = std::make_unique<Peer>();
  made->rank = rank;
  if (rank == comm_.rank()) {
    known = std::move(made);
    return {};
  }
  WEFT_TRY(comm_.collectives().open_lane({LaneKey::Kind::kSend, kTaggedLane, rank}, &made->out));
  WEFT_TRY(comm_.collectives().open_lane({LaneKey::Kind::kReceive, kTaggedLane, rank}, &made->in));
  open_.reserve(open_.size() + 1);
  known = std::move(made);
  open_.push_back(known.get());
  return {};
}

// ---- Sends and receives of this rank ----

void TaggedMessages::begin_send(Operation& send) {
  if (Status opened = open(send.peer()); !opened.ok()) return complete(send, std::move(opened));
  Peer& to = peer(send.peer());
  if (to.gone) return complete(send, left(to.rank, send));
  if (to.rank != comm_.rank()) {
    to.users++;
    send.counted = true;
    send.state = State::kWaiting;
    to.waiting.push_back(&send);
    return;
  }
  if (Operation* const receive = match(to.rank, send.tag); receive != nullptr) return join(send, *receive);
  const uint64_t bytes = send.bytes();
  Unexpected& message = unexpected_.emplace_back();
  message.source = to.rank;
  message.header = {
      .kind = FrameOf::kEager, .dtype = send.request->args.dtype, .tag = send.tag, .bytes = bytes};
  if (bytes <= kEagerMessageBytes && own_window_ + eager_cost(bytes) <= kEagerWindowBytes) {
    message.data.assign(send.request->args.src, send.request->args.src + bytes);
    own_window_ += eager_cost(bytes);
    return complete(send, {});
  }
  message.send = &send;
  send.state = State::kOffered;
}

void TaggedMessages::begin_receive(Operation& receive) {
  const bool any = receive.peer() == kAnySource;
  for (int rank = any ? 0 : receive.peer(); rank <= (any ? comm_.size() - 1 : receive.peer()); rank++) {
    if (Status opened = open(rank); !opened.ok()) return complete(receive, std::move(opened));
  }
  (any ? any_source_ : peer(receive.peer()).users)++;
  receive.counted = true;
  post(receive);
}

// Adds a receive that has not matched to posted_, unless a message waits for it.
void TaggedMessages::post(Operation& receive) {
  receive.state = State::kPosted;
  const auto after = std::find_if(posted_.begin(), posted_.end(),
                                  [&](const Operation* posted) { return posted->order > receive.order; });
  posted_.insert(after, &receive);
  const auto waits = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& message) {
    return (receive.peer() == kAnySource || receive.peer() == message.source) &&
           (receive.tag == kAnyTag || receive.tag == message.header.tag);
  });
  if (waits != unexpected_.end()) return take(receive, waits);
  const bool any = receive.peer() == kAnySource;
  if (any ? all_gone() : peer(receive.peer()).gone) {
    posted_.remove(&receive);
    complete(receive, left(receive.peer(), receive));
  }
}

// Returns the receive that takes a message, which is no longer posted; null if none fits.
TaggedMessages::Operation* TaggedMessages::match(int source, uint64_t tag) {
  const auto it = std::find_if(posted_.begin(), posted_.end(), [&](const Operation* receive) {
    return (receive->peer() == kAnySource || receive->peer() == source) &&
           (receive->tag == kAnyTag || receive->tag == tag);
  });
  if (it == posted_.end()) return nullptr;
  Operation* const receive = *it;
  posted_.erase(it);
  return receive;
}

// Gives a receive a message that has waited for it.
void TaggedMessages::take(Operation& receive, std::list<Unexpected>::iterator message) {
  posted_.remove(&receive);
  std::list<Unexpected> taken;
  taken.splice(taken.end(), unexpected_, message);
  const TaggedHeader& header = message->header;
  if (message->send != nullptr) return join(*message->send, receive);
  if (header.kind == FrameOf::kOffer) return accept(receive, peer(message->source), header);
  if (message->source == comm_.rank()) {
    own_window_ -= eager_cost(header.bytes);
  } else {
    return_credit(peer(message->source), header);
  }
  deliver(receive, message->source, header, message->data.data());
}

// Completes a receive with the data of an eager message.
void TaggedMessages::deliver(Operation& receive, int source, const TaggedHeader& header,
                             const std::byte* data) {
  report(receive, source, header);
  if (!fits(receive, header)) {
    return complete(receive, mismatch(source, header.tag, header.dtype, header.bytes, comm_.rank(),
                                      receive.request->args.dtype, receive.bytes()));
  }
  if (header.bytes > 0) std::memcpy(receive.request->args.dst, data, header.bytes);
  complete(receive, {});
}

// Gives a receive an offered message.
void TaggedMessages::accept(Operation& receive, Peer& from, const TaggedHeader& header) {
  report(receive, from.rank, header);
  const bool fits = this->fits(receive, header);
  from.answers.push_back({.kind = fits ? FrameOf::kAccept : FrameOf::kRefuse,
                          .dtype = receive.request->args.dtype,
                          .id = header.id,
                          .bytes = fits ? 0 : receive.bytes()});
  if (fits && header.bytes > 0) {
    receive.state = State::kStreaming;
    receive.source = from.rank;
    from.accepted.push_back({header, 0, &receive});
    return;
  }
  from.offers--;
  complete(receive, fits ? Status()
                         : mismatch(from.rank, header.tag, header.dtype, header.bytes, comm_.rank(),
                                    receive.request->args.dtype, receive.bytes()));
}

// Gives a receive a message of this rank itself that was not copied.
void TaggedMessages::join(Operation& send, Operation& receive) {
  const TaggedHeader header{
      .kind = FrameOf::kEager, .dtype = send.request->args.dtype, .tag = send.tag, .bytes = send.bytes()};
  report(receive, comm_.rank(), header);
  if (!fits(receive, header)) {
    const Status why = mismatch(comm_.rank(), send.tag, header.dtype, header.bytes, comm_.rank(),
                                receive.request->args.dtype, receive.bytes());
    complete(send, why);
    return complete(receive, why);
  }
  send.state = receive.state = State::kStreaming;
  receive.source = comm_.rank();
  own_copies_.push_back({&send, &receive});
}

bool TaggedMessages::poll_own() {
  if (own_copies_.empty()) return false;
  const OwnCopy copy = own_copies_.front();
  Operation& send = *copy.send;
  const uint64_t part = std::min(kOwnCopyBytes, send.bytes() - send.moved);
  if (part > 0)
    std::memcpy(copy.receive->request->args.dst + send.moved, send.request->args.src + send.moved, part);
  send.moved += part;
  if (send.moved < send.bytes()) return true;
  own_copies_.pop_front();
  complete(send, {});
  complete(*copy.receive, {});
  return true;
}

bool TaggedMessages::fits(const Operation& receive, const TaggedHeader& header) const {
  return receive.request->args.dtype == header.dtype && header.bytes <= receive.bytes();
}

void TaggedMessages::report(const Operation& receive, int source, const TaggedHeader& header) {
  if (receive.receipt.write == nullptr) return;
  receive.receipt.write(receive.receipt.target,
                        {source, header.tag, header.bytes / dtype_size(header.dtype)});
}

void TaggedMessages::complete(Operation& operation, Status status) {
  if (operation.counted) {
    const bool any = !operation.sends() && operation.peer() == kAnySource;
    (any ? any_source_ : peer(operation.peer()).users)--;
  }
  Request* const request = operation.request;
  if (status.ok()) comm_.count_operation("tagged");
  operations_.erase(operation.self);
  request->complete(std::move(status));
}

// ---- Frames from a peer ----

bool TaggedMessages::poll_in(Peer& from) {
  bool advanced = false;
  for (int i = 0; i < kFramesPerPoll; i++) {
    if (from.reading == Peer::In::kNothing) {
      if (!listens(from)) return advanced;
      read(from, reinterpret_cast<std::byte*>(&from.in_frame), sizeof from.in_frame);
      from.reading = Peer::In::kFrame;
    }
    const Poll polled = from.in->poll();
    if (polled != Poll::kFinished) return advanced || polled == Poll::kAdvanced;
    advanced = true;
    if (const Status status = from.in->result(); !status.ok()) {
      // A rank that leaves closes its connections.
      comm_.departed(from.rank) ? lose(from) : comm_.fail(status);
      return true;
    }
    if (std::exchange(from.reading, Peer::In::kNothing) == Peer::In::kData) {
      from.filling != nullptr ? arrived_chunk(from) : arrived(from);
      continue;
    }
    const TaggedHeader& header = from.in_frame.header;
    if (valid(header) && handle(from, header)) continue;
    comm_.fail(Status::error(Code::kPeerFailed,
                             cat("rank ", from.rank, " sent an invalid frame about tagged messages: kind ",
                                 static_cast<int>(header.kind), ", message ", header.id, ", dtype ",
                                 static_cast<int>(header.dtype), ", ", header.bytes, " bytes"),
                             Evidence::kDescriptor)
                   .with_ranks({from.rank}));
    return true;
  }
  return advanced;
}

void TaggedMessages::read(Peer& from, std::byte* data, uint64_t bytes) {
  CollectiveArgs args;
  args.coll = Coll::kRecv;
  args.peer = from.rank;
  args.count = bytes;
  args.dst = data;
  from.in->start(args, from.in_slot++);
}

// Handles a valid frame. Returns false if it does not follow from the frames before it.
bool TaggedMessages::handle(Peer& from, const TaggedHeader& header) {
  switch (header.kind) {
    case FrameOf::kEager:
      from.window += eager_cost(header.bytes);
      if (from.window > kEagerWindowBytes) return false;
      if (header.bytes <= kInlineMessageBytes) {
        arrived(from);
        return true;
      }
      from.in_copy.resize(kEagerMessageBytes);
      from.filling = nullptr;
      read(from, from.in_copy.data(), header.bytes);
      from.reading = Peer::In::kData;
      return true;
    case FrameOf::kOffer:
      if (header.id != ++from.last_offer || ++from.offers > kMostOffers) return false;
      if (Operation* const receive = match(from.rank, header.tag); receive != nullptr) {
        accept(*receive, from, header);
      } else {
        unexpected_.push_back({from.rank, header, {}, nullptr});
      }
      return true;
    case FrameOf::kChunk:
      return handle_chunk(from, header);
    case FrameOf::kWithdraw:
      if (header.id > from.last_offer) return false;
      handle_withdrawal(from, header.id);
      return true;
    case FrameOf::kCredit:
      if (header.bytes > kEagerWindowBytes - from.credit) return false;
      from.credit += header.bytes;
      return true;
    default:
      return handle_answer(from, header);
  }
}

bool TaggedMessages::handle_chunk(Peer& from, const TaggedHeader& header) {
  const auto it = std::find_if(from.accepted.begin(), from.accepted.end(),
                               [&](const Accepted& accepted) { return accepted.header.id == header.id; });
  if (it == from.accepted.end()) return false;
  if (header.bytes != std::min(kMessageChunkBytes, it->header.bytes - it->received)) return false;
  if (it->receive == nullptr) discard_.resize(kMessageChunkBytes);
  from.filling = &*it;
  read(from, it->receive == nullptr ? discard_.data() : it->receive->request->args.dst + it->received,
       header.bytes);
  from.reading = Peer::In::kData;
  return true;
}

// An answer to an offer that this rank has withdrawn meanwhile is ignored.
bool TaggedMessages::handle_answer(Peer& from, const TaggedHeader& header) {
  if (header.id == 0 || header.id > from.last_id) return false;
  const auto it = from.offered.find(header.id);
  if (it == from.offered.end()) return true;
  Operation& send = *it->second;
  from.offered.erase(it);
  if (header.kind == FrameOf::kRefuse) {
    complete(send, mismatch(comm_.rank(), send.tag, send.request->args.dtype, send.bytes(), from.rank,
                            header.dtype, header.bytes));
  } else if (send.bytes() == 0) {
    complete(send, {});
  } else {
    send.state = State::kStreaming;
    from.streaming.push_back(&send);
  }
  return true;
}

// Ignores an offer that this rank has refused meanwhile.
void TaggedMessages::handle_withdrawal(Peer& from, uint64_t id) {
  const auto waits = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& message) {
    return message.source == from.rank && message.header.kind == FrameOf::kOffer && message.header.id == id;
  });
  if (waits != unexpected_.end()) {
    unexpected_.erase(waits);
    from.offers--;
    return;
  }
  const auto it = std::find_if(from.accepted.begin(), from.accepted.end(),
                               [&](const Accepted& accepted) { return accepted.header.id == id; });
  if (it == from.accepted.end()) return;
  const Accepted accepted = *it;
  from.accepted.erase(it);
  from.offers--;
  if (accepted.receive == nullptr) return;
  if (!accepted.receive->cancelled.ok()) return complete(*accepted.receive, accepted.receive->cancelled);
  if (accepted.received == 0) return post(*accepted.receive);
  complete(*accepted.receive,
           withdrawn(from.rank, accepted.header.tag, accepted.received, accepted.header.bytes));
}

// Handles an eager message whose data is complete.
void TaggedMessages::arrived(Peer& from) {
  const TaggedHeader header = from.in_frame.header;
  const std::byte* const data =
      header.bytes <= kInlineMessageBytes ? from.in_frame.data : from.in_copy.data();
  if (Operation* const receive = match(from.rank, header.tag); receive != nullptr) {
    return_credit(from, header);
    return deliver(*receive, from.rank, header, data);
  }
  unexpected_.push_back({from.rank, header, {data, data + header.bytes}, nullptr});
}

void TaggedMessages::arrived_chunk(Peer& from) {
  Accepted& accepted = *std::exchange(from.filling, nullptr);
  accepted.received += from.in_frame.header.bytes;
  const bool whole = accepted.received == accepted.header.bytes;
  Operation* const receive = accepted.receive;
  const bool ends = receive != nullptr && (whole || !receive->ended.ok());
  if (ends) accepted.receive = nullptr;
  if (whole) {
    std::erase_if(from.accepted, [&](const Accepted& other) { return &other == &accepted; });
    from.offers--;
  }
  if (ends) complete(*receive, whole ? Status() : receive->ended);
}

// ---- Frames to a peer ----

bool TaggedMessages::poll_out(Peer& to) {
  bool advanced = false;
  for (int i = 0; i < kFramesPerPoll && !to.gone; i++) {
    if (to.writing == Peer::Out::kNothing) {
      if (!next_frame(to)) return advanced;
      write(to, reinterpret_cast<const std::byte*>(&to.out_frame), sizeof to.out_frame);
      to.writing = Peer::Out::kFrame;
    }
    const Poll polled = to.out->poll();
    if (polled != Poll::kFinished) return advanced || polled == Poll::kAdvanced;
    advanced = true;
    if (const Status status = to.out->result(); !status.ok()) {
      comm_.departed(to.rank) ? lose(to) : comm_.fail(status);
      return true;
    }
    if (to.writing == Peer::Out::kFrame && to.out_data != nullptr) {
      write(to, to.out_data, to.out_frame.header.bytes);
      to.writing = Peer::Out::kData;
      continue;
    }
    to.writing = Peer::Out::kNothing;
    sent(to);
  }
  return advanced;
}

void TaggedMessages::write(Peer& to, const std::byte* data, uint64_t bytes) {
  CollectiveArgs args;
  args.coll = Coll::kSend;
  args.peer = to.rank;
  args.count = bytes;
  args.src = data;
  to.out->start(args, to.out_slot++);
}

// Composes the next frame. Answers go first: the other rank waits for them.
bool TaggedMessages::next_frame(Peer& to) {
  to.out_data = nullptr;
  to.eager = to.chunk = nullptr;
  if (!to.answers.empty()) {
    to.out_frame.header = to.answers.front();
    to.answers.pop_front();
    return true;
  }
  if (to.owed >= kEagerWindowBytes / 2) {
    to.window -= to.owed;
    to.out_frame.header = {.kind = FrameOf::kCredit, .bytes = std::exchange(to.owed, 0)};
    return true;
  }
  if (!(to.chunk_next && !to.streaming.empty()) && next_message(to)) {
    to.chunk_next = true;
    return true;
  }
  if (to.streaming.empty()) return false;
  to.chunk_next = false;
  next_chunk(to);
  return true;
}

// Sends the next message at once or offers it. Returns false if there is none, or too many were offered.
bool TaggedMessages::next_message(Peer& to) {
  if (to.waiting.empty()) return false;
  Operation& send = *to.waiting.front();
  const CollectiveArgs& args = send.request->args;
  const uint64_t bytes = send.bytes();
  TaggedHeader& header = to.out_frame.header;
  header = {.kind = FrameOf::kEager, .dtype = args.dtype, .tag = send.tag, .bytes = bytes};
  if (bytes <= kEagerMessageBytes && eager_cost(bytes) <= to.credit) {
    std::byte* data = to.out_frame.data;
    if (bytes > kInlineMessageBytes) {
      to.out_copy.resize(kEagerMessageBytes);
      data = to.out_copy.data();
      to.out_data = data;
    }
    if (bytes > 0) std::memcpy(data, args.src, bytes);
    to.credit -= eager_cost(bytes);
    send.state = State::kWriting;
    to.eager = &send;
    to.waiting.pop_front();
    return true;
  }
  if (to.offered.size() + to.streaming.size() >= kMostOffers) return false;
  header.kind = FrameOf::kOffer;
  header.id = send.id = ++to.last_id;
  to.offered.emplace(send.id, &send);
  send.state = State::kOffered;
  to.waiting.pop_front();
  return true;
}

void TaggedMessages::next_chunk(Peer& to) {
  Operation& send = *to.streaming.front();
  to.chunk = &send;
  to.out_data = send.request->args.src + send.moved;
  to.out_frame.header = {.kind = FrameOf::kChunk,
                         .id = send.id,
                         .bytes = std::min(kMessageChunkBytes, send.bytes() - send.moved)};
}

// Handles the end of a frame and of the data that follows it.
void TaggedMessages::sent(Peer& to) {
  if (to.eager != nullptr) return complete(*std::exchange(to.eager, nullptr), {});
  if (to.chunk == nullptr) return;
  Operation& send = *std::exchange(to.chunk, nullptr);
  send.moved += to.out_frame.header.bytes;
  to.streaming.pop_front();
  if (send.moved == send.bytes()) return complete(send, {});
  if (send.ended.ok()) return to.streaming.push_back(&send);
  to.answers.push_back({.kind = FrameOf::kWithdraw, .id = send.id});
  complete(send, send.ended);
}

void TaggedMessages::return_credit(Peer& from, const TaggedHeader& header) {
  from.owed += eager_cost(header.bytes);
}

// ---- Operations that end early ----

// Returns true if a lane reads or writes the operation's buffer.
bool TaggedMessages::moving(const Operation& operation) {
  if (operation.state != State::kStreaming) return false;
  const Peer& other = peer(operation.sends() ? operation.peer() : operation.source);
  if (operation.sends()) return other.chunk == &operation;
  return other.filling != nullptr && other.filling->receive == &operation;
}

void TaggedMessages::end(Operation& operation, const Status& why) {
  if (!operation.ended.ok()) return;
  if (moving(operation)) {
    operation.ended = why;
    operation.fails_ns = comm_.context().clock().now_ns() + kEndNs;
    return;
  }
  if (end_own_copy(operation, why)) return;
  if (operation.state == State::kPosted) {
    posted_.remove(&operation);
  } else if (!operation.sends()) {
    for (Accepted& accepted : peer(operation.source).accepted) {
      if (accepted.receive == &operation) accepted.receive = nullptr;
    }
  } else {
    Peer& to = peer(operation.peer());
    std::erase(to.waiting, &operation);
    if (to.eager == &operation) to.eager = nullptr;
    const bool offered = to.offered.erase(operation.id) > 0;
    if (offered || std::erase(to.streaming, &operation) > 0) {
      to.answers.push_back({.kind = FrameOf::kWithdraw, .id = operation.id});
    }
  }
  complete(operation, why);
}

// Ends a message of this rank to itself. Returns false if the operation has none.
bool TaggedMessages::end_own_copy(Operation& operation, const Status& why) {
  std::erase_if(unexpected_, [&](const Unexpected& message) { return message.send == &operation; });
  const auto it = std::find_if(own_copies_.begin(), own_copies_.end(), [&](const OwnCopy& copy) {
    return copy.send == &operation || copy.receive == &operation;
  });
  if (it == own_copies_.end()) return false;
  const OwnCopy copy = *it;
  own_copies_.erase(it);
  const bool sends = operation.sends();
  const Status received =
      sends ? withdrawn(comm_.rank(), copy.send->tag, copy.send->moved, copy.send->bytes()) : why;
  complete(*copy.send, sends ? why : Status());
  complete(*copy.receive, received);
  return true;
}

void TaggedMessages::check_times() {
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
      std::vector<int> ranks;
      if (operation.peer() != kAnySource && operation.peer() != comm_.rank())
        ranks.push_back(operation.peer());
      end(operation, Status::error(Code::kTimeout,
                                   cat(text_of(operation), " passed its deadline",
                                       ranks.empty() ? "" : cat(" waiting for rank ", ranks.front())),
                                   Evidence::kDeadline)
                         .with_ranks(std::move(ranks)));
      // Both ends of a message of this rank to itself may have completed.
      it = operations_.begin();
      continue;
    }
    if (operation.since_ns == 0) operation.since_ns = now_ns;
    if (operation.warned || now_ns - operation.since_ns < kPatienceNs) continue;
    operation.warned = true;
    if (comm_.context().log().enabled(LogLevel::kWarn)) {
      comm_.context().log().warn(
          cat(text_of(operation), " has waited for ", (now_ns - operation.since_ns) / 1'000'000'000, " s"));
    }
  }
}

// A rank that has left sends nothing more once a second poll after its goodbye is idle too. Returns true if
// there is such a rank.
bool TaggedMessages::check_departed() {
  for (Peer* const peer : open_) {
    if (peer->gone || !comm_.departed(peer->rank) || !listens(*peer)) continue;
    if (peer->idle_after_goodbye++ == 0) continue;
    lose(*peer);
    return true;
  }
  return false;
}

// Ends the operations that need a rank that has left. Complete messages of the rank can still be received.
void TaggedMessages::lose(Peer& lost) {
  lost.gone = true;
  lost.in->abandon();
  lost.out->abandon();
  lost.reading = Peer::In::kNothing;
  lost.writing = Peer::Out::kNothing;
  lost.filling = nullptr;
  lost.eager = lost.chunk = nullptr;
  lost.answers.clear();
  lost.waiting.clear();
  lost.offered.clear();
  lost.streaming.clear();
  lost.accepted.clear();
  std::erase_if(unexpected_, [&](const Unexpected& message) {
    return message.source == lost.rank && message.header.kind == FrameOf::kOffer;
  });
  const bool none_left = all_gone();
  for (auto it = operations_.begin(); it != operations_.end();) {
    Operation& operation = *it++;
    const bool streams = operation.state == State::kStreaming && !operation.sends();
    const bool needs = streams                          ? operation.source == lost.rank
                       : operation.peer() == kAnySource ? none_left
                                                        : operation.peer() == lost.rank;
    if (!needs) continue;
    if (operation.state == State::kPosted) posted_.remove(&operation);
    complete(operation, operation.ended.ok() ? left(lost.rank, operation) : operation.ended);
  }
}

// Returns true if there are other ranks, and all of them have left.
bool TaggedMessages::all_gone() const {
  const auto others = static_cast<size_t>(comm_.size() - 1);
  return others > 0 && open_.size() == others &&
         std::all_of(open_.begin(), open_.end(), [](const Peer* peer) { return peer->gone; });
}

Poll TaggedMessages::fail_all() {
  if (!std::exchange(abandoned_, true)) {
    for (Peer* const peer : open_) {
      if (peer->gone) continue;
      peer->in->abandon();
      peer->out->abandon();
    }
    own_copies_.clear();
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

// ---- Texts ----

Status TaggedMessages::mismatch(int from, uint64_t tag, Dtype sent, uint64_t sent_bytes, int to,
                                Dtype received, uint64_t capacity) const {
  return Status::error(Code::kMismatch,
                       cat("message with tag ", tag, ": rank ", from, " sends ", elements(sent, sent_bytes),
                           ", rank ", to, " receives at most ", elements(received, capacity),
                           ": give both the same dtype, and the receive room for the message"),
                       Evidence::kDescriptor)
      .with_ranks({from == comm_.rank() ? to : from});
}

Status TaggedMessages::withdrawn(int source, uint64_t tag, uint64_t received, uint64_t bytes) const {
  return Status::error(Code::kCancelled,
                       cat("rank ", source, " gave up its message with tag ", tag, " after ",
                           bytes_text(received), " of ", bytes_text(bytes)),
                       Evidence::kReport)
      .with_ranks({source});
}

Status TaggedMessages::left(int rank, const Operation& operation) const {
  const bool all = rank == kAnySource || (!operation.sends() && operation.peer() == kAnySource);
  std::vector<int> ranks;
  if (!all) ranks.push_back(rank);
  return Status::error(
             Code::kPeerFailed,
             cat(all ? std::string("all other ranks") : cat("rank ", rank), " left the communicator; ",
                 text_of(operation), " waits for ", all ? "one of them" : "it"),
             Evidence::kConnection)
      .with_ranks(std::move(ranks));
}

std::string TaggedMessages::text_of(const Operation& operation) const {
  const CollectiveArgs& args = operation.request->args;
  const std::string peer = operation.peer() == kAnySource ? "any rank" : cat("rank ", operation.peer());
  const std::string tag = operation.tag == kAnyTag ? "any tag" : cat("tag ", operation.tag);
  return cat(operation.sends() ? "send_tagged " : "recv_tagged ", name(args.dtype), " x ", args.count,
             operation.sends() ? " to " : " from ", peer, " with ", tag, " on rank ", comm_.rank());
}

}  // namespace weft
