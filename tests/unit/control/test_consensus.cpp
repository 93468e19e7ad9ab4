// Membership consensus under schedules drawn from a seed: messages overtake each other, ranks die at any
// moment, and their last messages reach only some ranks.
#include <algorithm>
#include <deque>
#include <memory>
#include <set>

#include "control/consensus.h"
#include "support/catch.h"
#include "support/seed.h"
#include "support/simulation.h"

namespace unit_consensus {

using weft::ByteReader;
using weft::Bytes;
using weft::Consensus;
using weft::test::Random;

namespace {

// Ranks, and the messages and death reports that are in transit between them.
class Network {
 public:
  Network(uint64_t seed, int size) : random_(seed) {
    std::vector<int> members;
    for (int r = 0; r < size; r++) members.push_back(r);
    for (int r = 0; r < size; r++) ranks_.push_back(std::make_unique<Consensus>(r, members));
    dead_.resize(static_cast<size_t>(size));
    lost_.resize(static_cast<size_t>(size));
  }

  Consensus& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  bool dead(int rank) const { return dead_[static_cast<size_t>(rank)]; }
  Random& random() { return random_; }

  // Kills a rank. The others are notified at some later time; its last messages may or may not arrive.
  void kill(int rank) {
    collect(rank);
    dead_[static_cast<size_t>(rank)] = true;
    for (auto it = flights_.begin(); it != flights_.end();) {
      it = it->from == rank && random_.chance(2) ? flights_.erase(it) : it + 1;
    }
    for (int r = 0; r < size(); r++) {
      if (r != rank) flights_.push_back({rank, r, {}, true});
    }
  }
  // Makes one random event happen.
  void step() {
    now_ns_ += 100'000;
    for (int r = 0; r < size(); r++) {
      if (dead(r)) continue;
      if (random_.chance(4)) at(r).advance(now_ns_);
      collect(r);
    }
    if (flights_.empty()) return;
    const auto index = static_cast<std::ptrdiff_t>(random_.below(flights_.size()));
    const Flight flight = flights_[static_cast<size_t>(index)];
    flights_.erase(flights_.begin() + index);
    if (dead(flight.to)) return;
    if (flight.death) {
      lost_[static_cast<size_t>(flight.to)].insert(flight.from);
      at(flight.to).lose(flight.from);
    } else if (!lost_[static_cast<size_t>(flight.to)].contains(flight.from)) {
      ByteReader reader(flight.message);
      at(flight.to).on_message(flight.from, reader);
    }
    collect(flight.to);
  }

 private:
  struct Flight {
    int from, to;
    Bytes message;
    bool death;
  };
  void collect(int rank) {
    for (auto& [to, message] : at(rank).take_out()) {
      if (!dead(rank)) flights_.push_back({rank, to, std::move(message), false});
    }
  }

  Random random_;
  std::vector<std::unique_ptr<Consensus>> ranks_;
  std::vector<bool> dead_;
  std::vector<std::set<int>> lost_;
  std::deque<Flight> flights_;
  uint64_t now_ns_ = 0;
};

bool all_decided(Network& net) {
  for (int r = 0; r < net.size(); r++) {
    if (!net.dead(r) && !net.at(r).decided()) return false;
  }
  return true;
}

}  // namespace

namespace {

// Messages as Consensus encodes them.
enum class Kind : uint8_t { kJoin = 1, kPrepare, kPromise, kAccept, kAccepted, kRefuse, kDecided };
struct Said {
  Kind kind = Kind::kJoin;
  uint64_t number = 0;
  uint64_t accepted_number = 0;
  std::vector<int> ranks;

  bool operator==(const Said&) const = default;
};

// Number of a rank's proposal.
constexpr uint64_t number_of(uint64_t round, int rank) {
  return round << 20 | static_cast<uint64_t>(rank);
}

// One rank of five, and what it sends. The test sends it the messages of the others.
struct One {
  explicit One(int rank) : consensus(rank, {0, 1, 2, 3, 4}) {}

  void say(int from, const Said& said) {
    weft::ByteWriter writer;
    writer.put(said.kind).put(said.number).put(said.accepted_number);
    writer.put(static_cast<uint32_t>(said.ranks.size()));
    for (const int rank : said.ranks) writer.put(static_cast<int32_t>(rank));
    writer.put(uint32_t{0});
    const Bytes message = writer.take();
    ByteReader reader(message);
    consensus.on_message(from, reader);
  }
  // Returns what it has sent to a rank since the last call, and forgets what it has sent to others.
  std::vector<Said> sent_to(int rank) {
    std::vector<Said> all;
    for (const auto& [to, message] : consensus.take_out()) {
      if (to != rank) continue;
      ByteReader reader(message);
      Said& said = all.emplace_back();
      said.kind = reader.get<Kind>();
      said.number = reader.get<uint64_t>();
      said.accepted_number = reader.get<uint64_t>();
      for (auto count = reader.get<uint32_t>(); count > 0; count--)
        said.ranks.push_back(reader.get<int32_t>());
    }
    return all;
  }
  void all_join(const std::vector<int>& lost_by_others = {}) {
    consensus.join(false);
    for (int r = 0; r < 5; r++) say(r, {Kind::kJoin, 0, 0, lost_by_others});
    (void)consensus.take_out();
  }

  Consensus consensus;
};

using Sent = std::vector<Said>;

}  // namespace

TEST_CASE("a rank that has promised a proposal refuses lower ones, and reports what it has accepted") {
  One one(1);
  one.say(2, {Kind::kPrepare, number_of(5, 2)});
  CHECK(one.sent_to(2) == Sent{{Kind::kPromise, number_of(5, 2)}});
  for (const Kind kind : {Kind::kPrepare, Kind::kAccept}) {
    one.say(0, {kind, number_of(5, 0), 0, {0, 1, 3}});
    CHECK(one.sent_to(0) == Sent{{Kind::kRefuse, number_of(5, 2)}});
  }
  one.say(2, {Kind::kPrepare, number_of(5, 2)});  // a copy
  CHECK(one.sent_to(2) == Sent{{Kind::kRefuse, number_of(5, 2)}});
  one.say(2, {Kind::kAccept, number_of(5, 2), 0, {1, 2, 4}});
  CHECK(one.sent_to(2) == Sent{{Kind::kAccepted, number_of(5, 2)}});
  one.say(3, {Kind::kPrepare, number_of(6, 3)});
  CHECK(one.sent_to(3) == Sent{{Kind::kPromise, number_of(6, 3), number_of(5, 2), {1, 2, 4}}});
  one.say(2, {Kind::kAccept, number_of(5, 2), 0, {1, 2, 4}});
  CHECK(one.sent_to(2) == Sent{{Kind::kRefuse, number_of(6, 3)}});
}

namespace {

// Lets rank 0 of five propose; returns the number.
uint64_t prepare(One& one, uint64_t now_ns) {
  one.consensus.advance(now_ns);
  const Sent sent = one.sent_to(1);
  REQUIRE(sent.size() == 1);
  REQUIRE(sent[0].kind == Kind::kPrepare);
  return sent[0].number;
}

}  // namespace

TEST_CASE("of the values that others have accepted, that of the highest number is proposed again") {
  const std::vector<int> newer = {0, 1, 2}, older = {0, 1, 3};
  for (const bool newer_first : {false, true}) {
    One one(0);
    one.all_join();
    const uint64_t number = prepare(one, 0);
    const auto promise = [&](bool of_newer) {
      one.say(of_newer ? 1 : 3, {Kind::kPromise, number, of_newer ? number_of(4, 1) : number_of(2, 3),
                                 of_newer ? newer : older});
    };
    promise(newer_first);
    promise(newer_first);           // a copy
    CHECK(one.sent_to(4).empty());  // two of five, with itself
    promise(!newer_first);
    CHECK(one.sent_to(4) == Sent{{Kind::kAccept, number, 0, newer}});
  }
}

TEST_CASE("answers to an earlier proposal do not count for the next one") {
  One one(0);
  one.all_join();
  const uint64_t first = prepare(one, 0);
  one.say(4, {Kind::kRefuse, number_of(7, 4)});
  const uint64_t second = prepare(one, 1'000'000'000);
  CHECK(second > number_of(7, 4));
  CHECK(second % number_of(1, 0) == 0);  // rank 0's, which no other rank uses
  for (const int r : {1, 2, 3}) one.say(r, {Kind::kPromise, first});
  CHECK(one.sent_to(1).empty());
  for (const int r : {1, 2, 3}) one.say(r, {Kind::kPromise, second});
  CHECK(one.sent_to(1) == Sent{{Kind::kAccept, second, 0, {0, 1, 2, 3, 4}}});
  for (const int r : {1, 2, 3}) one.say(r, {Kind::kAccepted, first});
  CHECK(!one.consensus.decided());
  for (const int r : {1, 2}) one.say(r, {Kind::kAccepted, second});
  CHECK(one.consensus.decided());
}

TEST_CASE("each rank proposes with numbers of its own") {
  // Rank 0 is lost, so rank 1 proposes.
  One one(1);
  one.consensus.lose(0);
  one.all_join({0});
  one.consensus.advance(0);
  const Sent sent = one.sent_to(2);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].kind == Kind::kPrepare);
  CHECK(sent[0].number % number_of(1, 0) == 1);
}

TEST_CASE("a rank that asks after the decision gets it, and one that answers does not") {
  One one(1);
  one.all_join();
  const std::vector<int> decision = {0, 1, 2, 4};
  one.say(0, {Kind::kDecided, 0, 0, decision});
  CHECK(one.consensus.decision() == decision);
  (void)one.consensus.take_out();
  for (const Kind kind : {Kind::kJoin, Kind::kPrepare, Kind::kAccept}) {
    one.say(3, {kind, number_of(9, 3)});
    CHECK(one.sent_to(3) == Sent{{Kind::kDecided, 0, 0, decision}});
  }
  for (const Kind kind : {Kind::kPromise, Kind::kAccepted, Kind::kRefuse}) {
    one.say(3, {kind, number_of(9, 3)});
    CHECK(one.sent_to(3).empty());
  }
}

TEST_CASE("a decision of ranks that are no members, or not in order, is ignored") {
  One one(1);
  one.all_join();
  for (const std::vector<int>& wrong :
       {std::vector<int>{}, {1, 0}, {0, 0, 1}, {0, 1, 5}, {-1, 0, 1}, {0, 1, 2, 3, 4, 4}}) {
    one.say(0, {Kind::kDecided, 0, 0, wrong});
    CHECK(!one.consensus.decided());
  }
}

TEST_CASE("a rank that loses another one after it has joined tells that to all") {
  One one(2);
  one.all_join();
  one.consensus.lose(4);
  CHECK(one.sent_to(0) == Sent{{Kind::kJoin, 0, 0, {4}}});
  one.consensus.lose(4);
  CHECK(one.sent_to(0).empty());
}

TEST_CASE("the proposer waits half a second for the loss that others report") {
  constexpr uint64_t kMs = 1'000'000;
  for (const bool learns : {false, true}) {
    One one(0);
    one.all_join({3});  // rank 3 says so of itself, but it is not lost here
    one.consensus.advance(1000 * kMs);
    one.consensus.advance(1400 * kMs);
    CHECK(one.sent_to(1).empty());
    if (learns) one.consensus.lose(3);
    (void)one.consensus.take_out();
    one.consensus.advance(1450 * kMs);
    CHECK(one.sent_to(1).empty() == !learns);
    one.consensus.advance(1500 * kMs);
    CHECK(one.sent_to(1).empty() == learns);
  }
}

TEST_CASE("whichever ranks die at any moment, no two decisions differ, and a majority always decides") {
  const uint64_t base = weft::test::base_seed();
  for (uint64_t i = 0; i < 400; i++) {
    Network net(base + i, 3 + static_cast<int>(i % 6));
    INFO("seed " << base + i << ", " << net.size() << " ranks");
    const int may_die = (net.size() - 1) / 2;
    int died = 0;
    for (int r = 0; r < net.size(); r++) net.at(r).join(false);
    for (int s = 0; s < 20'000 && !all_decided(net); s++) {
      if (died < may_die && net.random().chance(40)) {
        const int victim = static_cast<int>(net.random().below(static_cast<uint64_t>(net.size())));
        died += net.dead(victim) ? 0 : 1;
        net.kill(victim);
      }
      net.step();
    }
    REQUIRE(all_decided(net));
    const std::vector<int>* decision = nullptr;
    for (int r = 0; r < net.size(); r++) {
      if (!net.at(r).decided()) continue;
      if (decision == nullptr) decision = &net.at(r).decision();
      CHECK(net.at(r).decision() == *decision);
    }
    for (int r = 0; r < net.size(); r++) {
      if (!net.dead(r)) CHECK(std::binary_search(decision->begin(), decision->end(), r));
    }
  }
}

TEST_CASE("without a majority no rank decides, and every rank reports that") {
  Network net(1, 4);
  for (int r = 0; r < 4; r++) net.at(r).join(false);
  net.kill(0);
  net.kill(3);
  for (int s = 0; s < 2'000; s++) net.step();
  for (const int r : {1, 2}) {
    CHECK(!net.at(r).decided());
    CHECK(net.at(r).minority());
  }
}

TEST_CASE("nothing is decided before all live ranks have joined, and missing ranks are listed") {
  Network net(2, 3);
  net.at(0).join(false);
  net.at(2).join(false);
  for (int s = 0; s < 2'000; s++) net.step();
  CHECK(!net.at(0).decided());
  CHECK(net.at(0).awaited() == std::vector<int>{1});
  net.at(1).join(false);
  for (int s = 0; s < 2'000; s++) net.step();
  CHECK(net.at(1).decision() == std::vector<int>{0, 1, 2});
}

TEST_CASE("two ranks that cannot reach each other do not both continue") {
  Network net(3, 5);
  net.at(2).lose(4);
  net.at(4).lose(2);
  for (int r = 0; r < 5; r++) net.at(r).join(false);
  for (int s = 0; s < 20'000; s++) net.step();
  CHECK(net.at(0).decision() == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("if two ranks cannot reach each other, the one that the failure names is left out") {
  for (const int stopped : {1, 2}) {
    Network net(3, 3);
    net.at(1).lose(2);
    net.at(2).lose(1);
    for (int r = 0; r < 3; r++) net.at(r).join(false, {r == stopped ? 3 - stopped : stopped});
    for (int s = 0; s < 20'000; s++) net.step();
    CHECK(net.at(0).decision() == std::vector<int>{0, 3 - stopped});
  }
}

TEST_CASE(
    "of two ranks that lost each other the accused one is left out, even if the other lost more ranks") {
  Network net(3, 6);
  const auto apart = [&](int a, int b) {
    net.at(a).lose(b);
    net.at(b).lose(a);
  };
  apart(1, 2);
  apart(2, 5);
  for (int r = 0; r < 6; r++) net.at(r).join(false, r == 3 ? std::set<int>{1, 5} : std::set<int>{5});
  for (int s = 0; s < 20'000; s++) net.step();
  CHECK(net.at(3).decision() == std::vector<int>{0, 2, 3, 4});
}

TEST_CASE("an accused rank proposes after the ranks that reported it as lost") {
  // Rank 2 has no report from either of a loss of the other, and would follow the first proposal.
  for (uint64_t seed = 0; seed < 100; seed++) {
    for (const int stopped : {0, 1}) {
      INFO("seed " << seed << ", rank " << stopped << " was stopped");
      Network net(weft::test::base_seed() + seed, 3);
      net.at(0).lose(1);
      net.at(1).lose(0);
      for (int r = 0; r < 3; r++) net.at(r).join(false, {stopped});
      for (int s = 0; s < 20'000 && !all_decided(net); s++) net.step();
      CHECK(net.at(2).decision() == std::vector<int>{1 - stopped, 2});
    }
  }
}

TEST_CASE("an accused rank is left out, even if the next proposer still reaches it") {
  for (uint64_t seed = 0; seed < 50; seed++) {
    INFO("seed " << seed);
    Network net(weft::test::base_seed() + seed, 5);
    net.at(0).lose(4);
    net.at(4).lose(0);
    for (int r = 0; r < 5; r++) net.at(r).join(false, {0});
    for (int s = 0; s < 20'000 && !all_decided(net); s++) net.step();
    CHECK(net.at(1).decision() == std::vector<int>{1, 2, 3, 4});
  }
}

TEST_CASE("an accused rank continues with the others if the ranks that reported it are gone") {
  Network net(weft::test::base_seed(), 5);
  net.at(0).lose(1);
  net.at(1).lose(0);
  net.kill(1);
  for (const int r : {0, 2, 3, 4}) net.at(r).join(false, {0});
  for (int s = 0; s < 20'000 && !all_decided(net); s++) net.step();
  CHECK(net.at(2).decision() == std::vector<int>{0, 2, 3, 4});
}

TEST_CASE("a rank that lost many others is left out, not the others") {
  Network net(3, 5);
  for (const int r : {2, 3, 4}) {
    net.at(1).lose(r);
    net.at(r).lose(1);
  }
  for (int r = 0; r < 5; r++) net.at(r).join(false);
  for (int s = 0; s < 20'000; s++) net.step();
  CHECK(net.at(0).decision() == std::vector<int>{0, 2, 3, 4});
}

TEST_CASE("a minority of ranks that reach each other does not continue") {
  Network net(3, 5);
  for (int r = 1; r < 5; r++) {
    for (int other = 1; other < 5; other++) net.at(r).lose(other);
  }
  for (int r = 0; r < 5; r++) net.at(r).join(false);
  for (int s = 0; s < 20'000; s++) net.step();
  for (int r = 0; r < 5; r++) CHECK(!net.at(r).decided());
}

TEST_CASE("one of two members decides alone only if that is allowed") {
  for (const bool allowed : {false, true}) {
    Network net(4, 2);
    net.at(1).join(allowed);
    net.kill(0);
    for (int s = 0; s < 1'000; s++) net.step();
    CHECK(net.at(1).decided() == allowed);
    CHECK(net.at(1).minority() == !allowed);
  }
}

TEST_CASE("invalid messages are ignored") {
  Consensus consensus(0, {0, 1, 2});
  Random random(5);
  for (int i = 0; i < 20'000; i++) {
    Bytes message(random.below(40));
    for (std::byte& byte : message) byte = static_cast<std::byte>(random.below(8));
    ByteReader reader(message);
    consensus.on_message(static_cast<int>(random.below(5)) - 1, reader);
    (void)consensus.take_out();
  }
  CHECK(consensus.members().size() == 3);
}

}  // namespace unit_consensus
