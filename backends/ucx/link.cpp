#include "link.h"

#include <utility>

#include "base/text.h"

namespace weft::ucx {
namespace {

constexpr unsigned kFrameId = 0;  // of Weft's active messages
// The most bytes that an endpoint sends in one piece. A piece fits into one segment of its transport, so
// neither side of UCX splits it. UCX's segments have 8 KiB, headers included, except for TCP.
constexpr uint64_t kPieceBytes = 8 * 1024 - 256;
constexpr uint64_t kTcpPieceBytes = 64 * 1024 - 1024;
// Over TCP an offer costs about as much as sending this many bytes; in shared memory it costs next to
// nothing.
constexpr uint64_t kTcpEagerBytes = 512 * 1024;
// Time for UCX to close its endpoints.
constexpr int64_t kCloseMs = 2000;

}  // namespace

UcxLink::UcxLink(int size, Clock& clock, Log& log)
    : clock_(clock), log_(log), endpoints_(static_cast<size_t>(size)) {}

UcxLink::~UcxLink() {
  const LogScope log_scope(log_);
  for (size_t r = 0; r < endpoints_.size(); r++) close(static_cast<int>(r));
  if (flushing_ != nullptr) closing_.push_back(flushing_);
  const Deadline deadline = Deadline::after(clock_, kCloseMs, 0);
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

Status UcxLink::open(framed::LinkEvents& events, Bytes* address) {
  const LogScope log_scope(log_);
  events_ = &events;
  WEFT_TRY(open_context(static_cast<int>(endpoints_.size()), &context_));
  WEFT_TRY(open_worker(context_.get(), &worker_));
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = kFrameId;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = on_frame;
  param.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &param);
  if (status != UCS_OK) return failed("UCX cannot register the handler of active messages", status);
  return address_of(worker_.get(), address);
}

Status UcxLink::connect(int peer, ByteView address, framed::LinkLimits* limits) {
  const LogScope log_scope(log_);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = this;
  ucp_ep_h& endpoint = endpoints_[static_cast<size_t>(peer)];
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &endpoint);
  if (status != UCS_OK) {
    endpoint = nullptr;
    return failed(cat("UCX does not reach rank ", peer), status).with_ranks({peer});
  }
  const bool tcp = transports(endpoint).find("tcp/") != std::string::npos;
  limits->piece_bytes = tcp ? kTcpPieceBytes : kPieceBytes;
  limits->eager_bytes = tcp ? kTcpEagerBytes : kPieceBytes;
  return {};
}

bool UcxLink::send(int peer, ByteView head, ByteView data, framed::InFlightFrame& frame) {
  const LogScope log_scope(log_);
  frame.peer = peer;
  frame.link = this;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = on_sent;
  param.user_data = &frame;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;  // saves UCX from detecting it
  unsettled_ = true;
  void* const answer = ucp_am_send_nbx(endpoints_[static_cast<size_t>(peer)], kFrameId, head.data(),
                                       head.size(), data.data(), data.size(), &param);
  frame.busy = UCS_PTR_IS_PTR(answer);
  if (!frame.busy && UCS_PTR_STATUS(answer) != UCS_OK) {
    events_->lost(peer, broke(peer, UCS_PTR_STATUS(answer)));
  }
  return frame.busy;
}

bool UcxLink::progress() {
  const LogScope log_scope(log_);
  const bool any = worker_ && ucp_worker_progress(worker_.get()) != 0;
  carried_.rethrow();
  return any;
}

void UcxLink::close(int peer) {
  ucp_ep* const endpoint = std::exchange(endpoints_[static_cast<size_t>(peer)], nullptr);
  if (endpoint == nullptr) return;
  const LogScope log_scope(log_);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* const closing = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(closing)) closing_.push_back(closing);
}

void UcxLink::stop() {
  const LogScope log_scope(log_);
  for (ucp_ep_h& endpoint : endpoints_) endpoint = nullptr;
  flushing_ = nullptr;
  closing_.clear();
  worker_.reset();
}

// UCX reports a small message as sent once it has copied it. A full socket or ring may still hold it back.
bool UcxLink::settled() {
  if ((!unsettled_ && flushing_ == nullptr) || !worker_) return true;
  const LogScope log_scope(log_);
  if (flushing_ != nullptr) {
    ucp_worker_progress(worker_.get());
    if (ucp_request_check_status(flushing_) == UCS_INPROGRESS) return false;
    ucp_request_free(std::exchange(flushing_, nullptr));
    if (!unsettled_) return true;
  }
  unsettled_ = false;
  const ucp_request_param_t param{};
  void* const request = ucp_worker_flush_nbx(worker_.get(), &param);
  // A failed flush means that an endpoint has failed, which is reported separately.
  if (UCS_PTR_IS_PTR(request)) flushing_ = request;
  return flushing_ == nullptr;
}

std::string UcxLink::path(int peer) const {
  return transports(endpoints_[static_cast<size_t>(peer)]);
}

Status UcxLink::broke(int peer, ucs_status_t status) const {
  return Status::error(Code::kPeerFailed,
                       cat("the connection to rank ", peer, " broke (UCX: ", ucs_status_string(status), ")"),
                       Evidence::kConnection)
      .with_ranks({peer});
}

// ---- called by UCX, from inside ucp_worker_progress
// --------------------------------------------------------

ucs_status_t UcxLink::on_frame(void* self, const void* head, size_t head_size, void* data, size_t size,
                               const ucp_am_recv_param_t* param) {
  // A rendezvous of UCX, which no member of the group starts, brings no data.
  const bool whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  auto& link = *static_cast<UcxLink*>(self);
  link.carried_.run([&] {
    link.events_->on_frame(ByteView(static_cast<const std::byte*>(head), whole ? head_size : 0),
                           ByteView(static_cast<const std::byte*>(data), whole ? size : 0));
  });
  return UCS_OK;
}

void UcxLink::on_sent(void* request, ucs_status_t status, void* data) {
  auto& frame = *static_cast<framed::InFlightFrame*>(data);
  ucp_request_free(request);
  auto& link = static_cast<UcxLink&>(*frame.link);
  link.carried_.run(
      [&] { link.events_->sent(frame, status == UCS_OK ? Status() : link.broke(frame.peer, status)); });
}

void UcxLink::on_error(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto& link = *static_cast<UcxLink*>(self);
  link.carried_.run([&] {
    for (size_t r = 0; r < link.endpoints_.size(); r++) {
      const int peer = static_cast<int>(r);
      if (link.endpoints_[r] == endpoint) link.events_->lost(peer, link.broke(peer, status));
    }
  });
}

}  // namespace weft::ucx
