#include "control/consensus.h"

#include <algorithm>

namespace weft {
namespace {

// A proposal number is a round and, in its low bits, the proposing rank: no two ranks use the same number.
constexpr int kRankBits = 20;
// Wait after a refusal, so that one of two competing proposers succeeds.
constexpr uint64_t kBackoffNs = 1'000'000;
// Wait of a proposer while the ranks have not lost the same ranks: a failure that one rank has noticed is
// usually noticed by the others a little later.
constexpr uint64_t kNewsNs = 500'000'000;
// Time for which an accused rank lets others propose first: longer than they wait for news.
constexpr uint64_t kGiveWayNs = 2 * kNewsNs;

bool contains(const std::vector<int>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

}  // namespace

// ---- what this rank knows ------------------------------------------------------------------------------

bool Consensus::is_member(int rank) const {
  return contains(members_, rank);
}

size_t Consensus::quorum() const {
  return last_of_two_ && members_.size() == 2 ? 1 : members_.size() / 2 + 1;
}

bool Consensus::minority() const {
  return !decided_ && left() < quorum();
}

std::vector<int> Consensus::awaited() const {
  std::vector<int> ranks;
  for (const int rank : members_) {
    if (!lost_.contains(rank) && !joined_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> Consensus::unanswered() const {
  std::vector<int> ranks;
  for (const int rank : members_) {
    if (phase_ != Phase::kIdle && !lost_.contains(rank) && !answers_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool Consensus::apart(int a, int b) const {
  return joined_.at(a).contains(b) || joined_.at(b).contains(a);
}

// Returns the members that joined and can reach each other. If two cannot reach each other, one of them is
// left out: the one with more accusers. If these are equal, the one that more members cannot reach is left
// out, so that one rank with bad links does not stop the majority; then the higher rank.
std::vector<int> Consensus::connected() const {
  struct Standing {
    size_t accusers, apart;
    int rank;
    auto operator<=>(const Standing&) const = default;
  };
  std::vector<Standing> order;
  for (const auto& [rank, its_lost] : joined_) {
    if (lost_.contains(rank)) continue;
    Standing standing{0, 0, rank};
    for (const auto& [other, accused] : accused_) standing.accusers += accused.contains(rank);
    for (const auto& [other, lost] : joined_) standing.apart += !lost_.contains(other) && apart(rank, other);
    order.push_back(standing);
  }
  std::sort(order.begin(), order.end());
  std::vector<int> ranks;
  for (const Standing& next : order) {
    const auto unreachable = [&](int other) { return apart(next.rank, other); };
    if (std::none_of(ranks.begin(), ranks.end(), unreachable)) ranks.push_back(next.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// ---- messages ------------------------------------------------------------------------------------------

bool Consensus::read(ByteReader& reader, Message* message) const {
  message->kind = reader.get<Kind>();
  message->number = reader.get<uint64_t>();
  message->accepted_number = reader.get<uint64_t>();
  return read_ranks(reader, &message->ranks) && read_ranks(reader, &message->accused) && reader.done();
}

bool Consensus::read_ranks(ByteReader& reader, std::vector<int>* ranks) const {
  const auto count = reader.get<uint32_t>();
  if (count > members_.size()) return false;
  for (uint32_t i = 0; i < count; i++) {
    const auto rank = reader.get<int32_t>();
    if (!is_member(rank) || (i > 0 && rank <= ranks->back())) return false;
    ranks->push_back(rank);
  }
  return reader.ok();
}

void Consensus::send(int to, const Message& message) {
  if (to == self_) return receive(self_, message);
  ByteWriter writer;
  writer.put(message.kind).put(message.number).put(message.accepted_number);
  for (const std::vector<int>* ranks : {&message.ranks, &message.accused}) {
    writer.put(static_cast<uint32_t>(ranks->size()));
    for (const int rank : *ranks) writer.put(static_cast<int32_t>(rank));
  }
  out_.emplace_back(to, writer.take());
}

void Consensus::send_all(const Message& message) {
  for (const int rank : members_) {
    if (rank != self_) send(rank, message);
  }
  if (message.kind != Kind::kDecided) receive(self_, message);
}

void Consensus::on_message(int from, ByteReader& reader) {
  Message message;
  if (is_member(from) && from != self_ && read(reader, &message)) receive(from, message);
}

void Consensus::receive(int from, const Message& message) {
  highest_ = std::max(highest_, message.number);
  if (message.kind == Kind::kDecided) return decide(message.ranks);
  if (decided_) {
    // A rank that still asks has not received the decision. Answers to a proposal do not ask for anything.
    const bool asks =
        message.kind == Kind::kJoin || message.kind == Kind::kPrepare || message.kind == Kind::kAccept;
    if (asks && from != self_) send(from, {Kind::kDecided, 0, 0, decision_});
    return;
  }
  switch (message.kind) {
    case Kind::kJoin:
      joined_[from] = std::set<int>(message.ranks.begin(), message.ranks.end());
      accused_[from] = std::set<int>(message.accused.begin(), message.accused.end());
      return;
    case Kind::kPrepare:
      return on_prepare(from, message);
    case Kind::kPromise:
      return on_promise(from, message);
    case Kind::kAccept:
      return on_accept(from, message);
    case Kind::kAccepted:
      return on_accepted(from, message);
    case Kind::kRefuse:
      if (message.number > number_) phase_ = Phase::kIdle;
      return;
    case Kind::kDecided:
      return;
  }
}

// ---- deciding ------------------------------------------------------------------------------------------

void Consensus::join(bool last_of_two, const std::set<int>& accused) {
  last_of_two_ = last_of_two;
  for (const int rank : accused) {
    if (is_member(rank)) accused_[self_].insert(rank);
  }
  send_join();
}

void Consensus::send_join() {
  const std::set<int>& accused = accused_[self_];
  send_all({Kind::kJoin, 0, 0, {lost_.begin(), lost_.end()}, {accused.begin(), accused.end()}});
}

void Consensus::lose(int rank) {
  if (!is_member(rank) || rank == self_ || !lost_.insert(rank).second) return;
  // The last join message may be out of date: the ranks that this rank has lost affect the decision.
  if (joined_.contains(self_) && !decided_) send_join();
}

// Returns true if a surviving member has lost a member that this rank has not lost.
bool Consensus::views_differ() const {
  const auto news = [&](int rank) { return !lost_.contains(rank); };
  return std::any_of(joined_.begin(), joined_.end(), [&](const auto& joined) {
    return news(joined.first) && std::any_of(joined.second.begin(), joined.second.end(), news);
  });
}

// Returns true if a member accuses this rank and some member has not lost a rank that this rank has lost. The
// accuser may still be alive, and then continues with the others.
bool Consensus::gives_way() const {
  const auto speaks = [&](int rank) { return rank != self_ && !lost_.contains(rank); };
  const bool accused = std::any_of(accused_.begin(), accused_.end(), [&](const auto& by) {
    return speaks(by.first) && by.second.contains(self_);
  });
  return accused && std::any_of(joined_.begin(), joined_.end(), [&](const auto& joined) {
           return speaks(joined.first) &&
                  !std::includes(joined.second.begin(), joined.second.end(), lost_.begin(), lost_.end());
         });
}

void Consensus::advance(uint64_t now_ns) {
  if (decided_ || phase_ != Phase::kIdle || !joined_.contains(self_) || minority()) return;
  const auto alive = [&](int rank) { return !lost_.contains(rank); };
  if (!awaited().empty() || now_ns < not_before_ns_) return;
  candidates_ = connected();
  // Proposes only if it is the lowest of the candidates, or the lowest of all while that one does not
  // propose.
  const bool first = !candidates_.empty() && candidates_.front() == self_;
  if (!first && *std::find_if(members_.begin(), members_.end(), alive) != self_) return;
  const uint64_t wait_ns = !first || gives_way() ? kGiveWayNs : views_differ() ? kNewsNs : 0;
  differ_since_ns_ = wait_ns == 0 ? UINT64_MAX : std::min(differ_since_ns_, now_ns);
  if (wait_ns != 0 && now_ns - differ_since_ns_ < wait_ns) return;
  if (candidates_.size() < quorum()) {
    not_before_ns_ = now_ns + kBackoffNs;  // others may join, or may lose the ranks that prevent a majority
    return;
  }
  not_before_ns_ = now_ns + ++attempts_ * kBackoffNs;
  phase_ = Phase::kPreparing;
  number_ = ((highest_ >> kRankBits) + 1) << kRankBits | static_cast<uint64_t>(self_);
  best_number_ = 0;
  proposed_.clear();
  answers_.clear();
  send_all({Kind::kPrepare, number_, 0, {}});
}

void Consensus::on_prepare(int from, const Message& message) {
  if (message.number <= promised_) return send(from, {Kind::kRefuse, promised_, 0, {}});
  promised_ = message.number;
  send(from, {Kind::kPromise, message.number, accepted_number_, accepted_});
}

void Consensus::on_promise(int from, const Message& message) {
  if (phase_ != Phase::kPreparing || message.number != number_) return;
  answers_.insert(from);
  if (message.accepted_number > best_number_) {
    best_number_ = message.accepted_number;
    proposed_ = message.ranks;
  }
  if (answers_.size() < quorum()) return;
  // A value that a majority may have accepted already is proposed again.
  if (best_number_ == 0) proposed_ = candidates_;
  phase_ = Phase::kAccepting;
  answers_.clear();
  send_all({Kind::kAccept, number_, 0, proposed_});
}

void Consensus::on_accept(int from, const Message& message) {
  if (message.number < promised_) return send(from, {Kind::kRefuse, promised_, 0, {}});
  promised_ = accepted_number_ = message.number;
  accepted_ = message.ranks;
  send(from, {Kind::kAccepted, message.number, 0, {}});
}

void Consensus::on_accepted(int from, const Message& message) {
  if (phase_ != Phase::kAccepting || message.number != number_) return;
  answers_.insert(from);
  if (answers_.size() >= quorum()) decide(proposed_);
}

void Consensus::decide(const std::vector<int>& ranks) {
  if (decided_ || ranks.empty()) return;
  decided_ = true;
  decision_ = ranks;
  // Every rank sends the decision to every other: the first rank to decide may be dead by now.
  send_all({Kind::kDecided, 0, 0, decision_});
}

}  // namespace weft
