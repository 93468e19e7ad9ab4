// engine/engine and engine/callbacks: which thread polls, which sleeps, and which is woken.
#include <atomic>
#include <chrono>
#include <climits>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "base/interrupt.h"
#include "engine/callbacks.h"
#include "engine/engine.h"
#include "support/catch.h"

namespace unit_engine {

using namespace weft;

namespace {

// A task that is parked until `go`, then advances `steps` times, then parks again.
class Counter final : public Task {
 public:
  explicit Counter(int steps) : left(steps) {}
  Poll poll() override {
    polls++;
    if (!go || left == 0) return Poll::kParked;
    left--;
    return left == 0 ? Poll::kParked : Poll::kAdvanced;
  }
  void fail(const Status& /*why*/) noexcept override {}
  std::atomic<bool> go{false};
  std::atomic<int> left;
  std::atomic<int> polls{0};
};

// A task that throws a given number of times.
class Thrower final : public Task {
 public:
  Poll poll() override {
    if (throws.fetch_sub(1) > 0) throw std::bad_alloc();
    return Poll::kParked;
  }
  void fail(const Status& why) noexcept override {
    if (why.code() == Code::kNoMemory) failures++;
  }
  std::atomic<int> throws{3};
  std::atomic<int> failures{0};
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

TEST_CASE("a wait ends at its deadline, and a poll checks once") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto task = std::make_shared<Counter>(1);
  engine.add(task);
  CHECK(!engine.wait([] { return false; }, Deadline::after(clock, -2, 0)));
  CHECK(task->polls == 1);
  CHECK(!engine.wait([] { return false; }, Deadline::after(clock, 5, 0)));
  CHECK(engine.wait([] { return true; }, Deadline::after(clock, -2, 0)));
}

TEST_CASE("a removed task is never polled again, whichever thread drives meanwhile") {
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

TEST_CASE("several threads wait for different conditions on one engine") {
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

TEST_CASE("a task that throws fails by itself: it is polled again, others advance, and no thread ends") {
  for (const Engine::Mode mode : {Engine::Mode::kThread, Engine::Mode::kCaller}) {
    SystemClock clock;
    Engine engine(clock, mode);
    REQUIRE(engine.start({}).ok());
    const auto thrower = std::make_shared<Thrower>();
    const auto counter = std::make_shared<Counter>(100);
    counter->go = true;
    engine.add(thrower);
    engine.add(counter);
    const auto over = [&] { return thrower->failures == 3 && counter->left == 0; };
    if (mode == Engine::Mode::kCaller) CHECK(engine.wait(over, soon(clock)));
    const Deadline deadline = soon(clock);
    while (!over() && !deadline.expired(clock)) std::this_thread::yield();
    CHECK(thrower->failures == 3);
    CHECK(counter->left == 0);
  }
}

TEST_CASE("a wait that ends with an exception leaves the work to the thread") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kThread);
  REQUIRE(engine.start({}).ok());
  int rounds = 0;
  const auto throws = [&]() -> bool {
    if (++rounds == 1000) throw std::bad_alloc();  // an exception while the waiter keeps the thread asleep
    return false;
  };
  CHECK_THROWS_AS(engine.wait(throws, soon(clock)), std::bad_alloc);
  const auto counter = std::make_shared<Counter>(5);
  counter->go = true;
  engine.add(counter);
  const Deadline deadline = soon(clock);
  while (counter->left > 0 && !deadline.expired(clock)) std::this_thread::yield();
  CHECK(counter->left == 0);
}

TEST_CASE("callbacks run one at a time, in order, and drain waits for them") {
  SystemClock clock;
  for (const Engine::Mode mode : {Engine::Mode::kThread, Engine::Mode::kCaller}) {
    Callbacks callbacks(mode, {});
    std::atomic<int> running{0}, wrong{0};
    int order = 0;
    for (int i = 0; i < 100; i++) {
      callbacks.promise();
      callbacks.post([&, i] {
        if (running.fetch_add(1) != 0 || order != i || !Callbacks::inside()) wrong++;
        order++;
        SystemClock own;
        if (i == 50) (void)callbacks.drain(own).ok();  // from inside a callback it returns at once
        running.fetch_sub(1);
      });
    }
    CHECK(!Callbacks::inside());
    (void)callbacks.drain(clock).ok();
    CHECK(order == 100);
    CHECK(wrong == 0);
  }
}

TEST_CASE("callbacks that are posted amid others run once each, in order, whatever room is made for them") {
  SystemClock clock;
  Callbacks callbacks(Engine::Mode::kCaller, {});
  std::vector<int> order;
  int posted = 0;
  const std::function<void()> post = [&] {
    callbacks.promise();
    callbacks.post([&, i = posted++] {
      order.push_back(i);
      // The queue is never empty while it grows.
      for (int more = 0; more < 3 && posted < 300; more++) post();
    });
  };
  for (int i = 0; i < 3; i++) post();
  REQUIRE(callbacks.drain(clock).ok());
  std::vector<int> expected(300);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(order == expected);
}

TEST_CASE("a task that finishes keeps no other one from being polled in the same round") {
  struct Finishes final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override { return Poll::kFinished; }
  };
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto behind = std::make_shared<Counter>(1);
  engine.add(std::make_shared<Finishes>());
  engine.add(behind);
  bool had_lock = false;
  CHECK(engine.poll_tasks(&had_lock) == Poll::kParked);
  CHECK(behind->polls == 1);
}

TEST_CASE("a task that may be polled later does not slow down one that waits") {
  struct Always final : Task {
    explicit Always(Poll answer) : answers(answer) {}
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override { return answers; }
    const Poll answers;
  };
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  bool had_lock = false;
  engine.add(std::make_shared<Always>(Poll::kLater));
  CHECK(engine.poll_tasks(&had_lock) == Poll::kLater);
  engine.add(std::make_shared<Always>(Poll::kWaiting));
  CHECK(engine.poll_tasks(&had_lock) == Poll::kWaiting);
  engine.add(std::make_shared<Always>(Poll::kAdvanced));
  CHECK(engine.poll_tasks(&had_lock) == Poll::kAdvanced);
}

TEST_CASE("a leaving waiter wakes the thread for work that another poll left over") {
  // The progress thread is inside a long poll, in which the waiter's work completes. Then it sleeps, because
  // a waiter was counted. The waiter must wake it for the remaining task.
  struct Long final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override {
      if (begun.exchange(true)) return Poll::kParked;
      while (!release) std::this_thread::yield();
      done = true;
      return Poll::kParked;
    }
    std::atomic<bool> begun{false}, release{false}, done{false};
  };
  struct Waiting final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override {
      polls++;
      return Poll::kWaiting;
    }
    std::atomic<int> polls{0};
  };
  SystemClock clock;
  for (int round = 0; round < 50; round++) {
    Engine engine(clock, Engine::Mode::kThread);
    REQUIRE(engine.start({}).ok());
    const auto task = std::make_shared<Long>();
    const auto waiting = std::make_shared<Waiting>();
    engine.add(waiting);
    engine.add(task);
    while (!task->begun) std::this_thread::yield();
    int looks = 0;
    CHECK(engine.wait(
        [&] {
          if (++looks == 100) task->release = true;  // by now the waiter is counted
          return task->done.load();
        },
        soon(clock)));
    const int seen = waiting->polls;
    const Deadline deadline = soon(clock);
    while (waiting->polls < seen + 10 && !deadline.expired(clock)) std::this_thread::yield();
    CHECK(waiting->polls >= seen + 10);
  }
}

TEST_CASE("work that arrives between a waiter's last poll and its registration is not lost") {
  // The thread polls new work while the waiter becomes counted, then yields to the waiter, which never saw
  // that work.
  struct Late final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override {
      begun = true;
      while (!release) std::this_thread::yield();
      polls++;
      return Poll::kWaiting;
    }
    std::atomic<bool> begun{false}, release{false};
    std::atomic<int> polls{0};
  };
  SystemClock clock;
  for (int round = 0; round < 20; round++) {
    Engine engine(clock, Engine::Mode::kThread);
    REQUIRE(engine.start({}).ok());
    const auto late = std::make_shared<Late>();
    int looks = 0;
    CHECK(engine.wait(
        [&] {
          looks++;
          // A round checks twice: this is the second check of round 16, after the poll that found nothing.
          if (looks == 34) {
            engine.add(late);
            while (!late->begun) std::this_thread::yield();
          }
          if (looks < 35) return false;
          late->release = true;
          while (late->polls == 0) std::this_thread::yield();
          // Gives the thread time to see the waiter; the test passes without it too.
          for (int i = 0; i < 1000; i++) std::this_thread::yield();
          return true;
        },
        soon(clock)));
    const int seen = late->polls;
    const Deadline deadline = soon(clock);
    while (late->polls < seen + 10 && !deadline.expired(clock)) std::this_thread::yield();
    REQUIRE(late->polls >= seen + 10);
  }
}

TEST_CASE("a thread that finds the progress lock taken is woken for tasks that it could not poll") {
  struct Waiting final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override {
      polls++;
      return Poll::kWaiting;
    }
    std::atomic<int> polls{0};
  };
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kThread);
  REQUIRE(engine.start({}).ok());
  const auto waiting = std::make_shared<Waiting>();
  engine.add(waiting);
  const auto goes_on = [&] {
    const int seen = waiting->polls;
    const Deadline deadline = soon(clock);
    while (waiting->polls < seen + 10 && !deadline.expired(clock)) std::this_thread::yield();
    return waiting->polls >= seen + 10;
  };
  const auto while_it_looks = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  for (int round = 0; round < 10; round++) {
    engine.locked(while_it_looks);
    REQUIRE(goes_on());
    const auto try_it = [&] {
      return engine.try_locked([&] {
        while_it_looks();
        return true;
      });
    };
    while (!try_it()) std::this_thread::yield();
    REQUIRE(goes_on());
  }
}

TEST_CASE("work that arrives during a waiter's last poll is not lost") {
  // The thread is woken for the task, finds that the waiter polls and has already passed it, and sleeps.
  struct Early final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override {
      if (has_work.exchange(false)) worked = true;
      return Poll::kParked;
    }
    std::atomic<bool> has_work{false}, worked{false};
  };
  struct Last final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Last(Engine& of, Early& before, std::thread::id who) : engine(of), early(before), waiter(who) {}
    Poll poll() override {
      if (done || std::this_thread::get_id() != waiter) return Poll::kParked;
      early.has_work = true;
      engine.notify();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // while the thread polls
      done = true;
      return Poll::kParked;
    }
    Engine& engine;
    Early& early;
    const std::thread::id waiter;
    std::atomic<bool> done{false};
  };
  SystemClock clock;
  for (int round = 0; round < 10; round++) {
    Engine engine(clock, Engine::Mode::kThread);
    REQUIRE(engine.start({}).ok());
    const auto early = std::make_shared<Early>();
    const auto last = std::make_shared<Last>(engine, *early, std::this_thread::get_id());
    engine.add(early);
    engine.add(last);
    CHECK(engine.wait([&] { return last->done.load(); }, soon(clock)));
    const Deadline deadline = soon(clock);
    while (!early->worked && !deadline.expired(clock)) std::this_thread::yield();
    REQUIRE(early->worked);
  }
}

TEST_CASE("work of which the thread is notified after a waiter's last poll is not lost") {
  // Counts how often the thread goes to sleep.
  struct CountingClock final : Clock {
    uint64_t now_ns() override { return real.now_ns(); }
    void relax(uint32_t round) override { real.relax(round); }
    void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) override {
      sleeps++;
      real.sleep(word, expected, until_ns);
    }
    void wake_all(const std::atomic<uint32_t>& word) override { real.wake_all(word); }
    SystemClock real;
    std::atomic<int> sleeps{0};
  };
  struct Work final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override {
      polls++;
      if (has_work.exchange(false)) worked = true;
      return Poll::kParked;
    }
    std::atomic<bool> has_work{false}, worked{false};
    std::atomic<int> polls{0};
  };
  CountingClock clock;
  Engine engine(clock, Engine::Mode::kThread);
  REQUIRE(engine.start({}).ok());
  const auto work = std::make_shared<Work>();
  const Deadline deadline = soon(clock);
  const auto sleeps = [&](int times) {
    while (clock.sleeps < times && !deadline.expired(clock)) std::this_thread::yield();
  };
  sleeps(1);
  engine.add(work);
  sleeps(2);
  REQUIRE(work->polls > 0);
  int looks = 0;
  CHECK(engine.wait(
      [&] {
        // A round checks twice: this is the second check of round 19, after its poll. The waiter is counted.
        if (++looks < 40) return false;
        work->has_work = true;
        engine.notify();
        return true;
      },
      soon(clock)));
  while (!work->worked && !deadline.expired(clock)) std::this_thread::yield();
  CHECK(work->worked);
}

TEST_CASE("work for which the thread was woken while a waiter registered is not lost") {
  // The thread wakes late. It sees a waiter, which polled before the task arrived and leaves without another
  // poll.
  struct LateClock final : Clock {
    uint64_t now_ns() override { return real.now_ns(); }
    void relax(uint32_t round) override { real.relax(round); }
    void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t /*until_ns*/) override {
      sleeps++;
      while (word.load() == expected || held) std::this_thread::yield();
    }
    void wake_all(const std::atomic<uint32_t>& /*word*/) override {}
    SystemClock real;
    std::atomic<bool> held{false};
    std::atomic<int> sleeps{0};
  };
  struct Work final : Task {
    void fail(const Status& /*why*/) noexcept override {}
    Poll poll() override {
      if (has_work.exchange(false)) worked = true;
      return Poll::kParked;
    }
    std::atomic<bool> has_work{false}, worked{false};
  };
  LateClock clock;
  Engine engine(clock, Engine::Mode::kThread);
  REQUIRE(engine.start({}).ok());
  const auto sleeps = [&](int times) {
    const Deadline deadline = soon(clock);
    while (clock.sleeps < times && !deadline.expired(clock)) std::this_thread::yield();
  };
  sleeps(1);
  const auto work = std::make_shared<Work>();
  engine.add(work);
  sleeps(2);
  int looks = 0;
  CHECK(engine.wait(
      [&] {
        looks++;
        // A round checks twice: this is the second check of round 16, after the poll that found nothing.
        if (looks == 34) {
          clock.held = true;
          work->has_work = true;
          engine.notify();
        }
        if (looks < 35) return false;
        clock.held = false;
        sleeps(3);
        return true;
      },
      soon(clock)));
  const Deadline deadline = soon(clock);
  while (!work->worked && !deadline.expired(clock)) std::this_thread::yield();
  CHECK(work->worked);
}

TEST_CASE("a callback that does not return ends a drain by its deadline, and later runs to its end") {
  std::atomic<bool> release{false}, returned{false};
  std::atomic<int> after{0};
  SystemClock clock;
  {
    Callbacks callbacks(Engine::Mode::kThread, {});
    std::atomic<bool> begun{false};
    callbacks.promise();
    callbacks.post([&] {
      begun = true;
      while (!release) std::this_thread::yield();
      returned = true;
    });
    while (!begun) std::this_thread::yield();
    callbacks.promise();
    callbacks.post([&] { after++; });
    CHECK(callbacks.drain(clock, 20).code() == Code::kTimeout);
  }
  release = true;
  const Deadline deadline = soon(clock);
  while (!returned && !deadline.expired(clock)) std::this_thread::yield();
  CHECK(returned);
  CHECK(after == 0);  // callbacks that had not begun never run
}

namespace {

// Counts calls of the interrupt callback, which returns yes.
struct Interrupter {
  std::atomic<int> asked{0};
  static int32_t ask(void* user_data) {
    static_cast<Interrupter*>(user_data)->asked++;
    return Callbacks::inside() ? 1 : 0;
  }
};

}  // namespace

TEST_CASE("an interrupt ends the waits of a call, but neither its settling nor another thread's wait") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kThread);
  REQUIRE(engine.start({}).ok());
  Interrupter program;
  const auto never = [] { return false; };
  {
    const Interrupt::Scope call;
    Interrupt::listen_to({Interrupter::ask, &program, &clock});
    CHECK(Interrupt::status().ok());
    CHECK(!engine.wait(never, soon(clock)));
    CHECK(program.asked == 1);
    CHECK(Interrupt::status().code() == Code::kInterrupted);
    // The same call neither waits nor asks again.
    CHECK(!engine.wait(never, Deadline::never()));
    const uint64_t start = clock.now_ns();
    CHECK(!engine.settle(never, Deadline::after(clock, 30, 0)));
    CHECK(clock.now_ns() - start >= 30'000'000);
    std::thread([&] { CHECK(!engine.wait(never, Deadline::after(clock, 200, 0))); }).join();
    CHECK(program.asked == 1);
    CHECK(Interrupt::result(Status::error(Code::kTimeout, "late")).code() == Code::kInterrupted);
    CHECK(Interrupt::result({}).ok());
  }
  // The next call.
  CHECK(Interrupt::status().ok());
  CHECK(!engine.wait(never, Deadline::after(clock, 200, 0)));
  CHECK(program.asked == 1);
}

TEST_CASE("a wait can be interrupted although every round makes progress") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto task = std::make_shared<Counter>(INT_MAX);
  task->go = true;
  engine.add(task);
  Interrupter program;
  const Interrupt::Scope call;
  Interrupt::listen_to({Interrupter::ask, &program, &clock});
  CHECK(!engine.wait([&] { return task->left == 0; }, Deadline::never()));
  CHECK(task->left > 0);
  CHECK(program.asked == 1);
}

}  // namespace unit_engine
