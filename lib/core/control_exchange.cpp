#include "core/control_exchange.h"

#include <algorithm>

#include "base/text.h"

namespace weft {

void Postbox::on_message(int rank, ByteReader& message) {
  const auto id = message.get<uint32_t>();
  const auto round = message.get<uint32_t>();
  const ByteView bytes = message.get_bytes(Exchange::kMaxBytes);
  if (!message.done()) return;
  const std::lock_guard lock(mutex_);
  if (inbox_.size() < kMost) inbox_[{id, round}][rank] = Bytes(bytes.begin(), bytes.end());
}

int ControlExchange::rank() const {
  const std::vector<int>& members = options_.members;
  return static_cast<int>(std::find(members.begin(), members.end(), options_.self) - members.begin());
}

Status ControlExchange::check() {
  control_.poll();
  return options_.broken();
}

Status ControlExchange::all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) {
  if (mine.size() > kMaxBytes - 64) return Status::error(Code::kInternal, "exchange of too many bytes");
  const uint32_t round = round_++;
  ByteWriter message;
  message.put(options_.kind).put(options_.id).put(round).put_bytes(mine);
  for (const int r : options_.members) {
    if (r != options_.self) control_.send(r, message.bytes());
  }
  const Postbox::Key key{options_.id, round};
  if (round == 0) {
    // Exchanges of a channel follow each other: what came too late for one that is over is for nobody.
    const std::lock_guard lock(postbox_.mutex_);
    postbox_.inbox_.erase(postbox_.inbox_.begin(), postbox_.inbox_.lower_bound(key));
  }
  Status broken;
  const auto arrived = [&] {
    {
      control_.poll();
      const std::lock_guard lock(postbox_.mutex_);
      const std::map<int, Bytes>& received = postbox_.inbox_[key];
      const auto came = [&](int r) { return r == options_.self || received.contains(r); };
      if (std::all_of(options_.members.begin(), options_.members.end(), came)) return true;
    }
    broken = options_.broken();
    return !broken.ok();
  };
  const bool complete = engine_.wait(arrived, deadline);
  const std::lock_guard lock(postbox_.mutex_);
  if (!broken.ok()) {
    postbox_.inbox_.erase(key);
    return broken;
  }
  std::map<int, Bytes>& received = postbox_.inbox_[key];
  all->clear();
  std::vector<int> absent;
  for (const int r : options_.members) {
    if (r != options_.self && !received.contains(r)) absent.push_back(r);
    all->push_back(r == options_.self ? Bytes(mine.begin(), mine.end()) : std::move(received[r]));
  }
  postbox_.inbox_.erase(key);
  if (complete) return {};
  return Status::error(Code::kTimeout,
                       cat("forming a communicator: rank ", list_text(absent), " did not come"),
                       Evidence::kDeadline)
      .with_ranks(absent);
}

}  // namespace weft
