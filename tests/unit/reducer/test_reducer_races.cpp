// Concurrent calls: a re-plan during other threads' calls, two uses of one weight, a copy that does not end,
// a step that finish abandons. The thread sanitizer checks more.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "loopback/loopback.h"
#include "reducer/bucket/buckets.h"
#include "reducer_rig.h"

namespace unit_reducer_races {

using namespace weft;
using namespace weft::test;

namespace {

weft_begin_options begins(uint64_t flags, uint32_t micro_batches = 0) {
  weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
  options.flags = flags;
  options.micro_batches = micro_batches;
  return options;
}

template <class Done>
bool wait_for(Done&& done) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A context with one rank, and with the test's own host operations and log.
struct Alone {
  explicit Alone(const DeviceOps& ops = host_ops(), Log::Sink sink = {}) {
    ContextOptions options;
    options.host = &ops;
    options.log_sink = std::move(sink);
    options.log_level = options.log_sink ? LogLevel::kWarn : LogLevel::kOff;
    REQUIRE(Context::create(options, &context).ok());
    REQUIRE(form(group, 0, context, collectives_of(loopback::backend()), {}, &comm).ok());
  }
  ~Alone() {
    (void)comm->close().ok();
    comm.reset();
    (void)context->close().ok();
  }

  SystemClock clock;
  ThreadGroup group{1, clock};
  std::shared_ptr<Context> context;
  std::shared_ptr<Comm> comm;
};

// Blocks copies while it is set, for a bounded time, so that code that should not wait for a copy cannot hang
// the test.
std::atomic<bool> copy_held{false};
std::atomic<bool> copy_entered{false};

void held_copy(const CopyArgs& args) {
  if (copy_held) copy_entered = true;
  static_cast<void>(wait_for([] { return !copy_held; }));
  host_ops().copy(args);
}

// Memory that blocks all accesses while copies are held.
std::atomic<const std::byte*> mute{nullptr};
std::atomic<bool> gave_up{false};

void copy_into_mute(const CopyArgs& args) {
  if (args.dst == mute) {
    copy_entered = true;
    if (!wait_for([] { return !copy_held; })) gave_up = true;
  }
  host_ops().copy(args);
}

// The first of two copies stops in its middle until the second has ended, or was prevented from starting.
std::atomic<bool> halving{false};
std::atomic<int> copies{0};

void halved_copy(const CopyArgs& args) {
  if (!halving || args.count < 2 || copies++ > 0) {
    host_ops().copy(args);
    if (halving) copies = 3;
    return;
  }
  CopyArgs half = args;
  half.count = args.count / 2;
  host_ops().copy(half);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (copies < 3 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  half.src += half.count * dtype_size(args.src_dtype);
  half.dst += half.count * dtype_size(args.dst_dtype);
  half.count = args.count - half.count;
  host_ops().copy(half);
}

}  // namespace

TEST_CASE("threads wait for parameters and ask for views while begin re-plans") {
  const Model model({{"a", {8}}, {"b", {40}}, {"c", {8}}, {"d", {8}}, {"e", {24}}});
  for (int round = 0; round < 8; round++) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                               {.mode = WEFT_GRADIENT_VIEW, .limits = {64}, .replan = WEFT_PLANNER_LIMITS}),
                  "create");
      if (!reducer) return;
      const auto step = [&] {
        self.expect(reducer->begin(nullptr), "begin");
        for (const uint64_t i : {0, 4, 1, 3, 2}) self.expect(reducer->ready(i, nullptr, nullptr), "ready");
        self.expect(reducer->finish({}), "finish");
      };
      step();
      std::atomic<bool> over{false};
      std::atomic<uint64_t> looks{0};
      std::string wrong;
      std::thread other([&] {
        while (!over) {
          for (uint64_t i = 0; i < model.size(); i++) {
            void* view = nullptr;
            const Status looked = reducer->grad_view(i, &view);
            const Status waited = reducer->wait_param(i, 20'000);
            if (!looked.ok() || view == nullptr || !waited.ok())
              wrong = cat(looked.text(), " / ", waited.text());
          }
          looks++;
        }
      });
      self.expect(wait_for([&] { return looks > 0; }), "the other thread");
      step();
      step();
      over = true;
      other.join();
      self.expect(wrong.empty(), wrong);
      weft_reducer_stats stats{};
      reducer->query(&stats);
      self.expect(stats.plan_generation == 1, "it has re-planned");
    }));
  }
}

TEST_CASE("of two threads that use one weight at once while uses are learned, one is last and complete") {
  DeviceOps ops = host_ops();
  ops.copy = halved_copy;
  Alone alone(ops);
  const Model model({{"tied", {1000}}});
  std::unique_ptr<Reducer> reducer;
  REQUIRE(make_reducer(alone.comm, model, allreduce_hook(), &reducer,
                       {.mode = WEFT_GRADIENT_VIEW, .flags = WEFT_REDUCER_STATIC | WEFT_REDUCER_COPY_STRAYS})
              .ok());
  const std::vector<std::vector<float>> gradients = {std::vector<float>(1000, 1),
                                                     std::vector<float>(1000, 2)};
  REQUIRE(reducer->begin(nullptr).ok());
  std::vector<Status> used(2);
  const auto use = [&](size_t which) {
    used[which] = reducer->ready(0, const_cast<float*>(gradients[which].data()), nullptr);
  };
  copies = 0;
  halving = true;
  std::thread first(use, 0);
  const bool entered = wait_for([] { return copies > 0; });
  use(1);
  first.join();
  halving = false;
  REQUIRE(entered);
  CHECK(used[0].ok());
  CHECK(used[1].ok());
  CHECK(reducer->finish({}).ok());
  std::vector<float> result(1000);
  CHECK(reducer->result(0, result.data()).ok());
  CHECK(result == gradients[1]);
}

TEST_CASE("a local step whose gradient is still being copied times out, and stays open") {
  DeviceOps ops = host_ops();
  ops.copy = held_copy;
  Alone alone(ops);
  const Model model({{"a", {4}}, {"b", {4}}});
  std::unique_ptr<Reducer> reducer;
  REQUIRE(make_reducer(alone.comm, model, allreduce_hook(), &reducer, {.timeout_ms = 1000}).ok());
  Gradients gradients(model);
  gradients.fill(1, 0);
  const weft_begin_options local = begins(WEFT_BEGIN_LOCAL);
  REQUIRE(reducer->begin(&local).ok());
  copy_held = true;
  Status copied;
  std::thread late([&] { copied = reducer->ready(1, gradients[1], nullptr); });
  const bool entered = wait_for([] { return copy_entered.load(); });
  const Status finished = reducer->finish({});
  const Status begun = reducer->begin(nullptr);
  copy_held = false;
  late.join();
  REQUIRE(entered);
  INFO(finished.text());
  CHECK(finished.code() == Code::kTimeout);
  CHECK(has(finished.text(), "parameter 1 ('b') is still being copied"));
  CHECK(begun.code() == Code::kState);
  CHECK(copied.ok());
  // Once the copy has returned, the step ends as usual, and the copied gradient is part of the sum.
  CHECK(reducer->ready(0, gradients[0], nullptr).ok());
  CHECK(reducer->finish({}).ok());
  gradients.fill(2, 0);
  CHECK(reducer->begin(nullptr).ok());
  CHECK(ready_all(*reducer, pointers(gradients), 1).ok());
  CHECK(reducer->finish({}).ok());
  const Gradients expected = reference(model, {1, 2}, 1, 1);
  CHECK(differs(model, gradients.memory(), expected.memory()).empty());
}

TEST_CASE("a step that learns uses names at its deadline the gradient that is still copied, and stays open") {
  DeviceOps ops = host_ops();
  ops.copy = held_copy;
  Alone alone(ops);
  const Model model({{"a", {4}}, {"b", {4}}});
  for (const bool local : {true, false}) {
    std::unique_ptr<Reducer> reducer;
    REQUIRE(make_reducer(alone.comm, model, allreduce_hook(), &reducer,
                         {.mode = WEFT_GRADIENT_VIEW,
                          .timeout_ms = 1000,
                          .flags = WEFT_REDUCER_STATIC | WEFT_REDUCER_COPY_STRAYS | WEFT_REDUCER_ABSENT})
                .ok());
    Gradients gradients(model);
    gradients.fill(1, 0);
    const weft_begin_options begin = begins(local ? WEFT_BEGIN_LOCAL : 0);
    REQUIRE(reducer->begin(&begin).ok());
    copy_entered = false;
    copy_held = true;
    Status copied;
    std::thread late([&] { copied = reducer->ready(1, gradients[1], nullptr); });
    const bool entered = wait_for([] { return copy_entered.load(); });
    const Status finished = reducer->finish({});
    copy_held = false;
    late.join();
    REQUIRE(entered);
    INFO(finished.text());
    CHECK(finished.code() == Code::kTimeout);
    CHECK(has(finished.text(), "parameter 1 ('b') is still being copied"));
    CHECK(has(finished.text(), "The step is still open"));
    CHECK(copied.ok());
    CHECK(reducer->ready(0, gradients[0], nullptr).ok());
    CHECK(reducer->finish({}).ok());
    if (local) {
      CHECK(reducer->begin(nullptr).ok());
      for (const uint64_t i : {0, 1}) CHECK(reducer->ready(i, nullptr, nullptr).ok());
      CHECK(reducer->finish({}).ok());
    }
    for (const uint64_t i : {0, 1}) {
      Bytes result(model.span(i));
      CHECK(reducer->result(i, result.data()).ok());
      CHECK(result == gradients.memory()[i]);
    }
  }
}

TEST_CASE("statistics of a step that finish abandoned contain nothing that may still change") {
  Alone alone;
  const Model model({{"a", {4}}, {"b", {4}}});
  std::unique_ptr<Reducer> reducer;
  REQUIRE(make_reducer(alone.comm, model, allreduce_hook(), &reducer, {.timeout_ms = 1000}).ok());
  Gradients gradients(model);
  const weft_begin_options four = begins(0, 4);
  REQUIRE(reducer->begin(&four).ok());
  REQUIRE(ready_all(*reducer, pointers(gradients), 1).ok());
  REQUIRE(reducer->finish({}).ok());
  weft_reducer_stats stats{};
  reducer->query(&stats);
  CHECK(stats.divisor == 4);
  // The engine is kept busy, so that the step does not even start.
  std::atomic<bool> held{false}, release{false};
  std::thread busy([&] {
    alone.context->engine().locked([&] {
      held = true;
      static_cast<void>(wait_for([&] { return release.load(); }));
    });
  });
  CHECK(wait_for([&] { return held.load(); }));
  CHECK(reducer->begin(&four).ok());
  CHECK(ready_all(*reducer, pointers(gradients), 1).ok());
  const Status finished = reducer->finish({});
  INFO(finished.text());
  CHECK(finished.code() == Code::kTimeout);
  CHECK(has(finished.text(), "0 of 1 buckets reduced"));
  reducer->query(&stats);
  CHECK(stats.divisor == 0);  // not the previous step's
  CHECK(stats.active_ranks == 0);
  CHECK(stats.last_active == -1);
  CHECK(stats.failed_steps == 1);
  weft_bucket_info info{};
  CHECK(reducer->bucket(0, &info, nullptr, 0).ok());
  CHECK(info.done_ns == 0);
  CHECK(info.launch_ns == 0);
  CHECK(info.sent_bytes == 0);
  CHECK(!reducer->report().empty());
  release = true;
  busy.join();
  // The step ends once the engine runs: the reducer need not leave it behind.
  reducer.reset();
  CHECK(alone.comm.use_count() == 1);
}

TEST_CASE("finish does not wait for a result copy into memory that blocks") {
  DeviceOps ops = host_ops();
  ops.copy = copy_into_mute;
  Alone alone(ops);
  constexpr uint64_t kPiece = kPieceBytes / sizeof(float);
  const Model model({{"a", {4}}, {"b", {4 * kPiece}}});
  std::unique_ptr<Reducer> reducer;
  REQUIRE(
      make_reducer(alone.comm, model, allreduce_hook(), &reducer, {.limits = {0}, .timeout_ms = 100}).ok());
  Gradients gradients(model);
  gradients.fill(1, 0);
  mute = gradients[1] + kPieceBytes;  // the second piece of the bucket that is launched first
  copy_held = true;
  copy_entered = gave_up = false;
  REQUIRE(reducer->begin(nullptr).ok());
  REQUIRE(ready_all(*reducer, pointers(gradients), 1).ok());
  CHECK(wait_for([] { return copy_entered.load(); }));  // on the progress thread, not on this one
  const Status finished = reducer->finish({});
  CHECK(!gave_up);
  gradients.fill(2, 0);
  const std::vector<Bytes> mine = gradients.memory();
  copy_held = false;
  INFO(finished.text());
  CHECK(finished.code() == Code::kTimeout);
  CHECK(has(finished.text(), "0 of 2 buckets reduced"));
  CHECK(has(finished.text(), "Weft is still reading gradients or writing results into them"));
  weft_bucket_info info{};
  for (const uint32_t bucket : {0u, 1u}) {
    CHECK(reducer->bucket(bucket, &info, nullptr, 0).ok());
    CHECK(info.done_ns == 0);
  }
  reducer.reset();  // waits for the copy
  CHECK(gradients.memory()[0] == mine[0]);
  const auto rest = static_cast<ptrdiff_t>(2 * kPieceBytes);
  CHECK(std::equal(mine[1].begin() + rest, mine[1].end(), gradients.memory()[1].begin() + rest));
  mute = nullptr;
}

TEST_CASE("gradients that a rank has accumulated when all have joined are dropped, and the log reports it") {
  std::mutex mutex;
  std::string log;
  Alone alone(host_ops(), [&](LogLevel, const char* line) {
    const std::lock_guard lock(mutex);
    log += line;
  });
  const Model model({{"a", {4}}, {"b", {3}}});
  std::unique_ptr<Reducer> reducer;
  REQUIRE(make_reducer(alone.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_UNEVEN}).ok());
  Gradients gradients(model);
  weft_join_result joined{};
  REQUIRE(reducer->join({}, &joined).ok());
  {
    const std::lock_guard lock(mutex);
    CHECK(!has(log, "dropped"));
  }
  const weft_begin_options local = begins(WEFT_BEGIN_LOCAL);
  for (int step = 0; step < 2; step++) {
    gradients.fill(5, 0);
    REQUIRE(reducer->begin(&local).ok());
    REQUIRE(reducer->ready(0, gradients[0], nullptr).ok());
    REQUIRE(reducer->finish({}).ok());
  }
  REQUIRE(reducer->join({}, &joined).ok());
  CHECK(joined.steps == 0);
  const std::lock_guard lock(mutex);
  INFO(log);
  CHECK(has(log, "gradients of 2 local steps are dropped"));
}

}  // namespace unit_reducer_races
