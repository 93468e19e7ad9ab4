#include "framed/custom_link.h"

#include <cstring>
#include <utility>

#include "base/text.h"
#include "framed/handshake_info.h"
#include "framed/transport.h"
#include "framed/wire.h"

namespace weft::framed {
namespace {

static_assert(kMostHeadBytes <= WEFT_TRANSPORT_HEAD);
static_assert(kMostAddressBytes == WEFT_TRANSPORT_ADDRESS);
constexpr uint64_t kPieceBytes = 64 * 1024;
constexpr uint64_t kLeastPieceBytes = 1024;
constexpr uint64_t kMostPieceBytes = uint64_t{1} << 30;
constexpr uint64_t kEagerBytes = 512 * 1024;
static_assert(kEagerBytes < kWindowBytes);
constexpr size_t kMostReason = 256;

}  // namespace

CustomLink::CustomLink(const weft_transport& table, int rank, int size, Log& log)
    : table_(table), rank_(rank), size_(size), log_(log) {}

template <class Call>
auto CustomLink::inside(Inside where, Call&& call) {
  thread_ = std::this_thread::get_id();
  const Inside around = inside_.exchange(where);  // nested: events_->on_frame() may call send()
  const auto result = call();
  inside_ = around;
  carried_.rethrow();
  return result;
}

Status CustomLink::open(LinkEvents& events, Bytes* address) {
  events_ = &events;
  event_table_.struct_size = sizeof event_table_;
  event_table_.owner = this;
  event_table_.heard = on_heard;
  event_table_.sent = on_sent;
  event_table_.lost = on_lost;
  address->resize(kMostAddressBytes);
  uint64_t size = address->size();
  const weft_status status = inside(Inside::kOpen, [&] {
    return table_.open(table_.user_data, rank_, size_, &event_table_, &link_, address->data(), &size);
  });
  if (status != WEFT_OK) {
    return Status::error(Code::kUnavailable, cat("transport \"", table_.name, "\": open failed with ",
                                                 weft_status_string(status)));
  }
  open_ = true;
  if (size == 0 || size > address->size()) {
    return Status::error(Code::kUnavailable,
                         cat("transport \"", table_.name, "\": open returned an address of ", size,
                             " bytes, allowed: 1 to ", address->size()));
  }
  address->resize(size);
  return {};
}

Status CustomLink::connect(int peer, ByteView address, LinkLimits* limits) {
  weft_transport_limits said{};
  said.struct_size = sizeof said;
  said.piece_bytes = kPieceBytes;
  said.eager_bytes = kEagerBytes;
  const weft_status status = inside(
      Inside::kConnect, [&] { return table_.connect(link_, peer, address.data(), address.size(), &said); });
  if (status != WEFT_OK) {
    return Status::error(Code::kUnavailable, cat("transport \"", table_.name, "\" does not reach rank ", peer,
                                                 ": connect failed with ", weft_status_string(status)))
        .with_ranks({peer});
  }
  if (said.piece_bytes < kLeastPieceBytes || said.piece_bytes > kMostPieceBytes ||
      said.eager_bytes > kEagerBytes) {
    return Status::error(
        Code::kUnavailable,
        cat("transport \"", table_.name, "\": connect returned limits out of range: piece_bytes is ",
            said.piece_bytes, " (allowed: ", kLeastPieceBytes, " to ", kMostPieceBytes, "), eager_bytes is ",
            said.eager_bytes, " (allowed: up to ", kEagerBytes, ")"));
  }
  *limits = {said.piece_bytes, said.eager_bytes};
  return {};
}

bool CustomLink::send(int peer, ByteView head, ByteView data, InFlightFrame& frame) {
  if (!open_ || misbehaved_) return false;
  frame.busy = true;
  frame.peer = peer;
  const uint64_t token = issue_token(frame);
  const int32_t result = inside(Inside::kSend, [&] {
    return table_.send(link_, peer, head.data(), head.size(), data.empty() ? nullptr : data.data(),
                       data.size(), token);
  });
  if (result == WEFT_TRANSPORT_LENT) return true;
  const bool known = redeem_token(token) != nullptr;
  frame.busy = false;
  if (result == WEFT_TRANSPORT_SENT && known) return false;
  if (!known) {
    misbehaved("called sent for a frame and did not return WEFT_TRANSPORT_LENT from send");
    return true;  // events_->sent() has completed the frame
  }
  if (result != WEFT_TRANSPORT_LOST)
    misbehaved(cat("returned ", result,
                   " from send, expected WEFT_TRANSPORT_SENT, WEFT_TRANSPORT_LENT or WEFT_TRANSPORT_LOST"));
  events_->lost(peer, lost_status(peer, nullptr));
  return false;
}

bool CustomLink::progress() {
  return open_ && !misbehaved_ && inside(Inside::kProgress, [&] { return table_.progress(link_); }) != 0;
}

void CustomLink::close(int peer) {
  if (!open_) return;
  inside(Inside::kClosePeer, [&] {
    table_.close_peer(link_, peer);
    return 0;
  });
}

void CustomLink::stop() {
  if (!std::exchange(open_, false)) return;
  table_.close(std::exchange(link_, nullptr));
}

bool CustomLink::settled() {
  if (!open_ || misbehaved_ || table_.settled == nullptr) return true;
  return inside(Inside::kSettled, [&] { return table_.settled(link_); }) != 0;
}

std::string CustomLink::path(int peer) const {
  const char* const said = table_.path == nullptr || !open_ ? nullptr : table_.path(link_, peer);
  return said == nullptr ? table_.name : std::string(said, strnlen(said, kMostReason));
}

std::string CustomLink::about() const {
  return "the program's own transport";
}

uint64_t CustomLink::issue_token(InFlightFrame& frame) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(tokens_.size()));
    tokens_.emplace_back();
  }
  const uint32_t place = free_.back();
  free_.pop_back();
  tokens_[place].frame = &frame;
  return uint64_t{tokens_[place].generation} << 32 | place;
}

InFlightFrame* CustomLink::redeem_token(uint64_t token) {
  const uint64_t place = token & UINT32_MAX;
  if (place >= tokens_.size() || tokens_[place].generation != token >> 32) return nullptr;
  InFlightFrame* const frame = std::exchange(tokens_[place].frame, nullptr);
  if (frame == nullptr) return nullptr;
  tokens_[place].generation++;
  free_.push_back(static_cast<uint32_t>(place));
  return frame;
}

Status CustomLink::lost_status(int peer, const char* reason) const {
  const std::string why =
      reason == nullptr ? "" : cat(": ", std::string(reason, strnlen(reason, kMostReason)));
  return Status::error(Code::kPeerFailed, cat("transport \"", table_.name, "\" has lost rank ", peer, why),
                       Evidence::kConnection)
      .with_ranks({peer});
}

void CustomLink::misbehaved(const std::string& how) {
  if (std::exchange(misbehaved_, true)) return;
  const std::string text = cat("transport \"", table_.name, "\" ", how);
  log_.error(text);
  for (int r = 0; r < size_; r++) {
    if (r == rank_) continue;
    events_->lost(r, Status::error(Code::kPeerFailed, text, Evidence::kLocal).with_ranks({r}));
  }
}

// Returns true if an event may be processed. An event on another thread is only logged, because that thread
// must not access the link. An event at the wrong time loses all peers.
bool CustomLink::may_call_back(bool allowed, const char* what) {
  if (std::this_thread::get_id() != thread_) {
    log_.error(cat("transport \"", table_.name, "\" called ", what,
                   " on another thread than the one that Weft calls the transport on; the call is ignored"));
    return false;
  }
  if (!allowed)
    misbehaved(cat("called ", what, " outside of the functions that may call it (see weft_transport.h)"));
  return allowed && !misbehaved_;
}

// Runs the body of an event. inside() rethrows an exception of the body after the program's C function has
// returned. On any other thread the exception is discarded here.
template <class Call>
void CustomLink::called_back(Call&& call) {
  if (std::this_thread::get_id() == thread_) return carried_.run(call);
  (void)guarded_run(call).ok();
}

void CustomLink::on_heard(void* self, const void* frame, uint64_t size) {
  auto& link = *static_cast<CustomLink*>(self);
  link.called_back([&] {
    if (!link.may_call_back(link.inside_ == Inside::kProgress, "heard")) return;
    if (frame == nullptr && size > 0)
      return link.misbehaved(cat("called heard with frame NULL and size ", size));
    const ByteView bytes(static_cast<const std::byte*>(frame), size);
    const ByteView head = head_of(bytes);
    link.events_->on_frame(head, bytes.subspan(head.size()));
  });
}

void CustomLink::on_sent(void* self, uint64_t token, weft_status status) {
  auto& link = *static_cast<CustomLink*>(self);
  link.called_back([&] {
    const bool now = link.inside_ == Inside::kSend || link.inside_ == Inside::kProgress ||
                     link.inside_ == Inside::kClosePeer;
    if (std::this_thread::get_id() != link.thread_) return void(link.may_call_back(now, "sent"));
    InFlightFrame* const frame = link.redeem_token(token);
    if (frame == nullptr)
      return link.misbehaved("called sent twice for a frame, or with a token that send was not given");
    // Completes the frame even if the event is at the wrong time, because the table no longer reads its
    // memory.
    link.events_->sent(*frame, status == WEFT_OK ? Status() : link.lost_status(frame->peer, nullptr));
    link.may_call_back(now, "sent");
  });
}

void CustomLink::on_lost(void* self, int32_t peer, const char* reason) {
  auto& link = *static_cast<CustomLink*>(self);
  link.called_back([&] {
    if (!link.may_call_back(link.inside_ == Inside::kSend || link.inside_ == Inside::kProgress, "lost"))
      return;
    if (peer < 0 || peer >= link.size_ || peer == link.rank_) {
      return link.misbehaved(cat("called lost with peer ", peer, ", expected another rank than ", link.rank_,
                                 " from 0 to ", link.size_ - 1));
    }
    link.events_->lost(peer, link.lost_status(peer, reason));
  });
}

}  // namespace weft::framed
