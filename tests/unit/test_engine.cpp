// core/engine and core/callbacks: who polls, who sleeps, who is woken.
#include <atomic>
#include <memory>
#include <thread>

#include "core/callbacks.h"
#include "core/engine.h"
#include "support/catch.h"

using namespace weft;

namespace {

// Parked until `go`, then advances `steps` times, then parks again.
class Counter final : public Task {
 public:
  explicit Counter(int steps) : left(steps) {}
  Poll poll() override {
    polls++;
    if (!go || left == 0) return Poll::kParked;
    left--;
    return left == 0 ? Poll::kParked : Poll::kAdvanced;
  }
  std::atomic<bool> go{false};
  std::atomic<int> left;
  std::atomic<int> polls{0};
};

Deadline soon(Clock& clock) {
  return Deadline::after(clock, 10000, 0);
}

}  // namespace

TEST_CASE("in caller mode nothing advances except inside a wait") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  REQUIRE(engine.start({}).ok());
  const auto task = std::make_shared<Counter>(100);
  engine.add(task);
  task->go = true;
  engine.notify();
  CHECK(task->polls == 0);
  CHECK(engine.wait([&] { return task->left == 0; }, soon(clock)));
  CHECK(task->left == 0);
}

TEST_CASE("in thread mode a notified task advances by itself") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kThread);
  REQUIRE(engine.start({}).ok());
  const auto task = std::make_shared<Counter>(1000);
  engine.add(task);
  task->go = true;
  engine.notify();
  const Deadline deadline = soon(clock);
  while (task->left > 0 && !deadline.expired(clock)) std::this_thread::yield();
  CHECK(task->left == 0);
}

TEST_CASE("a wait ends at its deadline, and a poll looks once") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto task = std::make_shared<Counter>(1);
  engine.add(task);
  CHECK(!engine.wait([] { return false; }, Deadline::after(clock, -2, 0)));
  CHECK(task->polls == 1);
  CHECK(!engine.wait([] { return false; }, Deadline::after(clock, 5, 0)));
  CHECK(engine.wait([] { return true; }, Deadline::after(clock, -2, 0)));
}

TEST_CASE("a removed task is never polled again, whoever drives meanwhile") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kThread);
  REQUIRE(engine.start({}).ok());
  for (int i = 0; i < 200; i++) {
    auto task = std::make_shared<Counter>(1 << 30);
    task->go = true;
    engine.add(task);
    engine.remove(task.get());
    CHECK(task.use_count() == 1);
    const int polls = task->polls;
    engine.notify();
    std::this_thread::yield();
    CHECK(task->polls == polls);
  }
}

TEST_CASE("several threads wait for different things of one engine") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kThread);
  REQUIRE(engine.start({}).ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; i++) {
        auto task = std::make_shared<Counter>(20);
        engine.add(task);
        task->go = true;
        engine.notify();
        if (!engine.wait([&] { return task->left == 0; }, soon(clock))) wrong++;
        engine.remove(task.get());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("callbacks run one at a time, in order, and drain waits for them") {
  for (const Engine::Mode mode : {Engine::Mode::kThread, Engine::Mode::kCaller}) {
    Callbacks callbacks(mode, {});
    std::atomic<int> running{0}, wrong{0};
    int order = 0;
    for (int i = 0; i < 100; i++) {
      callbacks.post([&, i] {
        if (running.fetch_add(1) != 0 || order != i || !Callbacks::inside()) wrong++;
        order++;
        if (i == 50) callbacks.drain();  // from inside: returns at once
        running.fetch_sub(1);
      });
    }
    CHECK(!Callbacks::inside());
    callbacks.drain();
    CHECK(order == 100);
    CHECK(wrong == 0);
  }
}
