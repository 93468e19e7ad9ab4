// lib/tagged/matching: which receive takes which message, one step after the other.
#include "tagged/matching.h"

#include <array>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/seed.h"
#include "support/simulation.h"

namespace unit_tagged_matching {

using namespace weft;
using namespace weft::tagged;
using namespace weft::test;

namespace {

// Receives in the order of their calls.
class Receives {
 public:
  Operation& add(int source, uint64_t tag) {
    Request& request = requests_.emplace_back();
    request.args.coll = Coll::kRecv;
    request.args.peer = source;
    Operation& receive = operations_.emplace_back();
    receive.request = &request;
    receive.tag = tag;
    receive.order = operations_.size();
    return receive;
  }

 private:
  std::list<Request> requests_;
  std::list<Operation> operations_;
};

Unexpected message(int source, uint64_t tag, uint64_t id = 0) {
  return {source, {.kind = id == 0 ? FrameOf::kEager : FrameOf::kOffer, .id = id, .tag = tag}, {}, nullptr};
}

// Posts a receive; returns the source and tag of the message that it takes.
std::optional<std::pair<int, uint64_t>> post(Matching& matching, Operation& receive) {
  Unexpected taken;
  if (!matching.post(receive, &taken)) return std::nullopt;
  return std::pair{taken.source, taken.header.tag};
}

}  // namespace

TEST_CASE("a message is taken by the first receive that accepts its source and tag") {
  Matching matching;
  Receives receives;
  Operation& other_tag = receives.add(1, 8);
  Operation& other_source = receives.add(2, 7);
  Operation& any_source = receives.add(kAnySource, 7);
  Operation& exact = receives.add(1, 7);
  Operation& anything = receives.add(kAnySource, kAnyTag);
  for (Operation* const receive : {&other_tag, &other_source, &any_source, &exact, &anything})
    CHECK(!post(matching, *receive));
  CHECK(matching.match(1, 7) == &any_source);
  CHECK(matching.match(1, 7) == &exact);
  CHECK(matching.match(1, 7) == &anything);
  CHECK(matching.match(1, 7) == nullptr);
  CHECK(matching.match(2, 7) == &other_source);
  CHECK(matching.match(1, 8) == &other_tag);
}

TEST_CASE("a receive takes the first message that it accepts") {
  Matching matching;
  Receives receives;
  matching.keep(message(2, 9));
  matching.keep(message(1, 8));
  matching.keep(message(1, 7));
  CHECK(post(matching, receives.add(1, kAnyTag)) == std::pair{1, uint64_t{8}});
  CHECK(post(matching, receives.add(kAnySource, 7)) == std::pair{1, uint64_t{7}});
  Operation& waits = receives.add(1, kAnyTag);
  CHECK(!post(matching, waits));
  CHECK(waits.state == Operation::State::kPosted);
  CHECK(post(matching, receives.add(kAnySource, kAnyTag)) == std::pair{2, uint64_t{9}});
}

TEST_CASE("a receive that is posted again returns to its place") {
  Matching matching;
  Receives receives;
  Operation& first = receives.add(1, 7);
  Operation& second = receives.add(1, 7);
  Operation& third = receives.add(1, 7);
  for (Operation* const receive : {&first, &second, &third}) CHECK(!post(matching, *receive));
  CHECK(matching.match(1, 7) == &first);
  CHECK(matching.match(1, 7) == &second);
  CHECK(!post(matching, second));  // its sender gave up
  CHECK(!post(matching, first));
  CHECK(matching.match(1, 7) == &first);
  CHECK(matching.match(1, 7) == &second);
  CHECK(matching.match(1, 7) == &third);
}

TEST_CASE("receives and offers that end are forgotten, messages that are here whole are kept") {
  Matching matching;
  Receives receives;
  Operation& ended = receives.add(kAnySource, 7);
  CHECK(!post(matching, ended));
  matching.forget_receive(ended);
  CHECK(matching.match(1, 7) == nullptr);

  Operation send;
  Unexpected own = message(0, 7);
  own.send = &send;
  matching.keep(own);
  matching.forget_send(send);
  CHECK(!post(matching, receives.add(0, 7)));

  matching.keep(message(1, 3, 1));
  matching.keep(message(1, 3, 2));
  matching.keep(message(2, 3, 2));
  matching.keep(message(1, 3));
  CHECK(matching.forget_offer(1, 2));
  CHECK(!matching.forget_offer(1, 2));
  matching.forget_offers(1);
  CHECK(!matching.forget_offer(1, 1));
  CHECK(post(matching, receives.add(1, 3)) == std::pair{1, uint64_t{3}});
  CHECK(post(matching, receives.add(2, 3)) == std::pair{2, uint64_t{3}});
}

TEST_CASE("in random orders of calls and arrivals no message overtakes another one that a receive accepts") {
  Random random(base_seed());
  for (int run = 0; run < 200; run++) {
    Matching matching;
    Receives receives;
    std::array<std::array<uint64_t, 3>, 2> sent{}, taken{};  // by source and tag: number of messages
    std::vector<Operation*> waiting;
    const auto take = [&](const Operation& receive, int source, uint64_t tag, uint64_t number) {
      CHECK((receive.peer() == kAnySource || receive.peer() == source));
      CHECK((receive.tag == kAnyTag || receive.tag == tag));
      CHECK(number == taken[static_cast<size_t>(source)][tag]++);
    };
    for (int step = 0; step < 60; step++) {
      const auto source = static_cast<int>(random.below(2));
      const uint64_t tag = random.below(3);
      if (random.chance(2)) {
        Operation& receive =
            receives.add(random.chance(3) ? kAnySource : source, random.chance(3) ? kAnyTag : tag);
        Unexpected given;
        if (matching.post(receive, &given)) {
          take(receive, given.source, given.header.tag, given.header.id);
        } else {
          waiting.push_back(&receive);
        }
        continue;
      }
      const uint64_t number = sent[static_cast<size_t>(source)][tag]++;
      Operation* const receive = matching.match(source, tag);
      if (receive == nullptr) {
        matching.keep(message(source, tag, number));
        continue;
      }
      // No receive that was called before accepts the message.
      for (const Operation* const other : waiting) {
        if (other == receive) break;
        CHECK(!((other->peer() == kAnySource || other->peer() == source) &&
                (other->tag == kAnyTag || other->tag == tag)));
      }
      std::erase(waiting, receive);
      take(*receive, source, tag, number);
    }
  }
}

}  // namespace unit_tagged_matching
