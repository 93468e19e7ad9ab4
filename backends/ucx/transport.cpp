#include "transport.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "base/text.h"

namespace weft::ucx {
namespace {

// Calls of UCX in one progress(), and pieces of one message that it is given: a bounded amount of work.
constexpr int kProgressRounds = 16;
constexpr int kStreamPieces = 16;
// What an endpoint is given in one piece: what fits into one segment of its transport, so that neither side
// of UCX takes it apart. UCX's segments are of 8 KiB, headers included, but for TCP.
constexpr uint64_t kPieceBytes = 8 * 1024 - 256;
constexpr uint64_t kTcpPieceBytes = 64 * 1024 - 1024;
// Over TCP to ask first costs about as much as to send this much; in shared memory next to nothing.
constexpr uint64_t kTcpEagerBytes = 512 * 1024;
// How long UCX may take to let go of a buffer after its endpoint was closed by force.
constexpr int64_t kDrainMs = 2000;

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
  peer.piece_bytes = tcp ? kTcpPieceBytes : kPieceBytes;
  peer.eager_bytes = tcp ? kTcpEagerBytes : kPieceBytes;
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
  const bool eager = size <= peer.eager_bytes && cost(size) <= peer.may_send;
  if (eager) peer.may_send -= cost(size);
  send.going = eager;
  send.offered = !eager;
  send.other_name = send.name;
  send.moved = eager ? std::min(size, peer.piece_bytes) : 0;
  send.first.frame = {peer.token_out, tag.slot, size,         send.name, static_cast<uint32_t>(rank_),
                      tag.lane,       tag.step, send.offered, descriptor};
  const Speaking speaking(log_);
  fly(send.first, kMessageId, data, send.moved);
  if (!eager || send.moved == size) return finish_if_done(send);
  streams_++;
  stream(send);
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
  void* const answer =
      ucp_am_send_nbx(send.peer->endpoint, id, &flight.frame, sizeof flight.frame, data, size, &param);
  if (UCS_PTR_IS_PTR(answer)) {
    flight.busy = true;
    send.in_flight++;
  } else if (UCS_PTR_STATUS(answer) != UCS_OK) {
    send.refused = true;
    lose(*send.peer, broke(*send.peer, UCS_PTR_STATUS(answer)));
  }
}

// Give UCX more pieces of a message, up to kDepth at a time.
bool UcxTransport::stream(Posted& send) {
  bool any = false;
  for (int pieces = 0; pieces < kStreamPieces && send.moved < send.size && !send.peer->broken; pieces++) {
    const auto part = std::find_if(send.parts.begin(), send.parts.end(),
                                   [](const Flight<Fragment>& flight) { return !flight.busy; });
    if (part == send.parts.end()) break;
    const uint64_t size = std::min(send.peer->piece_bytes, send.size - send.moved);
    part->frame = {send.peer->token_out, send.other_name, send.moved, static_cast<uint32_t>(rank_),
                   send.offered};
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
  ucp_ep* const endpoint = std::exchange(peer.endpoint, nullptr);
  if (endpoint == nullptr) return;
  lose(peer, closed());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* const closing = ucp_ep_close_nbx(endpoint, &param);
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
  void* const request = ucp_worker_flush_nbx(worker_.get(), &param);
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
  void* const answer =
      ucp_am_send_nbx(peer.endpoint, kNoteId, &told.note, sizeof told.note, nullptr, 0, &param);
  if (!UCS_PTR_IS_PTR(answer)) told.done = true;
}

// ---- called by UCX, from inside ucp_worker_progress
// --------------------------------------------------------

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
