#include "schedules/model.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "base/splitmix.h"
#include "base/text.h"

namespace weft::bench {

using namespace weft::coll;

namespace {

// Finds the arrival times of messages from `from` to `to`.
struct Key {
  int from, to;
  uint32_t step;
  bool operator==(const Key&) const = default;
};
struct HashKey {
  size_t operator()(const Key& key) const {
    const uint64_t pair = static_cast<uint64_t>(key.from) << 32 | static_cast<uint32_t>(key.to);
    return scramble(scramble(pair + kSplitMixStep) ^ key.step);
  }
};

// One rank's position in its schedule, and its resources.
class Walker {
 public:
  Walker(const Operation& operation, const Costs& costs, int rank)
      : costs_(costs), element_(operation.element), schedule_(schedule_of(operation, rank)) {}

  bool done() const { return round_ == schedule_.rounds().size(); }
  double now() const { return core_; }
  std::span<const Transfer> awaited() const { return schedule_.transfers(round_); }

  // Posts the messages of the round. sent(transfer, arrival) is called for each send.
  template <class Sent>
  void begin_round(Sent&& sent) {
    leaves_.resize(2);
    if (round_ == 0) post(0, When::kAhead, leaves_[0], sent);
    post(round_, When::kInRound, leaves_[0], sent);
    if (round_ + 1 < schedule_.rounds().size()) post(round_ + 1, When::kAhead, leaves_[1], sent);
    work(0, schedule_.meanwhile(round_));
  }
  // Ends the round, whose messages arrive at arrival(transfer).
  template <class Arrival>
  void end_round(Arrival&& arrival) {
    arrivals_.clear();
    for (const Transfer& t : awaited()) {
      if (!t.is_send) arrivals_.emplace_back(arrival(t), t.bytes);
    }
    std::sort(arrivals_.begin(), arrivals_.end());
    for (const auto& [time, bytes] : arrivals_) {
      link_in_ = std::max(link_in_, time - link_time(bytes)) + link_time(bytes);
      core_ = std::max(core_, link_in_) + core_time(bytes);
    }
    core_ = std::max(core_, leaves_[0]);
    work(schedule_.meanwhile(round_), schedule_.works(round_).size());
    leaves_.erase(leaves_.begin());
    round_++;
  }

 private:
  double link_time(uint64_t bytes) const {
    return static_cast<double>(bytes + kHeaderBytes) * costs_.link_byte;
  }
  double core_time(uint64_t bytes) const {
    return costs_.message + static_cast<double>(bytes) * costs_.core_byte;
  }
  template <class Sent>
  void post(size_t round, When when, double& leaves, Sent&& sent) {
    for (const Transfer& t : schedule_.transfers(round)) {
      if (!t.is_send || t.when != when) continue;
      core_ += core_time(t.bytes);
      link_out_ = std::max(link_out_, core_) + link_time(t.bytes);
      leaves = std::max(leaves, link_out_);
      sent(t, link_out_ + costs_.latency);
    }
  }
  void work(size_t begin, size_t end) {
    for (const Work& work : schedule_.works(round_).subspan(begin, end - begin)) {
      core_ += static_cast<double>(touched_bytes(work, element_)) * costs_.memory_byte;
    }
  }

  const Costs& costs_;
  const uint64_t element_;
  const Schedule schedule_;
  size_t round_ = 0;
  double core_ = 0, link_in_ = 0, link_out_ = 0;  // free from then on
  std::vector<double> leaves_;  // when the sends of this round and of the next one have left
  std::vector<std::pair<double, uint64_t>> arrivals_;
};

}  // namespace

double walk_all(const Operation& operation, const Costs& costs) {
  std::deque<Walker> walkers;
  std::unordered_map<Key, double, HashKey> arrivals;
  std::unordered_map<Key, int, HashKey> waiting;  // ranks that wait for a message
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::vector<bool> posted(static_cast<size_t>(operation.size), false);
  for (int rank = 0; rank < operation.size; rank++) {
    walkers.emplace_back(operation, costs, rank);
    ready.emplace(0.0, rank);
  }
  double end = 0;
  int left = operation.size;
  while (!ready.empty()) {
    const int rank = ready.top().second;
    ready.pop();
    Walker& walker = walkers[static_cast<size_t>(rank)];
    if (!posted[static_cast<size_t>(rank)]) {
      walker.begin_round([&](const Transfer& t, double arrival) {
        const Key key{rank, t.peer, t.step};
        arrivals[key] = arrival;
        const auto found = waiting.find(key);
        if (found == waiting.end()) return;
        ready.emplace(arrival, found->second);
        waiting.erase(found);
      });
      posted[static_cast<size_t>(rank)] = true;
    }
    const auto awaited = walker.awaited();
    const auto missing = std::find_if(awaited.begin(), awaited.end(), [&](const Transfer& t) {
      return !t.is_send && !arrivals.contains(Key{t.peer, rank, t.step});
    });
    if (missing != awaited.end()) {
      waiting[Key{missing->peer, rank, missing->step}] = rank;
      continue;
    }
    walker.end_round([&](const Transfer& t) {
      const auto found = arrivals.find(Key{t.peer, rank, t.step});
      const double arrival = found->second;
      arrivals.erase(found);
      return arrival;
    });
    posted[static_cast<size_t>(rank)] = false;
    end = std::max(end, walker.now());
    if (walker.done()) {
      left--;
    } else {
      ready.emplace(walker.now(), rank);
    }
  }
  if (left > 0 || !arrivals.empty()) {
    throw std::logic_error(cat("messages without a receiver: ", arrivals.size(),
                               ", ranks that wait for ever: ", left, " (", operation.algorithm->name,
                               " among ", operation.size, " ranks)"));
  }
  return end;
}

double walk_one(const Operation& operation, const Costs& costs) {
  Walker walker(operation, costs, 0);
  std::unordered_map<uint32_t, std::deque<double>> arrivals;  // by step
  while (!walker.done()) {
    walker.begin_round([&](const Transfer& t, double arrival) { arrivals[t.step].push_back(arrival); });
    walker.end_round([&](const Transfer& t) {
      std::deque<double>& times = arrivals[t.step];
      if (times.empty()) {
        return costs.latency + static_cast<double>(t.bytes + kHeaderBytes) * costs.link_byte;
      }
      const double arrival = times.front();
      times.pop_front();
      if (times.empty()) arrivals.erase(t.step);
      return arrival;
    });
  }
  return walker.now();
}

}  // namespace weft::bench
