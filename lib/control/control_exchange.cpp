#include "control/control_exchange.h"

#include <algorithm>

#include "base/text.h"
#include "transport/result.h"

namespace weft {

// ---- received messages ---------------------------------------------------------------------------------

void Postbox::on_message(int rank, ByteReader& message) {
  const auto id = message.get<uint32_t>();
  const auto round = message.get<uint32_t>();
  const ByteView bytes = message.get_bytes(Exchange::kMaxBytes);
  if (!message.done()) return;
  const std::lock_guard lock(mutex_);
  size_t& held = held_[rank];
  if (held + bytes.size() + kEntryBytes > kMostBytes) return;
  if (inbox_[{id, round}].try_emplace(rank, bytes.begin(), bytes.end()).second) {
    held += bytes.size() + kEntryBytes;
  }
}

size_t Postbox::held_bytes() {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [rank, held] : held_) bytes += held;
  return bytes;
}

Postbox::Received Postbox::take(const Key& key) {
  const auto node = inbox_.extract(key);
  if (node.empty()) return {};
  for (const auto& [rank, bytes] : node.mapped()) held_[rank] -= bytes.size() + kEntryBytes;
  return std::move(node.mapped());
}

void Postbox::forget(const Key& first, const Key& last) {
  const std::lock_guard lock(mutex_);
  for (auto it = inbox_.lower_bound(first); it != inbox_.end() && it->first <= last;) {
    const Key key = (it++)->first;
    take(key);
  }
}

// ---- the exchange --------------------------------------------------------------------------------------

ControlExchange::~ControlExchange() {
  postbox_.forget({options_.id, 0}, {options_.id, Postbox::kFailed});
}

int ControlExchange::rank() const {
  const std::vector<int>& members = options_.members;
  return static_cast<int>(std::find(members.begin(), members.end(), options_.self) - members.begin());
}

int ControlExchange::name(int rank) const {
  const std::vector<int>& names = options_.names.empty() ? options_.members : options_.names;
  return names[static_cast<size_t>(rank)];
}

void ControlExchange::send_all(uint32_t round, ByteView bytes) {
  ByteWriter message;
  message.put(options_.kind).put(options_.id).put(round).put_bytes(bytes);
  for (const int r : options_.members) {
    if (r != options_.self) control_.send(r, message.bytes());
  }
}

bool ControlExchange::all_came(uint32_t round) {
  const std::lock_guard lock(postbox_.mutex_);
  const auto received = postbox_.inbox_.find({options_.id, round});
  return std::all_of(options_.members.begin(), options_.members.end(), [&](int r) {
    return r == options_.self || (received != postbox_.inbox_.end() && received->second.contains(r));
  });
}

Status ControlExchange::all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) {
  if (mine.size() > kMaxBytes - 64)
    return Status::error(Code::kInternal,
                         cat("internal: group setup exchanges ", mine.size(), " bytes, at most ",
                             kMaxBytes - 64, " are allowed; report this as a bug of Weft"));
  WEFT_TRY(failure_);
  const uint32_t round = round_++;
  // Exchanges on a channel follow each other: late messages for earlier ones are dropped.
  if (round == 0 && options_.id > 0) postbox_.forget({0, 0}, {options_.id - 1, Postbox::kFailed});
  send_all(round, mine);
  bool complete = false;
  const auto over = [&] {
    control_.poll();
    // A complete round is a success, whatever has failed since.
    complete = all_came(round);
    return complete || !news().ok();
  };
  engine_.wait(over, deadline);
  WEFT_TRY(complete ? Status() : failure_);
  WEFT_TRY(complete ? Status() : Interrupt::status());
  Postbox::Received received;
  {
    const std::lock_guard lock(postbox_.mutex_);
    received = postbox_.take({options_.id, round});
  }
  all->clear();
  std::vector<int> absent;
  for (int r = 0; r < size(); r++) {
    const int member = options_.members[static_cast<size_t>(r)];
    if (member != options_.self && !received.contains(member)) absent.push_back(name(r));
    all->push_back(member == options_.self ? Bytes(mine.begin(), mine.end()) : std::move(received[member]));
  }
  if (absent.empty()) return {};
  std::sort(absent.begin(), absent.end());
  fail(Status::error(Code::kTimeout,
                     cat("creating a communicator: rank ", list_text(absent),
                         " did not take part before the deadline; check that every rank makes the call"),
                     Evidence::kDeadline)
           .with_ranks(absent));
  return failure_;
}

// ---- failures ------------------------------------------------------------------------------------------

Status ControlExchange::news() {
  control_.poll();
  if (!failure_.ok()) return failure_;
  // A rank that has reported its failure may have left since.
  failure_ = reported_failure();
  if (failure_.ok()) fail(options_.broken());
  return failure_;
}

void ControlExchange::fail(const Status& why) {
  if (why.ok() || !failure_.ok()) return;
  // The root cause takes precedence over its consequence on this rank.
  const Status broken = options_.broken();
  failure_ = broken.ok() ? why : broken;
  std::vector<int> ranks;
  for (int r = 0; r < size(); r++) {
    const std::vector<int>& named = failure_.info().ranks;
    if (std::find(named.begin(), named.end(), name(r)) != named.end()) ranks.push_back(r);
  }
  send_all(Postbox::kFailed, encode_result(failure_.with_ranks(ranks)));
}

// Returns the failure that another member has reported.
Status ControlExchange::reported_failure() {
  const std::lock_guard lock(postbox_.mutex_);
  const auto received = postbox_.inbox_.find({options_.id, Postbox::kFailed});
  for (int r = 0; received != postbox_.inbox_.end() && r < size(); r++) {
    const auto theirs = received->second.find(options_.members[static_cast<size_t>(r)]);
    Status why;
    if (theirs == received->second.end() || !decode_result(theirs->second, size(), &why) || why.ok())
      continue;
    std::vector<int> ranks;
    for (const int at : why.info().ranks) ranks.push_back(name(at));
    if (ranks.empty()) ranks.push_back(name(r));
    std::sort(ranks.begin(), ranks.end());
    const char* const says = ranks == std::vector<int>{name(r)} ? ": " : " reports: ";
    return Status::error(why.code(), cat("rank ", name(r), says, why.text()), Evidence::kReport)
        .with_ranks(ranks);
  }
  return {};
}

}  // namespace weft
