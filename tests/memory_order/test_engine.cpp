// Threads that sleep and are woken: the progress engine, the stage worker, hooks' turns and gates; and the
// trace, which any thread writes.
#include <array>
#include <memory>

#include "audit.h"
#include "engine/engine.h"
#include "hook/stage_gate.h"
#include "hook/stage_worker.h"
#include "support/catch.h"
#include "trace/recorder.h"

namespace weft {

// Instead of that of lib/trace/timeline.cpp.
Status write_timeline(const std::vector<RecordedEvent>&, uint64_t, const std::string&) {
  return {};
}

namespace {

using model::clock;
using model::require;
using model::run;

template <class Condition>
void wait_for(const Condition& condition) {
  for (uint32_t round = 0; !condition(); round++) clock().relax(round);
}

// Waits for a stage that the program completes.
struct StageTask final : Task {
  StageTask(Engine& engine, StageGate& its_gate)
      : gate(its_gate), waiter(engine), generation(gate.open(&waiter)) {}
  Poll poll() override {
    if (!waiter.done()) return Poll::kParked;
    require(output == 1 && !waiter.result().ok(), "what the stage's completion publishes");
    finished.store(true, std::memory_order_release);
    return Poll::kFinished;
  }
  void fail(const Status&) noexcept override {}
  bool complete() {
    output = 1;
    return gate.complete(generation, Status::out_of_memory());
  }

  StageGate& gate;
  StageWaiter waiter;
  const uint64_t generation;
  int output = 0;
  std::atomic<bool> finished{false};
};

struct Running {
  Running() { require(engine.start({}).ok(), "start"); }
  std::shared_ptr<StageTask> task() {
    auto made = std::make_shared<StageTask>(engine, gate);
    engine.add(made);
    return made;
  }
  Engine engine{clock(), Engine::Mode::kThread};
  StageGate gate;
};

bool finished(const std::shared_ptr<StageTask>& task) {
  return task->finished.load(std::memory_order_acquire);
}

// Nobody but the progress thread polls: each notification wakes it.
void notifications() {
  Running r;
  const std::array tasks = {r.task(), r.task()};
  run({[&] { tasks[0]->complete(); }, [&] { tasks[1]->complete(); }});
  wait_for([&] { return finished(tasks[0]) && finished(tasks[1]); });
}

// A thread that waits for one task keeps the progress thread asleep, and leaves it the other one.
void waiter() {
  Running r;
  const std::array tasks = {r.task(), r.task()};
  run({[&] { r.engine.wait([&] { return finished(tasks[0]); }, Deadline::never()); },
       [&] {
         wait_for([&] { return r.engine.waited_on(); });
         tasks[0]->complete();
       },
       [&] {
         wait_for([&] { return r.engine.waited_on() || finished(tasks[0]); });
         tasks[1]->complete();
       }});
  wait_for([&] { return finished(tasks[1]); });
}

// A thread that keeps the progress thread asleep leaves while a task completes.
void leaving_waiter(bool idle) {
  Running r;
  const std::shared_ptr<StageTask> task = r.task();
  std::atomic<bool> leaves{false};
  run({[&] {
         // With `idle` its last poll finds nothing to do.
         r.engine.wait(
             [&, calls = 0]() mutable {
               if (!r.engine.waited_on() || ++calls == (idle ? 1 : 0)) return false;
               leaves.store(true, std::memory_order_relaxed);
               clock().relax(0);
               return true;
             },
             Deadline::never());
       },
       [&] {
         wait_for([&] { return leaves.load(std::memory_order_relaxed); });
         task->complete();
       }});
  wait_for([&] { return finished(task); });
}

// A thread holds the progress lock for something else while another one notifies.
void held_lock() {
  Running r;
  const std::shared_ptr<StageTask> task = r.task();
  run({[&] { r.engine.locked([] { clock().relax(0); }); }, [&] { task->complete(); }});
  wait_for([&] { return finished(task); });
}

// A task completes when the round that polls has passed it already.
void missed_round() {
  Running r;
  const std::shared_ptr<StageTask> task = r.task();
  struct Slow final : Task {
    Poll poll() override {
      clock().relax(0);
      return Poll::kParked;
    }
    void fail(const Status&) noexcept override {}
  };
  const auto slow = std::make_shared<Slow>();
  r.engine.add(slow);
  run({[&] { r.engine.wait([polls = 0]() mutable { return polls++ == 1; }, Deadline::never()); },
       [&] { task->complete(); }});
  wait_for([&] { return finished(task); });
  r.engine.remove(slow.get());
}

// The progress thread waits for other ranks when a thread begins to wait. That one polls instead, and hands
// the work back when it leaves.
void handed_back_work() {
  Running r;
  struct Remote final : Task {
    Poll poll() override {
      if (!arrived.load(std::memory_order_relaxed)) return Poll::kWaiting;
      finished.store(true, std::memory_order_release);
      return Poll::kFinished;
    }
    void fail(const Status&) noexcept override {}
    std::atomic<bool> arrived{false}, finished{false};
  };
  const auto remote = std::make_shared<Remote>();
  r.engine.add(remote);
  const auto leaves = [&] {
    if (!r.engine.waited_on()) return false;
    clock().relax(0);
    return true;
  };
  run({[&] {
    r.engine.wait(leaves, Deadline::never());
    remote->arrived.store(true, std::memory_order_relaxed);
  }});
  wait_for([&] { return remote->finished.load(std::memory_order_acquire); });
}

// A stage is closed while it is completed: afterwards its waiter may be gone.
void closed_stage() {
  Engine engine(clock(), Engine::Mode::kCaller);
  StageGate gate;
  auto task = std::make_unique<StageTask>(engine, gate);
  const uint64_t generation = task->generation;
  run({[&] {
         gate.close(generation);
         if (task->waiter.done()) require(!task->waiter.result().ok(), "a result");
         task.reset();
       },
       [&] { gate.complete(generation, Status::out_of_memory()); }});
}

struct CountingHook final : Hook {
  std::string name() const override { return "counting"; }
  Status plan(const weft_bucket&, weft_hook_plan*) override { return {}; }
  Status stage(const weft_bucket&, weft_stage*) override { return {}; }
  int calls = 0;  // needs the turn
};

struct Work final : StageWork {
  Work(CountingHook& its_hook, Engine& its_engine, const void* owner)
      : counted(its_hook), its_engine_(its_engine) {
    owner_ = owner;
  }
  Hook& hook() override { return counted; }
  Engine& engine() override { return its_engine_; }
  void run() override {
    counted.calls++;
    output = 1;
  }
  CountingHook& counted;
  Engine& its_engine_;
  int output = 0;
};

struct Worker {
  Engine engine{clock(), Engine::Mode::kCaller};
  CountingHook hook;
  StageWorker worker{std::shared_ptr<Clock>(&clock(), [](Clock*) {}), {}};
};

// Two steps post stages of one hook.
void stages() {
  Worker w;
  require(w.worker.start().ok(), "start");
  const auto step = [&] {
    const int owner = 0;
    const auto work = std::make_shared<Work>(w.hook, w.engine, &owner);
    w.worker.post(work);
    wait_for([&] { return !work->out(); });
    require(work->output == 1, "the stage's output");
  };
  run({step, step});
  require(w.worker.stop(0).ok() && w.hook.calls == 2, "calls");
}

// A stage is cancelled while the worker takes it: it runs to its end, or not at all.
void cancelled_stage() {
  Worker w;
  require(w.worker.start().ok(), "start");
  const auto work = std::make_shared<Work>(w.hook, w.engine, &w);
  run({[&] {
    w.worker.post(work);
    w.worker.cancel(*work);
    wait_for([&] { return !work->out(); });
    require(work->output == 0 || w.hook.calls == 1, "half a stage");
  }});
  require(w.worker.stop(0).ok() && w.hook.calls == work->output, "calls");
}

// The program calls the hook while a stage waits for its turn.
void turns() {
  Worker w;
  require(w.worker.start().ok(), "start");
  run({[&] {
         require(w.hook.turn().take(clock(), Deadline::never()), "take");
         w.hook.calls++;
         w.hook.turn().give();
         w.worker.turn_over();
       },
       [&] {
         const int owner = 0;
         const auto work = std::make_shared<Work>(w.hook, w.engine, &owner);
         w.worker.post(work);
         wait_for([&] { return !work->out(); });
         require(work->output == 1, "the stage's output");
       }});
  require(w.worker.stop(0).ok() && w.hook.calls == 2, "calls");
}

// A thread that waits for the step runs its stage itself, or leaves it to the worker's.
void helper() {
  Worker w;
  require(w.worker.start().ok(), "start");
  const auto work = std::make_shared<Work>(w.hook, w.engine, &w);
  std::atomic<bool> posted{false};
  run({[&] {
         {
           StageWorker::Helper helper(w.worker, &w);
           for (uint32_t round = 0; round < 2; round++) {
             if (helper.wanted(Poll::kParked)) helper.help();
             clock().relax(round);
           }
         }
         wait_for([&] { return posted.load(std::memory_order_acquire) && !work->out(); });
         require(work->output == 1, "the stage's output");
       },
       [&] {
         w.worker.post(work);
         posted.store(true, std::memory_order_release);
       }});
  require(w.worker.stop(0).ok() && w.hook.calls == 1, "calls");
}

// Threads record more events than there is room for, while another one reads them and starts anew.
void trace() {
  TraceRecorder recorder(clock());
  require(recorder.start(1).ok(), "start");
  const auto record = [&] {
    TraceEvent event;
    event.name = "event";
    event.index = event.bytes = 7;
    recorder.record(event);
  };
  run({record, record, [&] {
         uint64_t lost = 0;
         for (const RecordedEvent& event : recorder.events(&lost))
           require(event.event.index == 7 && event.event.bytes == 7, "half an event");
         require(recorder.stop().ok() && recorder.start(2).ok(), "start anew");
       }});
  require(recorder.stop().ok(), "stop");
}

// docs/dev/memory-order.md, "What the engine assumes of mutexes".
TEST_CASE("the engine relies on try_lock not to fail where the mutex is free") {
  model::Limits limits;
  limits.deviations = 2;
  limits.weak_try_lock = true;
  CHECK(model::explore(held_lock, limits).failure == "no thread can continue");
}

TEST_CASE("threads that sleep are woken under the C++ memory model, with the orders that the code has") {
  model::audit({{"closed stage", closed_stage, 4, 4},
                {"held lock", held_lock, 2, 1},
                {"missed round", missed_round, 2, 1},
                {"leaving waiter", [] { leaving_waiter(false); }, 2, 1},
                {"idle leaving waiter", [] { leaving_waiter(true); }, 2, 2},
                {"notifications", notifications, 2, 1},
                {"waiter", waiter, 1, 1},
                {"handed back work", handed_back_work, 2, 1},
                {"cancelled stage", cancelled_stage, 2, 1},
                {"turns", turns, 2, 2},
                {"helper", helper, 2, 2},
                {"stages", stages, 2, 1},
                {"trace", trace, 2, 2}},
               {"lib/engine/engine.h", "lib/engine/engine.cpp", "lib/hook/hook_turn.h",
                "lib/hook/stage_gate.h", "lib/hook/stage_gate.cpp", "lib/hook/stage_worker.h",
                "lib/hook/stage_worker.cpp", "lib/trace/recorder.cpp"});
}

}  // namespace
}  // namespace weft
