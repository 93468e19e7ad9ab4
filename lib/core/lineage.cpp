#include "core/lineage.h"

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
class Lineage::FirstControl final : public Control {
 public:
  explicit FirstControl(std::shared_ptr<Lineage> lineage) : lineage_(std::move(lineage)) {}
  ~FirstControl() override { lineage_->detach(); }

  void start(ControlListener* listener) override {
    {
      const std::lock_guard lock(lineage_->first_mutex_);
      lineage_->first_ = listener;
    }
    lineage_->control_->start(lineage_.get());
  }
  void send(int rank, ByteView message) override { lineage_->control_->send(rank, message); }
  void poll() override { lineage_->control_->poll(); }
  void leave() override { lineage_->closed(); }
  void stop() override { lineage_->detach(); }

 private:
  const std::shared_ptr<Lineage> lineage_;
};

Lineage::Lineage(std::unique_ptr<Control> control, int rank, int size, Engine& engine)
    : control_(std::move(control)), rank_(rank), engine_(engine), founders_(all_ranks(size)) {}

std::unique_ptr<Control> Lineage::control_of_first() {
  return std::make_unique<FirstControl>(shared_from_this());
}

void Lineage::opened(uint32_t generation) {
  const std::lock_guard lock(mutex_);
  newest_ = std::max(newest_, generation);
  open_++;
}

void Lineage::closed() {
  {
    const std::lock_guard lock(mutex_);
    if (--open_ > 0) return;
  }
  control_->leave();
  control_->stop();
}

// ---- membership consensus ------------------------------------------------------------------------------

Ballot* Lineage::ballot(uint32_t generation) {
  while (ballots_.size() < generation) {
    const bool first = ballots_.empty();
    if (!first && !ballots_.back()->decided()) return nullptr;
    const std::vector<int>& members = first ? founders_ : ballots_.back()->decision();
    if (!std::binary_search(members.begin(), members.end(), rank_)) return nullptr;
    ballots_.push_back(std::make_unique<Ballot>(rank_, members));
    for (const auto& [rank, why] : lost_) ballots_.back()->lose(rank);
  }
  return ballots_[generation - 1].get();
}

// Handles the early messages whose generation is known by now.
void Lineage::replay_early() {
  for (size_t i = 0; i < early_.size();) {
    Ballot* const about = ballot(early_[i].generation);
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
auto Lineage::with_ballots(Work&& work) {
  std::vector<std::pair<int, Bytes>> out;
  auto result = [&] {
    const std::lock_guard lock(mutex_);
    auto value = work();
    replay_early();
    for (uint32_t g = 1; g <= ballots_.size(); g++) {
      for (auto& [to, message] : ballots_[g - 1]->take_out()) {
        ByteWriter writer;
        writer.put(kBallotMessage).put(g).put_raw(message);
        out.emplace_back(to, writer.take());
      }
    }
    return value;
  }();
  for (const auto& [to, message] : out) control_->send(to, message);
  return result;
}

Status Lineage::agree(uint32_t parent, bool last_of_two, const std::set<int>& accused, Deadline deadline,
                      Descent* next) {
  Ballot* vote = nullptr;
  uint32_t generation = 0;
  const Status begun = with_ballots([&]() -> Status {
    if (newest_ > parent) {
      return Status::error(Code::kState,
                           "shrink: this communicator has already been shrunk; shrink the communicator that "
                           "the last call created");
    }
    // Uses the first undecided generation. A decided generation that could not be created is followed by the
    // next.
    for (generation = parent + 1; (vote = ballot(generation)) != nullptr && vote->decided();) generation++;
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
    return with_ballots([&] {
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
    const std::vector<int> awaited = ranks_in(parent, vote->awaited());
    return Status::error(Code::kTimeout,
                         awaited.empty()
                             ? std::string("shrink: the ranks did not agree in time on the members of the "
                                           "new communicator; a longer timeout_ms may help")
                             : cat("shrink: rank ", list_text(awaited), " did not call it in time"),
                         Evidence::kDeadline)
        .with_ranks(awaited);
  }
  *next = {shared_from_this(), generation, vote->decision()};
  if (std::binary_search(next->members.begin(), next->members.end(), rank_)) return {};
  return Status::error(Code::kPeerFailed,
                       "shrink: the other ranks considered this rank failed and continued in a communicator "
                       "without it; it cannot rejoin them");
}

std::vector<int> Lineage::ranks_in(uint32_t generation, const std::vector<int>& founders) const {
  const std::vector<int>& members = generation == 0 ? founders_ : ballots_[generation - 1]->decision();
  std::vector<int> ranks;
  for (const int founder : founders) {
    const auto at = std::lower_bound(members.begin(), members.end(), founder);
    if (at != members.end() && *at == founder) ranks.push_back(static_cast<int>(at - members.begin()));
  }
  return ranks;
}

std::unique_ptr<Exchange> Lineage::exchange(const Descent& descent, uint32_t parent) {
  ControlExchange::Options options;
  options.kind = kExchangeMessage;
  options.id = descent.generation;
  options.self = rank_;
  options.members = descent.members;
  {
    const std::lock_guard lock(mutex_);
    options.names = ranks_in(parent, descent.members);
  }
  options.broken = [this, parent, members = descent.members] { return broken(members, parent); };
  options.owner = shared_from_this();
  return std::make_unique<ControlExchange>(*control_, postbox_, engine_, std::move(options));
}

Status Lineage::broken(const std::vector<int>& members, uint32_t parent) {
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  for (const int founder : members) {
    const auto lost = lost_.find(founder);
    if (lost == lost_.end()) continue;
    const std::vector<int> rank = ranks_in(parent, {founder});
    if (rank == std::vector<int>{founder}) return lost->second;
    return lost->second
        .with_prefix(cat("rank ", list_text(rank), " (of the first communicator rank ", founder, "): "))
        .with_ranks(rank);
  }
  return {};
}

// ---- the channel ---------------------------------------------------------------------------------------

// Calls generation 0's listener, unless it has been detached.
template <class Call>
void Lineage::tell_first(Call&& call) noexcept {
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

void Lineage::detach() {
  {
    const std::lock_guard lock(first_mutex_);
    first_ = nullptr;
    if (calling_ && caller_ == std::this_thread::get_id()) return;
  }
  // Listeners do not block, so this loop ends.
  for (uint32_t round = 0; calling_; round++) engine_.clock().relax(round);
}

void Lineage::lose(int rank, const Status& why) {
  with_ballots([&] {
    if (lost_.emplace(rank, why).second) {
      for (const auto& each : ballots_) each->lose(rank);
    }
    return true;
  });
  engine_.notify();
}

// Reports an exception to the threads that agree or exchange something over this channel.
template <class Work>
void Lineage::or_break(Work&& work) noexcept {
  const Status thrown = guarded_run(work);
  if (thrown.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    broken_ = thrown;
  }
  engine_.notify();
}

void Lineage::on_broken(const Status& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    broken_ = why;
  }
  tell_first([&](ControlListener& first) { first.on_broken(why); });
}

void Lineage::on_peer_lost(int rank, const Status& why) noexcept {
  or_break([&] { lose(rank, why); });
  tell_first([&](ControlListener& first) { first.on_peer_lost(rank, why); });
}

void Lineage::on_peer_left(int rank) noexcept {
  or_break([&] {
    lose(rank,
         Status::error(Code::kPeerFailed, cat("rank ", rank, " left the communicator"), Evidence::kConnection)
             .with_ranks({rank}));
  });
  tell_first([&](ControlListener& first) { first.on_peer_left(rank); });
}

void Lineage::on_message(int rank, ByteView message) noexcept {
  ByteReader reader(message);
  const auto kind = reader.get<uint8_t>();
  if (kind == kExchangeMessage) {
    or_break([&] { postbox_.on_message(rank, reader); });
  } else if (kind == kBallotMessage) {
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
    or_break([&] { with_ballots(take); });
  } else {
    return tell_first([&](ControlListener& first) { first.on_message(rank, message); });
  }
  engine_.notify();
}

}  // namespace weft
