#include "control/generations.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"

namespace weft {
namespace {

constexpr size_t kMostEarlyBytes = 1u << 20;  // per rank

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

// The channel as generation 0 uses it: the owner of the generations receives all events first, and sends the
// goodbye.
class Generations::FirstControl final : public Control {
 public:
  explicit FirstControl(std::shared_ptr<Generations> generations) : generations_(std::move(generations)) {}
  ~FirstControl() override { generations_->detach(); }

  void start(ControlListener* listener) override {
    {
      const std::lock_guard lock(generations_->first_mutex_);
      generations_->first_ = listener;
    }
    generations_->control_->start(generations_.get());
  }
  void send(int rank, ByteView message) override { generations_->control_->send(rank, message); }
  void poll() override { generations_->control_->poll(); }
  void leave() override { generations_->closed(); }
  void stop() override { generations_->detach(); }

 private:
  const std::shared_ptr<Generations> generations_;
};

Generations::Generations(std::unique_ptr<Control> control, int rank, int size, Engine& engine)
    : control_(std::move(control)), rank_(rank), engine_(engine), first_members_(all_ranks(size)) {}

std::unique_ptr<Control> Generations::control_of_first() {
  return std::make_unique<FirstControl>(shared_from_this());
}

void Generations::opened(uint32_t generation) {
  const std::lock_guard lock(mutex_);
  newest_ = std::max(newest_, generation);
  open_++;
}

void Generations::closed() {
  {
    const std::lock_guard lock(mutex_);
    if (--open_ > 0) return;
  }
  control_->leave();
  control_->stop();
}

// ---- membership consensus ------------------------------------------------------------------------------

Consensus* Generations::consensus(uint32_t generation) {
  while (consensus_.size() < generation) {
    const bool first = consensus_.empty();
    if (!first && !consensus_.back()->decided()) return nullptr;
    const std::vector<int>& members = first ? first_members_ : consensus_.back()->decision();
    if (!std::binary_search(members.begin(), members.end(), rank_)) return nullptr;
    consensus_.push_back(std::make_unique<Consensus>(rank_, members));
    for (const auto& [rank, why] : lost_) consensus_.back()->lose(rank);
  }
  return consensus_[generation - 1].get();
}

// Handles the early messages whose generation is known by now.
void Generations::replay_early() {
  for (size_t i = 0; i < early_.size();) {
    Consensus* const about = consensus(early_[i].generation);
    if (about == nullptr) {
      i++;
      continue;
    }
    const Early early = std::move(early_[i]);
    early_.erase(early_.begin() + static_cast<ptrdiff_t>(i));
    ByteReader reader(early.message);
    about->on_message(early.from, reader);
    i = 0;  // the message may have decided a generation
  }
}

template <class Work>
auto Generations::with_consensus(Work&& work) {
  std::vector<std::pair<int, Bytes>> out;
  auto result = [&] {
    const std::lock_guard lock(mutex_);
    auto value = work();
    replay_early();
    for (uint32_t g = 1; g <= consensus_.size(); g++) {
      for (auto& [to, message] : consensus_[g - 1]->take_out()) {
        ByteWriter writer;
        writer.put(kConsensusMessage).put(g).put_raw(message);
        out.emplace_back(to, writer.take());
      }
    }
    return value;
  }();
  for (const auto& [to, message] : out) control_->send(to, message);
  return result;
}

Status Generations::agree(uint32_t parent, bool last_of_two, const std::set<int>& accused, Deadline deadline,
                          Generation* next) {
  Consensus* vote = nullptr;
  uint32_t generation = 0;
  const Status begun = with_consensus([&]() -> Status {
    if (newest_ > parent) {
      return Status::error(Code::kState,
                           "shrink: this communicator has already been shrunk; shrink the communicator that "
                           "the last call created");
    }
    // Uses the first undecided generation. A decided generation that could not be created is followed by the
    // next.
    for (generation = parent + 1; (vote = consensus(generation)) != nullptr && vote->decided();) generation++;
    if (vote == nullptr)
      return Status::error(
          Code::kPeerFailed,
          "shrink: the other ranks continued in a communicator without this rank; it cannot rejoin them");
    vote->join(last_of_two, accused);
    return {};
  });
  WEFT_TRY(begun);
  const auto over = [&] {
    control_->poll();
    return with_consensus([&] {
      vote->advance(engine_.clock().now_ns());
      return vote->decided() || vote->minority() || !broken_.ok();
    });
  };
  engine_.wait(over, deadline);
  const std::lock_guard lock(mutex_);
  if (!vote->decided() && vote->minority()) {
    std::vector<int> lost;
    lost.reserve(lost_.size());
    for (const auto& [rank, why] : lost_) lost.push_back(rank);
    return Status::error(Code::kMinority, cat("shrink: lost rank ", list_text(ranks_in(parent, lost)), " of ",
                                              vote->members().size(),
                                              " ranks, and the remaining ranks are no majority; "
                                              "restart the job"))
        .with_ranks(ranks_in(parent, lost));
  }
  if (!vote->decided() && !broken_.ok()) return broken_;
  if (!vote->decided()) {
    std::vector<int> awaited = ranks_in(parent, vote->awaited());
    std::string text = cat("shrink: rank ", list_text(awaited), " did not call it in time");
    if (awaited.empty()) {
      awaited = ranks_in(parent, vote->unanswered());
      text = "shrink: the ranks did not agree in time on the members of the new communicator";
      text += awaited.empty() ? "; a longer timeout_ms may help"
                              : cat(": rank ", list_text(awaited), " did not answer this rank's proposal");
    }
    return Status::error(Code::kTimeout, text, Evidence::kDeadline).with_ranks(awaited);
  }
  *next = {shared_from_this(), generation, vote->decision()};
  if (std::binary_search(next->members.begin(), next->members.end(), rank_)) return {};
  return Status::error(Code::kPeerFailed,
                       "shrink: the other ranks considered this rank failed and continued in a communicator "
                       "without it; it cannot rejoin them");
}

std::vector<int> Generations::ranks_in(uint32_t generation, const std::vector<int>& first_ranks) const {
  const std::vector<int>& members = generation == 0 ? first_members_ : consensus_[generation - 1]->decision();
  std::vector<int> ranks;
  for (const int first_rank : first_ranks) {
    const auto at = std::lower_bound(members.begin(), members.end(), first_rank);
    if (at != members.end() && *at == first_rank) ranks.push_back(static_cast<int>(at - members.begin()));
  }
  return ranks;
}

std::unique_ptr<Exchange> Generations::exchange(const Generation& generation, uint32_t parent) {
  ControlExchange::Options options;
  options.kind = kExchangeMessage;
  options.id = generation.number;
  options.self = rank_;
  options.members = generation.members;
  {
    const std::lock_guard lock(mutex_);
    options.names = ranks_in(parent, generation.members);
  }
  options.broken = [this, parent, members = generation.members] { return broken(members, parent); };
  options.owner = shared_from_this();
  return std::make_unique<ControlExchange>(*control_, postbox_, engine_, std::move(options));
}

Status Generations::broken(const std::vector<int>& members, uint32_t parent) {
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  for (const int first_rank : members) {
    const auto lost = lost_.find(first_rank);
    if (lost == lost_.end()) continue;
    const std::vector<int> rank = ranks_in(parent, {first_rank});
    if (rank == std::vector<int>{first_rank}) return lost->second;
    return lost->second
        .with_prefix(cat("rank ", list_text(rank), " (of the first communicator rank ", first_rank, "): "))
        .with_ranks(rank);
  }
  return {};
}

// ---- the channel ---------------------------------------------------------------------------------------

// Calls generation 0's listener, unless it has been detached.
template <class Call>
void Generations::tell_first(Call&& call) noexcept {
  ControlListener* listener = nullptr;
  {
    const std::lock_guard lock(first_mutex_);
    listener = first_;
    if (listener == nullptr) return;
    caller_ = std::this_thread::get_id();
    calling_ = true;
  }
  call(*listener);
  const std::lock_guard lock(first_mutex_);
  calling_ = false;
}

void Generations::detach() {
  {
    const std::lock_guard lock(first_mutex_);
    first_ = nullptr;
    if (calling_ && caller_ == std::this_thread::get_id()) return;
  }
  // Listeners do not block, so this loop ends.
  for (uint32_t round = 0; calling_; round++) engine_.clock().relax(round);
}

void Generations::lose(int rank, const Status& why) {
  with_consensus([&] {
    if (lost_.emplace(rank, why).second) {
      for (const auto& each : consensus_) each->lose(rank);
    }
    return true;
  });
  engine_.notify();
}

// Reports an exception to the threads that agree or exchange something over this channel.
template <class Work>
void Generations::or_break(Work&& work) noexcept {
  const Status thrown = guarded_run(work);
  if (thrown.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    broken_ = thrown;
  }
  engine_.notify();
}

void Generations::on_broken(const Status& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    broken_ = why;
  }
  tell_first([&](ControlListener& first) { first.on_broken(why); });
}

void Generations::on_peer_lost(int rank, const Status& why) noexcept {
  or_break([&] { lose(rank, why); });
  tell_first([&](ControlListener& first) { first.on_peer_lost(rank, why); });
}

void Generations::on_peer_left(int rank) noexcept {
  or_break([&] {
    lose(rank,
         Status::error(Code::kPeerFailed, cat("rank ", rank, " left the communicator"), Evidence::kConnection)
             .with_ranks({rank}));
  });
  tell_first([&](ControlListener& first) { first.on_peer_left(rank); });
}

void Generations::on_message(int rank, ByteView message) noexcept {
  ByteReader reader(message);
  const auto kind = reader.get<uint8_t>();
  if (kind == kExchangeMessage) {
    or_break([&] { postbox_.on_message(rank, reader); });
  } else if (kind == kConsensusMessage) {
    const auto generation = reader.get<uint32_t>();
    if (!reader.ok() || generation == 0) return;
    const auto take = [&] {
      const ByteView rest = message.subspan(sizeof kind + sizeof generation);
      size_t held = rest.size();
      for (const Early& early : early_) held += early.from == rank ? early.message.size() : 0;
      if (early_.size() < kMostEarly && held <= kMostEarlyBytes) {
        early_.push_back({generation, rank, Bytes(rest.begin(), rest.end())});
      }
      return true;
    };
    or_break([&] { with_consensus(take); });
  } else {
    return tell_first([&](ControlListener& first) { first.on_message(rank, message); });
  }
  engine_.notify();
}

}  // namespace weft
