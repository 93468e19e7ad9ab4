#include "transport.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "base/text.h"

namespace weft::ucx {
namespace {

// Messages of one rank that wait for a receive: a lane has a few, so more are no honest sender's.
constexpr size_t kMostArrived = 65536;
// Calls of UCX in one progress(), and pieces of one message that it is given: a bounded amount of work.
constexpr int kProgressRounds = 16;
constexpr int kStreamPieces = 16;
// What an endpoint is given in one piece: what fits into one segment of its transport, so that neither side
// of UCX takes it apart. UCX's segments are of 8 KiB, headers included, but for TCP.
constexpr uint64_t kPieceBytes = 8 * 1024 - 256;
constexpr uint64_t kTcpPieceBytes = 64 * 1024 - 1024;
// How long UCX may take to let go of a buffer after its endpoint was closed by force.
constexpr int64_t kDrainMs = 2000;

uint64_t cost(uint64_t size) {
  return size + kMessageCost;
}

Status closed() {
  return Status::error(Code::kCancelled, "the message was taken back");
}

Status broke(const Peer& peer, ucs_status_t status) {
  return Status::error(
             Code::kPeerFailed,
             cat("the connection to rank ", peer.rank, " broke (UCX: ", ucs_status_string(status), ")"),
             Evidence::kConnection)
      .with_ranks({peer.rank});
}

}  // namespace

UcxTransport::UcxTransport(int rank, int size, Clock& clock, Log& log)
    : rank_(rank), clock_(clock), log_(log), peers_(static_cast<size_t>(size)) {
  for (int r = 0; r < size; r++) peer(r).rank = r;
}

UcxTransport::~UcxTransport() {
  const Speaking speaking(log_);
  for (Peer& peer : peers_) {
    while (!peer.posted.empty()) cancel(peer.posted.front().message);
    close_by_force(peer);
  }
  if (flushing_ != nullptr) closing_.push_back(flushing_);
  const Deadline deadline = Deadline::after(clock_, kDrainMs, 0);
  for (uint32_t round = 0; worker_ && !closing_.empty() && !deadline.expired(clock_); round++) {
    ucp_worker_progress(worker_.get());
    std::erase_if(closing_, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucp_request_free(request);
      return true;
    });
    clock_.relax(round);
  }
  worker_.reset();
  context_.reset();
}

Status UcxTransport::open(Bytes* address) {
  const Speaking speaking(log_);
  WEFT_TRY(open_context(static_cast<int>(peers_.size()), &context_));
  WEFT_TRY(open_worker(context_.get(), &worker_));
  const std::pair<unsigned, ucp_am_recv_callback_t> handlers[] = {
      {kMessageId, on_frame<Header>}, {kFragmentId, on_frame<Fragment>}, {kNoteId, on_frame<Note>}};
  for (const auto& [id, callback] : handlers) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = id;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    param.cb = callback;
    param.arg = this;
    const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &param);
    if (status != UCS_OK) return failed("UCX takes no active messages", status);
  }
  return address_of(worker_.get(), address);
}

Status UcxTransport::add_endpoint(int rank, const Bytes& address) {
  const Speaking speaking(log_);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = this;
  Peer& peer = this->peer(rank);
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &peer.endpoint);
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    return failed(cat("UCX does not reach rank ", rank), status).with_ranks({rank});
  }
  peer.may_send = kWindowBytes;
  const bool tcp = ucx::transports(peer.endpoint).find("tcp/") != std::string::npos;
  peer.fragment_bytes = tcp ? kTcpPieceBytes : kPieceBytes;
  return {};
}

Posted& UcxTransport::post(int rank, Message* message) {
  if (unused_.empty()) unused_.emplace_back();
  Peer& peer = this->peer(rank);
  peer.posted.splice(peer.posted.end(), unused_, unused_.begin());
  Posted& posted = peer.posted.back();
  posted.transport = this;
  posted.peer = &peer;
  posted.message = message;
  posted.going = false;
  posted.name = ++last_name_;
  posted.moved = 0;
  posted.in_flight = 0;
  posted.refused = false;
  posted.first.posted = &posted;
  for (Flight<Fragment>& part : posted.parts) part.posted = &posted;
  posted.self = std::prev(peer.posted.end());
  message->impl = &posted;
  return posted;
}

void UcxTransport::retire(Posted& posted, Status status) {
  Message& message = *posted.message;
  message.status = std::move(status);
  message.impl = nullptr;
  message.done = true;
  unused_.splice(unused_.end(), posted.peer->posted, posted.self);
  advanced_ = true;
}

void UcxTransport::send(int rank, const MessageTag& tag, const Descriptor& descriptor, const std::byte* data,
                        uint64_t size, Message* message) {
  Posted& send = post(rank, message);
  Peer& peer = *send.peer;
  send.is_send = true;
  send.source = data;
  send.size = size;
  bytes_sent_.fetch_add(size, std::memory_order_relaxed);
  if (peer.broken) return;  // completes when that is reported
  const bool eager = size <= peer.fragment_bytes && cost(size) <= peer.may_send;
  if (eager) peer.may_send -= cost(size);
  send.first.frame = {
      peer.token_out, tag.slot, size,      eager ? 0 : send.name, static_cast<uint32_t>(rank_), tag.lane,
      tag.step,       0,        descriptor};
  send.moved = eager ? size : 0;
  send.going = eager;
  const Speaking speaking(log_);
  fly(send.first, kMessageId, eager ? data : nullptr, eager ? size : 0);
  finish_if_done(send);
}

template <class Frame>
void UcxTransport::fly(Flight<Frame>& flight, unsigned id, const std::byte* data, uint64_t size) {
  Posted& send = *flight.posted;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = on_sent<Frame>;
  param.user_data = &flight;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;  // so that UCX need not find out
  unsettled_ = true;
  send.peer->sent++;
  const ucs_status_ptr_t answer =
      ucp_am_send_nbx(send.peer->endpoint, id, &flight.frame, sizeof flight.frame, data, size, &param);
  if (UCS_PTR_IS_PTR(answer)) {
    flight.busy = true;
    send.in_flight++;
  } else if (UCS_PTR_STATUS(answer) != UCS_OK) {
    send.refused = true;
    lose(*send.peer, broke(*send.peer, UCS_PTR_STATUS(answer)));
  }
}

// Give UCX more pieces of an offered message, up to kDepth at a time.
bool UcxTransport::stream(Posted& send) {
  bool any = false;
  for (int pieces = 0; pieces < kStreamPieces && send.moved < send.size && !send.peer->broken; pieces++) {
    const auto part = std::find_if(send.parts.begin(), send.parts.end(),
                                   [](const Flight<Fragment>& flight) { return !flight.busy; });
    if (part == send.parts.end()) break;
    const uint64_t size = std::min(send.peer->fragment_bytes, send.size - send.moved);
    part->frame = {send.peer->token_out, send.other_name, send.moved, static_cast<uint32_t>(rank_), 0};
    const std::byte* const data = send.source + send.moved;
    send.moved += size;
    if (send.moved == send.size) streams_--;
    fly(*part, kFragmentId, data, size);
    any = true;
  }
  finish_if_done(send);
  return any;
}

void UcxTransport::finish_if_done(Posted& send) {
  if (send.going && send.moved == send.size && send.in_flight == 0 && !send.refused) retire(send, {});
}

void UcxTransport::receive(int rank, const MessageTag& tag, std::byte* data, uint64_t capacity,
                           Message* message) {
  Posted& receive = post(rank, message);
  Peer& peer = *receive.peer;
  receive.is_send = false;
  receive.tag = tag;
  receive.target = data;
  receive.capacity = capacity;
  const auto it = std::find_if(peer.arrived.begin(), peer.arrived.end(),
                               [&](const Arrived& arrived) { return arrived.header.tag() == tag; });
  if (it == peer.arrived.end()) return;
  if (it->header.offer == 0) peer.arrived_bytes -= cost(it->header.size);
  take(receive, it->header, it->data.data());
  unused_arrived_.splice(unused_arrived_.end(), peer.arrived, it);
}

// A message has found its receive: copy it, or ask for it.
void UcxTransport::take(Posted& receive, const Header& header, const std::byte* data) {
  Message& message = *receive.message;
  Peer& peer = *receive.peer;
  const bool eager = header.offer == 0;
  message.peer_descriptor = header.descriptor;
  if (eager) pay_back(peer, cost(header.size));
  if (header.size > receive.capacity) {
    // An offer stays unanswered: the communicator is about to fail.
    return retire(receive, Status::error(Code::kMismatch,
                                         cat("rank ", peer.rank, " sent ", bytes_text(header.size), " where ",
                                             bytes_text(receive.capacity), " are expected")));
  }
  message.received_bytes = header.size;
  bytes_received_.fetch_add(header.size, std::memory_order_relaxed);
  if (eager && header.size > 0) std::memcpy(receive.target, data, header.size);
  if (!eager) tell(peer, NoteKind::kGo, header.offer, receive.name);
  if (eager || header.size == 0) return retire(receive, {});
  receive.going = true;
  receive.size = header.size;
}

// Room in the window again. The sender learns it before it runs out.
void UcxTransport::pay_back(Peer& peer, uint64_t bytes) {
  peer.owed += bytes;
  if (peer.owed >= kWindowBytes / 2) tell(peer, NoteKind::kCredit, std::exchange(peer.owed, 0));
}

bool UcxTransport::progress() {
  const Speaking speaking(log_);
  advanced_ = false;
  for (int i = 0; worker_ && i < kProgressRounds && !advanced_; i++) {
    if (ucp_worker_progress(worker_.get()) == 0) break;
  }
  if (streams_ > 0) {
    for (Peer& peer : peers_) {
      for (auto it = peer.posted.begin(); it != peer.posted.end();) {
        Posted& posted = *it++;
        if (posted.is_send && posted.going && posted.moved < posted.size) advanced_ |= stream(posted);
      }
    }
  }
  if (any_broken_) advanced_ |= report_broken();
  return advanced_;
}

void UcxTransport::cancel(Message* message) {
  auto* const posted = static_cast<Posted*>(message->impl);
  if (posted == nullptr) return;
  const Speaking speaking(log_);
  if (posted->is_send && posted->going && posted->moved < posted->size) streams_--;
  if (posted->in_flight > 0) drain(*posted);
  if (message->impl != nullptr) retire(*posted, closed());
}

// UCX lets go of a buffer only with the endpoint. Who takes a message back has given the communicator up.
void UcxTransport::drain(const Posted& send) {
  close_by_force(*send.peer);
  const Deadline deadline = Deadline::after(clock_, kDrainMs, 0);
  for (uint32_t round = 0; worker_ && send.in_flight > 0; round++) {
    if (ucp_worker_progress(worker_.get()) == 0) clock_.relax(round);
    if (!deadline.expired(clock_)) continue;
    log_.error(cat("ucx: a message to rank ", send.peer->rank, " is not given back; UCX is stopped"));
    for (Peer& peer : peers_) {
      peer.endpoint = nullptr;
      lose(peer, closed());
    }
    flushing_ = nullptr;
    closing_.clear();
    worker_.reset();
  }
}

void UcxTransport::close_by_force(Peer& peer) {
  const ucp_ep_h endpoint = std::exchange(peer.endpoint, nullptr);
  if (endpoint == nullptr) return;
  lose(peer, closed());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(closing)) closing_.push_back(closing);
}

// From here on nothing is sent to the peer. What waits for it is told later (report_broken).
void UcxTransport::lose(Peer& peer, Status why) {
  if (peer.broken) return;
  peer.broken = true;
  peer.why = std::move(why);
  peer.broken_ns = clock_.now_ns();
  any_broken_ = true;
}

// Complete what waits for peers whose endpoint broke a while ago; true if there was any.
bool UcxTransport::report_broken() {
  const uint64_t now = clock_.now_ns();
  bool any = false;
  for (Peer& peer : peers_) {
    if (!peer.broken || now < peer.broken_ns + kGraceNs) continue;
    for (auto it = peer.posted.begin(); it != peer.posted.end();) {
      Posted& posted = *it++;
      if (posted.in_flight > 0) continue;
      if (posted.is_send && posted.going && posted.moved < posted.size) streams_--;
      retire(posted, peer.why);
      any = true;
    }
  }
  return any;
}

bool UcxTransport::peek(int rank, uint32_t lane, uint64_t slot, Descriptor* descriptor) {
  for (const Arrived& arrived : peer(rank).arrived) {
    if (arrived.header.lane != lane || arrived.header.slot != slot) continue;
    *descriptor = arrived.header.descriptor;
    return true;
  }
  return false;
}

// UCX counts a small message as sent when it has copied it; a full socket or ring may hold it back.
bool UcxTransport::settled() {
  if ((!unsettled_ && flushing_ == nullptr) || !worker_) return true;
  const Speaking speaking(log_);
  if (flushing_ != nullptr) {
    ucp_worker_progress(worker_.get());
    if (ucp_request_check_status(flushing_) == UCS_INPROGRESS) return false;
    ucp_request_free(std::exchange(flushing_, nullptr));
    if (!unsettled_) return true;
  }
  unsettled_ = false;
  const ucp_request_param_t param{};
  const ucs_status_ptr_t request = ucp_worker_flush_nbx(worker_.get(), &param);
  // A flush that fails says that an endpoint has: that is reported by itself.
  if (UCS_PTR_IS_PTR(request)) flushing_ = request;
  return flushing_ == nullptr;
}

TransportCounters UcxTransport::counters() const {
  TransportCounters counters;
  counters.bytes_sent = bytes_sent_.load(std::memory_order_relaxed);
  counters.bytes_received = bytes_received_.load(std::memory_order_relaxed);
  return counters;
}

void UcxTransport::note_transports() {
  std::set<std::string> all;
  for (const Peer& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    const std::string used = ucx::transports(peer.endpoint);
    all.insert(used);
    log_.debug(cat("ucx: rank ", peer.rank, " is reached over ", used));
  }
  transports_ = list_text(all);
  log_.info(cat("ucx: ", version(), " over ", transports_));
}

void UcxTransport::tell(Peer& peer, NoteKind kind, uint64_t first, uint64_t second) {
  if (peer.endpoint == nullptr || peer.broken) return;
  const Speaking speaking(log_);
  std::erase_if(told_, [](const Told& told) { return told.done; });
  Told& told = told_.emplace_back();
  told.note = {peer.token_out, first, second, static_cast<uint32_t>(rank_), kind};
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = on_told;
  param.user_data = &told;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  unsettled_ = true;
  peer.sent++;
  const ucs_status_ptr_t answer =
      ucp_am_send_nbx(peer.endpoint, kNoteId, &told.note, sizeof told.note, nullptr, 0, &param);
  if (!UCS_PTR_IS_PTR(answer)) told.done = true;
}

// ---- called by UCX, from inside ucp_worker_progress
// --------------------------------------------------------

// A frame from a rank that shows what only that rank was told; anything else is thrown away.
template <class Frame>
ucs_status_t UcxTransport::on_frame(void* self, const void* bytes, size_t bytes_size, void* data, size_t size,
                                    const ucp_am_recv_param_t* param) {
  auto& transport = *static_cast<UcxTransport*>(self);
  Frame frame;
  const bool whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 &&
                     parse(bytes, bytes_size, &frame) && frame.from < transport.peers_.size();
  Peer* const peer = whole ? &transport.peers_[frame.from] : nullptr;
  if (peer == nullptr || peer->token_in == 0 || frame.token != peer->token_in) {
    if (!std::exchange(transport.strangers_, true)) {
      transport.log_.warn("ucx: a message from outside of the communicator was thrown away");
    }
    return UCS_OK;
  }
  peer->received++;
  if (peer->endpoint == nullptr || transport.arrived(*peer, frame, static_cast<std::byte*>(data), size)) {
    return UCS_OK;
  }
  transport.lose(*peer, Status::error(Code::kPeerFailed, cat("rank ", peer->rank, " broke the rules of ucx"),
                                      Evidence::kConnection)
                            .with_ranks({peer->rank}));
  return UCS_OK;
}

bool UcxTransport::arrived(Peer& peer, const Header& header, const std::byte* data, uint64_t size) {
  if (size != (header.offer == 0 ? header.size : 0)) return false;
  const MessageTag tag = header.tag();
  const auto it = std::find_if(peer.posted.begin(), peer.posted.end(), [&](const Posted& posted) {
    return !posted.is_send && !posted.going && posted.tag == tag;
  });
  if (it == peer.posted.end()) return keep(peer, header, data);
  take(*it, header, data);
  return true;
}

bool UcxTransport::keep(Peer& peer, const Header& header, const std::byte* data) {
  const bool eager = header.offer == 0;
  if (peer.arrived.size() >= kMostArrived) return false;
  if (eager && (header.size > kWindowBytes || peer.arrived_bytes + cost(header.size) > kWindowBytes)) {
    return false;
  }
  if (unused_arrived_.empty()) unused_arrived_.emplace_back();
  peer.arrived.splice(peer.arrived.end(), unused_arrived_, unused_arrived_.begin());
  Arrived& arrived = peer.arrived.back();
  arrived.header = header;
  arrived.data.clear();
  if (!eager) return true;
  peer.arrived_bytes += cost(header.size);
  if (header.size > 0) arrived.data.assign(data, data + header.size);
  return true;
}

bool UcxTransport::arrived(Peer& peer, const Fragment& fragment, const std::byte* data, uint64_t size) {
  const auto it = std::find_if(peer.posted.begin(), peer.posted.end(), [&](const Posted& posted) {
    return !posted.is_send && posted.going && posted.name == fragment.receive;
  });
  if (it == peer.posted.end()) return true;  // nobody wants it any more
  Posted& receive = *it;
  if (fragment.offset != receive.moved || size > receive.size - receive.moved) return false;
  std::memcpy(receive.target + receive.moved, data, size);
  receive.moved += size;
  advanced_ = true;
  if (receive.moved == receive.size) retire(receive, {});
  return true;
}

bool UcxTransport::arrived(Peer& peer, const Note& note, const std::byte* /*data*/, uint64_t size) {
  advanced_ = true;
  if (size != 0) return false;
  if (note.kind == NoteKind::kHello) peer.hello = true;
  if (note.kind == NoteKind::kReady) peer.ready = true;
  if (note.kind == NoteKind::kCredit) {
    peer.may_send = std::min(kWindowBytes, peer.may_send + std::min(note.first, kWindowBytes));
  }
  if (note.kind != NoteKind::kGo) return true;
  const auto it = std::find_if(peer.posted.begin(), peer.posted.end(), [&](const Posted& posted) {
    return posted.is_send && !posted.going && posted.name == note.first;
  });
  if (it == peer.posted.end()) return true;  // taken back
  it->going = true;
  it->other_name = note.second;
  if (it->size > 0) streams_++;
  finish_if_done(*it);
  return true;
}

template <class Frame>
void UcxTransport::on_sent(void* request, ucs_status_t status, void* data) {
  auto& flight = *static_cast<Flight<Frame>*>(data);
  Posted& send = *flight.posted;
  ucp_request_free(request);
  flight.busy = false;
  send.in_flight--;
  if (status != UCS_OK) {
    send.refused = true;
    send.transport->lose(*send.peer, broke(*send.peer, status));
  }
  send.transport->finish_if_done(send);
}

void UcxTransport::on_told(void* request, ucs_status_t /*status*/, void* told) {
  static_cast<Told*>(told)->done = true;
  ucp_request_free(request);
}

void UcxTransport::on_error(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto& transport = *static_cast<UcxTransport*>(self);
  for (Peer& peer : transport.peers_) {
    if (peer.endpoint == endpoint) transport.lose(peer, broke(peer, status));
  }
}

}  // namespace weft::ucx
