#include "comm/lane_messages.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "comm/comm.h"

namespace weft {
namespace {

enum class MessageKind : uint8_t { kNote = 1, kConfirmed = 2 };

}  // namespace

void LaneMessages::listen(uint32_t lane, std::shared_ptr<LaneMessageListener> listener) {
  const std::lock_guard lock(mutex_);
  listeners_[lane] = std::move(listener);
}

void LaneMessages::ignore(uint32_t lane) {
  const std::lock_guard lock(mutex_);
  listeners_.erase(lane);
}

Status LaneMessages::send(uint32_t lane, ByteView note, Deadline deadline) {
  if (note.size() > kMaxBytes)
    return Status::error(Code::kInternal,
                         cat("internal: a control note has ", note.size(), " bytes, at most ", kMaxBytes,
                             " are allowed; report this as a bug of Weft"));
  uint32_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
    confirmed_[id].resize(static_cast<size_t>(comm_.size()));
  }
  ByteWriter message;
  message.put(kMessage).put(MessageKind::kNote).put(id).put(lane).put_bytes(note);
  for (int r = 0; r < comm_.size(); r++) {
    if (r != comm_.rank()) comm_.control().send(r, message.bytes());
  }
  const auto over = [&] {
    comm_.control().poll();
    return comm_.failed() || awaited(id).empty();
  };
  comm_.context().engine().wait(over, deadline);
  const std::vector<int> missing = awaited(id);
  {
    const std::lock_guard lock(mutex_);
    confirmed_.erase(id);
  }
  if (missing.empty()) return {};
  if (comm_.failed()) return comm_.failure();
  return Status::error(Code::kTimeout,
                       cat("rank ", list_text(missing), " did not confirm a control message of rank ",
                           comm_.rank(), " in time"),
                       Evidence::kDeadline)
      .with_ranks(missing);
}

std::vector<int> LaneMessages::awaited(uint32_t id) {
  const std::lock_guard lock(mutex_);
  const std::vector<bool>& confirmed = confirmed_[id];
  std::vector<int> ranks;
  for (int r = 0; r < comm_.size(); r++) {
    if (r != comm_.rank() && !confirmed[static_cast<size_t>(r)] && !comm_.departed(r)) ranks.push_back(r);
  }
  return ranks;
}

void LaneMessages::on_message(int rank, ByteReader& message) {
  const auto what = message.get<MessageKind>();
  const auto id = message.get<uint32_t>();
  if (what == MessageKind::kConfirmed && message.done()) {
    const std::lock_guard lock(mutex_);
    const auto found = confirmed_.find(id);
    if (found == confirmed_.end()) return;
    found->second[static_cast<size_t>(rank)] = true;
    comm_.context().engine().notify();
  }
  if (what != MessageKind::kNote) return;
  const auto lane = message.get<uint32_t>();
  const ByteView note = message.get_bytes(kMaxBytes);
  if (!message.done()) return;
  deliver(lane, rank, note);
  ByteWriter answer;
  answer.put(kMessage).put(MessageKind::kConfirmed).put(id);
  comm_.control().send(rank, answer.bytes());
}

void LaneMessages::deliver(uint32_t lane, int rank, ByteView note) {
  std::shared_ptr<LaneMessageListener> listener;
  {
    const std::lock_guard lock(mutex_);
    const auto found = listeners_.find(lane);
    if (found == listeners_.end()) return;
    listener = found->second;
  }
  listener->on_lane_message(rank, note);
}

}  // namespace weft
