// lib/hook/stage_worker: order, turns, and stages that do not return.
#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "comm/context.h"
#include "kernels/host_ops.h"
#include "support/catch.h"

namespace unit_stage_worker {

using namespace weft;

namespace {

class Nothing final : public Hook {
 public:
  std::string name() const override { return "nothing"; }
  Status plan(const weft_bucket&, weft_hook_plan*) override { return {}; }
  Status stage(const weft_bucket&, weft_stage*) override { return {}; }
};

class Foreign final : public Hook {
 public:
  std::string name() const override { return "foreign"; }
  StageKind stage_kind() const override { return StageKind::kForeign; }
  Status plan(const weft_bucket&, weft_hook_plan*) override { return {}; }
  Status stage(const weft_bucket&, weft_stage*) override { return {}; }
};

class Work final : public StageWork {
 public:
  Work(Context& context, Hook& hook, const void* owner, uint64_t place, std::function<void()> body)
      : context_(context), hook_(hook), body_(std::move(body)) {
    owner_ = owner;
    place_ = place;
  }
  Hook& hook() override { return hook_; }
  Engine& engine() override { return context_.engine(); }
  void run() override { body_(); }

 private:
  Context& context_;
  Hook& hook_;
  const std::function<void()> body_;
};

// A stage that runs until `release` is set.
struct Stuck {
  std::atomic<bool> begun{false}, release{false};
  std::function<void()> body() {
    return [this] {
      begun = true;
      while (!release) std::this_thread::yield();
    };
  }
};

// The machine's clock. Calls the test's function when this thread reads it for the second time; then that
// reading is late.
class WatchedClock final : public Clock {
 public:
  uint64_t now_ns() override {
    if (std::this_thread::get_id() != test_ || !at_second_look || ++looks_ < 2) return machine_.now_ns();
    std::exchange(at_second_look, nullptr)();
    return UINT64_MAX - 1;
  }
  void relax(uint32_t round) override { machine_.relax(round); }
  void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) override {
    if (on_worker) worker_sleeps++;
    machine_.sleep(word, expected, until_ns);
  }
  void wake_all(const std::atomic<uint32_t>& word) override { machine_.wake_all(word); }

  std::function<void()> at_second_look;
  std::atomic<int> worker_sleeps{0};
  static thread_local bool on_worker;

 private:
  SystemClock machine_;
  const std::thread::id test_ = std::this_thread::get_id();
  int looks_ = 0;
};
thread_local bool WatchedClock::on_worker = false;

struct Rig {
  explicit Rig(std::shared_ptr<Clock> clock = nullptr) {
    ContextOptions options;
    options.clock = std::move(clock);
    options.host = &host_ops();
    options.thread_start = [this](const char* name) {
      if (std::string(name) != "weft-worker") return;
      WatchedClock::on_worker = true;
      threads++;
    };
    REQUIRE(Context::create(std::move(options), &context).ok());
  }
  ~Rig() { CHECK(context->close().ok()); }
  std::shared_ptr<Work> post(std::function<void()> body, uint64_t place = 0, const void* owner = nullptr,
                             Hook* of = nullptr) {
    auto work = std::make_shared<Work>(*context, of != nullptr ? *of : hook, owner, place, std::move(body));
    context->stages().post(work);
    return work;
  }
  bool until(const std::function<bool()>& done) {
    return context->engine().wait(done, Deadline::after(context->clock(), 60'000, 0));
  }
  Nothing hook;
  std::atomic<int> threads{0};
  std::shared_ptr<Context> context;
};

}  // namespace

TEST_CASE(
    "stages run one by one, the smallest place of each owner first, on a thread that the first one starts") {
  Rig rig;
  CHECK(rig.threads == 0);
  Stuck first;
  rig.post(first.body());
  REQUIRE(rig.until([&] { return first.begun.load(); }));
  std::vector<int> order;
  const int a = 0, b = 0;
  std::shared_ptr<Work> last;
  for (const int place : {3, 1, 2}) last = rig.post([&, place] { order.push_back(place); }, place, &a);
  for (const int place : {5, 4}) last = rig.post([&, place] { order.push_back(place); }, place, &b);
  const auto dropped = rig.post([&] { order.push_back(9); }, 0, &a);
  rig.context->stages().cancel(*dropped);
  CHECK_FALSE(dropped->out());
  first.release = true;
  REQUIRE(rig.until([&] { return !last->out() && rig.threads == 1; }));
  // The last posted stage belongs to b, whose turn comes last.
  REQUIRE(rig.until([&] {
    return with_turn(*rig.context, rig.hook, Deadline::never(),
                     [&] { return order.size() == 5 ? Status() : Status::error(Code::kState, "not yet"); })
        .ok();
  }));
  CHECK(order == std::vector<int>{1, 2, 3, 4, 5});
}

TEST_CASE("no other call of a hook runs during its stage, while other hooks' stages do") {
  Rig rig;
  Nothing other;
  Context& context = *rig.context;
  REQUIRE(rig.hook.turn().try_take());
  std::atomic<bool> ran{false};
  const auto waits = rig.post([&] { ran = true; });
  const auto passes = rig.post([] {}, 0, nullptr, &other);
  REQUIRE(rig.until([&] { return !passes->out(); }));
  CHECK(waits->out());
  CHECK_FALSE(ran);
  const auto called =
      with_turn(context, rig.hook, Deadline::after(context.clock(), 10, 0), [] { return Status(); });
  CHECK(called.code() == Code::kState);
  CHECK(called.text() == "a stage of hook 'nothing' has not returned");
  rig.hook.turn().give();
  context.stages().turn_over();
  REQUIRE(rig.until([&] { return !waits->out(); }));
  CHECK(ran);
}

TEST_CASE("a call that gave up waiting for a hook's turn leaves the turn to the next stage") {
  auto clock = std::make_shared<WatchedClock>();
  Rig rig(clock);
  HookTurn& turn = rig.hook.turn();
  REQUIRE(turn.try_take());
  const auto waits = rig.post([] {});
  const auto asleep_after = [&](int sleeps) {
    return rig.until([&, sleeps] { return clock->worker_sleeps > sleeps; });
  };
  REQUIRE(asleep_after(0));
  // The running stage returns between the call's last attempt and its leaving.
  bool found_it_wanted = false;
  clock->at_second_look = [&] {
    turn.give();
    const int sleeps = clock->worker_sleeps;
    rig.context->stages().turn_over();
    found_it_wanted = asleep_after(sleeps);
  };
  const auto called = with_turn(*rig.context, rig.hook, Deadline::never(), [] { return Status(); });
  CHECK(called.code() == Code::kState);
  CHECK(found_it_wanted);
  CHECK(rig.until([&] { return !waits->out(); }));
}

TEST_CASE("a thread is started for stages that no thread took, also if there was none") {
  Rig rig;
  const int mine = 0;
  auto helper = std::make_unique<StageWorker::Helper>(rig.context->stages(), &mine);
  const auto left = rig.post([] {}, 0, &mine);
  CHECK(rig.threads == 0);
  helper.reset();
  CHECK(rig.until([&] { return !left->out(); }));
  CHECK(rig.threads == 1);
}

TEST_CASE("a stage that is set aside blocks no other hook, and its own only until it returns") {
  Rig rig;
  Nothing other;
  Stuck stuck;
  const auto lost = rig.post(stuck.body());
  REQUIRE(rig.until([&] { return stuck.begun.load(); }));
  const auto same = rig.post([] {});
  const auto another = rig.post([] {}, 0, nullptr, &other);
  rig.context->stages().set_aside(*lost);
  REQUIRE(rig.until([&] { return !another->out(); }));
  CHECK(lost->out());
  CHECK(same->out());
  CHECK(rig.threads == 2);
  stuck.release = true;
  REQUIRE(rig.until([&] { return !lost->out() && !same->out(); }));
}

TEST_CASE("a long stage of a program's hook is left to its thread if another hook's stage is urgent") {
  Rig rig;
  Foreign own;
  Nothing other;
  Stuck stuck;
  StageWorker& stages = rig.context->stages();
  const auto longer = rig.post(stuck.body(), 0, nullptr, &own);
  REQUIRE(rig.until([&] { return stuck.begun.load(); }));
  const auto same = rig.post([] {}, 0, nullptr, &own);
  const uint64_t posted_ns = rig.context->clock().now_ns();
  CHECK(rig.until([&] {
    stages.relieve();
    return rig.context->clock().now_ns() - posted_ns > 1'100'000'000;
  }));
  CHECK(rig.threads == 1);  // the other stage would have to wait anyway
  const auto another = rig.post([] {}, 0, nullptr, &other);
  CHECK(rig.until([&] {
    stages.relieve();
    return !another->out();
  }));
  CHECK(rig.threads == 2);
  CHECK(same->out());
  stuck.release = true;
  REQUIRE(rig.until([&] { return !longer->out() && !same->out(); }));
}

TEST_CASE("a waiting thread runs its own stages when there is nothing to poll") {
  Rig rig;
  const int mine = 0;
  std::thread::id ran_on;
  StageWorker& stages = rig.context->stages();
  {
    StageWorker::Helper helper(stages, &mine);
    const auto work = rig.post([&] { ran_on = std::this_thread::get_id(); }, 0, &mine);
    CHECK(rig.context->engine().wait([&] { return !work->out(); },
                                     Deadline::after(rig.context->clock(), 60'000, 0), helper));
    CHECK(ran_on == std::this_thread::get_id());
    CHECK(rig.threads == 0);
    // Another waiter's stage is left to the thread.
    const int theirs = 0;
    const auto foreign = rig.post([&] { ran_on = std::this_thread::get_id(); }, 0, &theirs);
    CHECK(rig.context->engine().wait([&] { return !foreign->out(); },
                                     Deadline::after(rig.context->clock(), 60'000, 0), helper));
    CHECK(ran_on != std::this_thread::get_id());
  }
  // Stages that no thread has taken are not forgotten when the wait ends.
  auto helper = std::make_unique<StageWorker::Helper>(stages, &mine);
  const auto left = rig.post([] {}, 0, &mine);
  helper.reset();
  CHECK(rig.until([&] { return !left->out(); }));
}

TEST_CASE("a context ends although a stage does not return") {
  Stuck stuck;
  Nothing hook;
  ContextOptions options;
  options.host = &host_ops();
  std::shared_ptr<Context> context;
  REQUIRE(Context::create(std::move(options), &context).ok());
  auto work = std::make_shared<Work>(*context, hook, nullptr, 0, stuck.body());
  context->stages().post(work);
  while (!stuck.begun) std::this_thread::yield();
  const Status stopped = context->stages().stop(10);
  CHECK(stopped.code() == Code::kTimeout);
  auto never = std::make_shared<Work>(*context, hook, nullptr, 0, [] {});
  context->stages().post(never);
  CHECK(never->out());
  context->stages().cancel(*never);
  CHECK_FALSE(never->out());
  CHECK(context->close().ok());
  stuck.release = true;
  while (work->out()) std::this_thread::yield();
  // Once idle, its thread uses nothing of the context except the engine, which it notifies.
  while (work.use_count() > 1) std::this_thread::yield();
}

}  // namespace unit_stage_worker
