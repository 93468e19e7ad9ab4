// lib/reducer/step/readiness and ready_order: the atomic words that calls of ready share, alone and against a
// finish on another thread.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reducer/bucket/copy_factor.h"
#include "reducer/calls/begin.h"
#include "reducer/data.h"
#include "reducer/plan/ready_order.h"
#include "reducer/step/presence.h"
#include "reducer/step/readiness.h"
#include "support/catch.h"

namespace unit_readiness {

using namespace weft;

namespace {

Plan plan_of(size_t params, uint64_t limit) {
  Manifest m;
  for (size_t i = 0; i < params; i++) {
    Param p;
    p.name = "p" + std::to_string(i);
    p.shape = {100};
    p.strides = {1};
    p.count = 100;
    m.params.push_back(p);
  }
  return make_plan(m, {.limits = {limit}});
}

StepWord local(uint32_t stamp) {
  return StepWord::make(stamp, true, true);
}

}  // namespace

TEST_CASE("a step is settled when every gradient that was claimed has arrived") {
  const Plan plan = plan_of(4, 400);
  Readiness readiness(plan);
  CHECK(readiness.settled());  // before the first step
  for (const uint32_t stamp : {1u, 2u}) {
    readiness.open(stamp, false);
    CHECK(readiness.settled());
    CHECK(readiness.use(0, stamp) == Use::kLast);
    CHECK(readiness.use(3, stamp) == Use::kLast);
    CHECK_FALSE(readiness.settled());
    readiness.arrive(plan.bucket_of[3]);
    readiness.close();
    CHECK_FALSE(readiness.settled());
    readiness.arrive(plan.bucket_of[0]);
    CHECK(readiness.settled());
    CHECK_FALSE(readiness.full());
  }
}

TEST_CASE("each gradient of a bucket arrives at once, except the last, which arrives when its copy is done") {
  const Plan plan = plan_of(3, 1200);
  Readiness readiness(plan);
  readiness.open(1, false);
  for (uint64_t param = 0; param < 3; param++) CHECK(readiness.use(param, 1) == Use::kLast);
  CHECK(readiness.arrive_unless_last(0));
  CHECK(readiness.arrive_unless_last(0));
  CHECK_FALSE(readiness.arrive_unless_last(0));
  CHECK_FALSE(readiness.full(0));
  CHECK_FALSE(readiness.settled());  // a thread is still copying its gradient
  CHECK(readiness.arrive(0));
  CHECK(readiness.full(0));
  CHECK(readiness.settled());
}

TEST_CASE("if many threads' gradients arrive, exactly one thread finds that its own is the last") {
  constexpr int kThreads = 4;
  const Plan plan = plan_of(kThreads, 100'000);
  Readiness readiness(plan);
  for (uint32_t stamp = 1; stamp <= 100; stamp++) {
    readiness.open(stamp, false);
    std::atomic<int> last{0}, ready{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; t++) {
      threads.emplace_back([&] {
        ready++;
        while (ready.load() < kThreads) std::this_thread::yield();
        if (readiness.arrive_unless_last(0)) return;
        last++;
        if (!readiness.arrive(0)) last += 100;
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(last == 1);
    REQUIRE(readiness.full(0));
  }
}

TEST_CASE("uses are counted in the word that the last of them claims") {
  const Plan plan = plan_of(2, 400);
  Readiness readiness(plan);
  for (const uint32_t stamp : {1u, 2u}) {
    readiness.open(stamp, false);
    for (uint32_t use = 1; use < 3; use++) {
      CHECK(readiness.use(0, stamp, 3) == Use::kEarlier);
      CHECK(readiness.uses(0, stamp) == use);
      CHECK_FALSE(readiness.claimed(0, stamp));
      CHECK_FALSE(readiness.leave_out(0, stamp));  // it has been used
    }
    CHECK(readiness.use(0, stamp, 3) == Use::kLast);
    CHECK(readiness.claimed(0, stamp));
    CHECK(readiness.use(0, stamp, 3) == Use::kRefused);
    CHECK(readiness.uses(0, stamp) == 3);
    CHECK_FALSE(readiness.claim(0, stamp));
    CHECK(readiness.leave_out(1, stamp));
    CHECK(readiness.use(1, stamp) == Use::kRefused);
    CHECK(readiness.use(1, stamp - 1) == Use::kRefused);  // a call that began a step ago
    CHECK(readiness.missing().empty());
    readiness.close();
  }
}

TEST_CASE("a parameter that no step uses is refused, and one whose uses are learned is claimed at the end") {
  const Plan plan = plan_of(2, 400);
  Readiness readiness(plan);
  readiness.open(1, true);
  CHECK(readiness.use(0, 1, 0) == Use::kRefused);
  CHECK(readiness.uses(0, 1) == 0);
  for (int use = 0; use < 5; use++) CHECK(readiness.use(1, 1, UINT32_MAX) == Use::kEarlier);
  CHECK(readiness.claim(1, 1));
  CHECK(readiness.uses(1, 1) == 5);
}

TEST_CASE("a local step's end waits for a running copy, and a copy that comes too late does not begin") {
  const Plan plan = plan_of(2, 400);
  Readiness readiness(plan);
  readiness.open(1, true);
  CHECK(readiness.use(0, 1) == Use::kLast);
  CHECK(readiness.enter(0, local(1)));
  readiness.close();
  CHECK(readiness.copying(0));
  readiness.leave(0);
  CHECK_FALSE(readiness.copying(0));
  // The call saw the step open, and claims after it is closed.
  CHECK(readiness.use(1, 1) == Use::kLast);
  CHECK_FALSE(readiness.enter(1, local(1)));
  CHECK_FALSE(readiness.copying(1));
}

TEST_CASE("a call that comes a step too late does not change the next step's claim") {
  const Plan plan = plan_of(1, 400);
  Readiness readiness(plan);
  readiness.open(1, true);
  readiness.close();
  readiness.open(2, true);
  CHECK(readiness.use(0, 1) == Use::kLast);  // no call of step 2 came before
  CHECK(readiness.use(0, 2) == Use::kLast);
  CHECK(readiness.enter(0, local(2)));
  CHECK_FALSE(readiness.enter(0, local(1)));
  readiness.close();
  CHECK(readiness.copying(0));
}

TEST_CASE("nothing is copied after a local step's end") {
  constexpr size_t kParams = 4;
  constexpr uint32_t kSteps = 3000;
  const Plan plan = plan_of(kParams, 400);
  Readiness readiness(plan);
  std::vector<uint64_t> copies(kParams);  // element i: written by the thread that has claimed i
  std::atomic<bool> over{false};
  const auto work = [&] {
    while (!over.load()) {
      const StepWord step = readiness.step();
      for (size_t i = 0; step.open() && i < kParams; i++) {
        if (readiness.use(i, step.stamp()) != Use::kLast || !readiness.enter(i, step)) continue;
        copies[i]++;
        readiness.leave(i);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; t++) threads.emplace_back(work);
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool bounded = true;
  uint64_t most = 0;
  // Runs until something has been copied: on a busy machine all steps may be over before the threads begin.
  for (uint32_t stamp = 1; bounded && (stamp <= kSteps || most == 0); stamp++) {
    readiness.open(stamp, true);
    if (stamp % 3 != 0) std::this_thread::yield();
    readiness.close();
    for (size_t i = 0; i < kParams; i++) {
      while (readiness.copying(i) && bounded) {
        std::this_thread::yield();
        bounded = std::chrono::steady_clock::now() < late;
      }
    }
    // This read races with a copy that should not exist any more, which the thread sanitizer would report.
    for (const uint64_t count : copies) most = std::max(most, count);
    for (const uint64_t count : copies) bounded &= count <= stamp;
    bounded &= std::chrono::steady_clock::now() < late;
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(bounded);
  CHECK(most > 0);
}

namespace {

// A reducer's notes about a parameter, without a program.
struct Noted {
  Noted() {
    r.state = std::make_shared<ReducerState>();
    r.state->presence = std::make_shared<Presence>(2, true);
    r.state->copy_factor = std::make_unique<CopyFactor>(2);
  }
  // Takes the next stamp, as a step does.
  uint32_t after(uint32_t stamp) {
    r.program.stamp = stamp;
    return next_stamp(r);
  }
  ReducerData r;
};

}  // namespace

TEST_CASE("a mark of the step with the same stamp, 2^32 steps before, does not count") {
  for (const uint32_t first : {1u, 5u, 0x7fffffffu, 0x80000000u, UINT32_MAX}) {
    INFO(first);
    Noted noted;
    Presence& presence = *noted.r.state->presence;
    CopyFactor& factor = *noted.r.state->copy_factor;
    noted.after(first - 1);
    presence.note_absent(1, first);
    factor.know(first, 0.5);
    CHECK(factor.take(1, first) == 0.5);
    CHECK(presence.absent(1, first));
    // The steps at which each half of the numbers begins, until the stamp comes again.
    for (const uint32_t last : {0x7fffffffu, UINT32_MAX, 0x7fffffffu}) {
      const uint32_t stamp = noted.after(last);
      CHECK(stamp == (last == UINT32_MAX ? 1 : last + 1));
    }
    noted.after(first == 1 ? UINT32_MAX : first - 1);
    CHECK_FALSE(presence.absent(1, first));
    CHECK(factor.take(1, first) == 1);
  }
}

TEST_CASE("absent parameters stay absent when the step is tried again, also where stamps wrap around") {
  for (const uint32_t failed : {9u, 0x7fffffffu, UINT32_MAX}) {
    INFO(failed);
    Noted noted;
    Presence& presence = *noted.r.state->presence;
    presence.note_absent(1, failed);
    const uint32_t next = noted.after(failed);
    presence.carry(failed, next);
    CHECK(presence.absent(1, next));
    CHECK_FALSE(presence.absent(0, next));
  }
}

TEST_CASE("what local steps accumulated 2^32 windows before does not count") {
  Presence presence(2, false);
  presence.skip_to(3);
  presence.note_accumulated(1);
  CHECK(presence.accumulated(1));
  for (const uint32_t window : {0x7fffffffu, UINT32_MAX, 3u}) presence.skip_to(window);
  CHECK_FALSE(presence.accumulated(1));
}

TEST_CASE("the order of readiness follows the times, and the calls if times are equal") {
  ReadyOrder order(5);
  CHECK_FALSE(order.noted());
  order.note(3, 70);
  order.note(1, 20);
  order.note(4, 20);
  order.note(0, 20);
  CHECK(order.noted());
  CHECK(order.params() == std::vector<uint32_t>{1, 4, 0, 3, 2});
  CHECK(order.times() == ReadyTimes{20, 20, kNeverReady, 70, 20});
  order.begin();
  CHECK_FALSE(order.noted());
  CHECK(order.params() == std::vector<uint32_t>{0, 1, 2, 3, 4});
}

}  // namespace unit_readiness
