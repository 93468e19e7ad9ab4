// A failing allocation, whichever it is and on whichever thread, is an error of the call or of the
// communicator. No process ends, no rank waits for a deadline, and every object can be destroyed afterwards.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "support/catch.h"
#include "support/failing_allocations.h"
#include "support/sampling.h"

using weft::test::FailingAllocations;
using Kind = FailingAllocations::Kind;

namespace {

constexpr int kRanks = 2;
constexpr int64_t kInitMs = 20'000;
// The other rank detects a rank that fails before both have connected by this deadline alone.
constexpr int64_t kNeverCameMs = 700;
constexpr int64_t kOpMs = 20'000;
constexpr unsigned kLongestS = 200;  // the longest run, on a busy machine

// Where calls begin to fail. Until the context exists no other rank knows of this one.
enum class Armed { kContext, kGroupSetup, kBody };

// The results of a rank's calls.
struct Outcome {
  weft_status worst = WEFT_OK;
  int posted = 0;     // callbacks that must run
  int called = 0;     // callbacks that have run
  bool late = false;  // a call returned because of its deadline
  void take(weft_status status) {
    if (worst == WEFT_OK) worst = status;
    late |= status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_NOT_DONE;
  }
  bool ok() const { return worst == WEFT_OK; }
};

using Body = std::function<void(weft_context* context, weft_comm* comm, int rank, Outcome& out)>;

struct Case {
  const char* backend;
  int32_t progress;
  Kind kind = Kind::kNew;
};

void on_complete(void* data, weft_status) {
  static_cast<Outcome*>(data)->called++;
}
void on_bucket(void* data, uint64_t, uint32_t, weft_status) {
  static_cast<Outcome*>(data)->called++;
}

// Ranks synchronise before and after the armed part, so that no other code is armed.
class RankBarrier {
 public:
  void wait(const std::function<void()>& last_one = [] {}) {
    const FailingAllocations::Exempt exempt;
    std::unique_lock lock(mutex_);
    const int round = round_;
    if (++here_ == kRanks) {
      here_ = 0;
      round_++;
      last_one();
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0;
  int round_ = 0;
};

// Runs one rank, from context creation to its destruction.
void run_rank(const Case& c, int rank, const std::string& store, Armed armed, uint64_t n,
              RankBarrier& rank_barrier, const Body& body, Outcome& out, uint64_t* count) {
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
  context_options.progress = c.progress;
  // UCX 1.13, which a module loads, ends the process where malloc fails.
  if (c.kind != Kind::kNew) context_options.module_path = "/dev";
  const auto arm = [&] { FailingAllocations::arm(c.kind, n); };
  if (armed == Armed::kContext) rank_barrier.wait(arm);
  out.take(weft_context_create(&context_options, &context, nullptr));
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  options.bootstrap = WEFT_BOOTSTRAP_STORE;
  options.rank = rank;
  options.size = kRanks;
  options.store = store.c_str();
  options.backend = c.backend;
  options.init_timeout_ms = armed != Armed::kBody && n > 0 ? kNeverCameMs : kInitMs;
  options.op_timeout_ms = kOpMs;
  const auto disarm = [&] { *count = FailingAllocations::disarm(); };
  if (armed == Armed::kGroupSetup) rank_barrier.wait(arm);
  if (context != nullptr) out.take(weft_comm_create(context, &options, &comm, nullptr));
  if (armed == Armed::kBody) rank_barrier.wait(arm);
  if (comm != nullptr) body(context, comm, rank, out);
  out.take(weft_comm_destroy(&comm));
  rank_barrier.wait(disarm);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
}

// Returns the worst result of each rank, and the number of allocations.
std::vector<Outcome> run(const Case& c, Armed armed, uint64_t n, const Body& body, uint64_t* count) {
  static int runs = 0;
  const std::string store =
      "unix:@weft-allocations-" + std::to_string(::getpid()) + "-" + std::to_string(runs++);
  RankBarrier rank_barrier;
  std::vector<Outcome> outcomes(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; r++) {
    threads.emplace_back([&, r] {
      run_rank(c, r, store, armed, n, rank_barrier, body, outcomes[static_cast<size_t>(r)], count);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Fails each call that a run reaches, one a run. If there are more than `most`, an evenly spread selection
// fails; with WEFT_TEST_ALL all of them do.
void fail_each(const Case& c, Armed armed, uint64_t most, const Body& body) {
  constexpr const char* kKinds[] = {"operator new", "malloc", "mmap", "pthread_create"};
  const char* const kind = kKinds[static_cast<size_t>(c.kind)];
  INFO(c.backend << ", progress " << c.progress << ", " << kind);
  uint64_t count = 0;
  ::alarm(kLongestS);  // turns a hang into a failure
  for (const Outcome& out : run(c, armed, 0, body, &count)) REQUIRE(out.ok());
  const uint64_t step = std::max<uint64_t>(1, count / weft::test::sampling(count + 1, most, most));
  uint64_t runs = 0, failed = 0;
  for (uint64_t n = 1; n <= count; n += step, runs++) {
    uint64_t reached = 0;
    INFO("call " << n << " of about " << count);
    ::alarm(kLongestS);
    for (const Outcome& out : run(c, armed, n, body, &reached)) {
      INFO(weft_status_string(out.worst));
      CHECK((!out.late || armed != Armed::kBody));
      CHECK(out.called == out.posted);
      failed += out.ok() ? 0 : 1;
    }
  }
  // Without new memory nothing works, but some calls of the other kinds have a fallback.
  if (c.kind == Kind::kNew) CHECK(failed > 0);
  ::alarm(0);
  std::printf("%s, progress %d: %llu of %llu calls of %s failed\n", c.backend, c.progress,
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(count), kind);
}

// Acts like a program that handles errors: it makes no further call after the first error.
void collectives(weft_context*, weft_comm* comm, int rank, Outcome& out) {
  std::vector<float> values, gathered;
  {
    const FailingAllocations::Exempt exempt;
    values.assign(200'000, 1.0f);
    gathered.assign(kRanks * values.size(), 0.0f);
  }
  const auto sum = [&](uint64_t count, weft_request** request) {
    return weft_all_reduce(comm, values.data(), values.data(), count, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                           request);
  };
  out.take(weft_barrier(comm, nullptr, nullptr));
  for (const uint64_t count : {uint64_t{4}, uint64_t{3'000}, uint64_t{200'000}}) {
    if (out.ok()) out.take(sum(count, nullptr));
  }
  if (out.ok()) {
    out.take(weft_all_gather(comm, values.data(), gathered.data(), values.size(), WEFT_DTYPE_F32, nullptr,
                             nullptr));
  }
  if (out.ok()) {
    out.take(rank == 0 ? weft_send(comm, values.data(), 50'000, WEFT_DTYPE_F32, 1, nullptr, nullptr)
                       : weft_recv(comm, values.data(), 50'000, WEFT_DTYPE_F32, 0, nullptr, nullptr));
  }
  weft_request* requests[3] = {};
  for (weft_request*& request : requests) {
    if (out.ok()) out.take(sum(1'000, &request));
    if (request == nullptr) continue;
    const weft_status told = weft_request_on_complete(request, on_complete, &out);
    if (told == WEFT_OK) out.posted++;
    out.take(told);
  }
  // Aborting the communicator completes its requests.
  if (!out.ok()) weft_comm_abort(comm, "an allocation failed");
  for (weft_request*& request : requests) {
    if (request == nullptr) continue;
    out.take(weft_request_wait(request, kOpMs));
    weft_request_release(&request);
  }
}

// A model of four parameters in two buckets, and its steps.
struct Model {
  Model() {
    for (size_t i = 0; i < kParams; i++) {
      values[i].assign(kCount, 2.0f);
      gradients[i].assign(kCount, 1.0f);
      params[i] = WEFT_PARAM_INIT;
      params[i].name = kNames[i];
      params[i].dtype = WEFT_DTYPE_F32;
      params[i].ndim = 1;
      params[i].shape = &kShape;
    }
    options.params = params;
    options.param_count = kParams;
    options.mode = WEFT_GRADIENT_COPY;
    options.bucket_limits = &kLimit;
    options.bucket_limit_count = 1;
  }
  static constexpr size_t kParams = 4;
  static constexpr int64_t kShape = 1'500;
  static constexpr size_t kCount = 1'500;
  static constexpr uint64_t kLimit = 12'000;
  static constexpr const char* kNames[kParams] = {"one", "two", "three", "four"};
  std::vector<float> values[kParams], gradients[kParams];
  weft_param params[kParams];
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
};

void steps(weft_context* context, weft_comm* comm, Outcome& out, const char* hook_name) {
  std::unique_ptr<Model> model;
  {
    const FailingAllocations::Exempt exempt;
    model = std::make_unique<Model>();
  }
  model->options.on_bucket = on_bucket;
  model->options.on_bucket_user_data = &out;
  out.take(weft_hook_create(context, hook_name, nullptr, &model->options.hook));
  weft_reducer* reducer = nullptr;
  out.take(weft_reducer_create(comm, &model->options, &reducer, nullptr));
  for (int step = 0; out.ok() && step < 3; step++) {
    const weft_status begun = weft_reducer_begin(reducer, nullptr);
    out.take(begun);
    if (begun != WEFT_OK) break;
    uint32_t buckets = 0;
    out.take(weft_reducer_bucket_count(reducer, &buckets));
    out.posted += static_cast<int>(buckets);
    for (size_t p = 0; out.ok() && p < Model::kParams; p++) {
      out.take(weft_reducer_ready(reducer, p, model->gradients[p].data(), nullptr));
    }
    const weft_status finished = weft_reducer_finish(reducer, nullptr);
    out.take(finished);
    if (finished != WEFT_OK) break;
  }
  out.take(weft_reducer_destroy(&reducer));
  out.take(weft_hook_destroy(&model->options.hook));
}

// Makes the collective calls of a reducer that are not part of a step.
void collective_calls(weft_comm* comm, int rank, Outcome& out) {
  std::unique_ptr<Model> model;
  {
    const FailingAllocations::Exempt exempt;
    model = std::make_unique<Model>();
  }
  model->options.flags = WEFT_REDUCER_UNEVEN;
  for (size_t i = 0; i < Model::kParams; i++) model->params[i].parameter = model->values[i].data();
  weft_reducer* reducer = nullptr;
  out.take(weft_reducer_create(comm, &model->options, &reducer, nullptr));
  const auto step = [&](const char* failure) {
    if (out.ok()) out.take(weft_reducer_begin(reducer, nullptr));
    for (size_t p = 0; out.ok() && p < Model::kParams; p++)
      out.take(weft_reducer_ready(reducer, p, model->gradients[p].data(), nullptr));
    if (!out.ok()) return;
    out.take(failure != nullptr ? weft_reducer_fail(reducer, failure)
                                : weft_reducer_finish(reducer, nullptr));
  };
  if (out.ok()) out.take(weft_reducer_check(reducer, nullptr));
  step(nullptr);
  if (out.ok()) out.take(weft_reducer_replan(reducer, nullptr, nullptr));
  // Both ranks fail the step: if only one did, the other rank's finish would be an error.
  step("a text that is too long for a string without an allocation");
  if (rank == 0) step(nullptr);
  if (out.ok()) out.take(weft_reducer_join(reducer, nullptr, nullptr));
  out.take(weft_reducer_destroy(&reducer));
}

// The program's C++ allocator, which throws when it is empty.
struct Pool {
  std::atomic<bool> empty{false};
};
void* take_from(void* pool, uint64_t size, uint64_t alignment, int32_t) {
  if (static_cast<Pool*>(pool)->empty) throw std::bad_alloc();
  return std::aligned_alloc(alignment, size);
}
void give_to(void*, void* block, uint64_t, int32_t) {
  std::free(block);
}

}  // namespace

TEST_CASE("a gradient whose copy throws once it is claimed fails the step at once, on all ranks") {
  ::alarm(kLongestS);
  RankBarrier rank_barrier;
  Pool pools[kRanks];
  Outcome outcomes[kRanks];
  std::vector<std::thread> threads;
  const std::string store = "unix:@weft-allocations-" + std::to_string(::getpid()) + "-pool";
  for (int rank = 0; rank < kRanks; rank++) {
    threads.emplace_back([&, rank] {
      Outcome& out = outcomes[rank];
      weft_context* context = nullptr;
      weft_comm* comm = nullptr;
      weft_reducer* reducer = nullptr;
      weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
      context_options.host_alloc = take_from;
      context_options.host_free = give_to;
      context_options.host_alloc_user_data = &pools[rank];
      out.take(weft_context_create(&context_options, &context, nullptr));
      weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
      options.bootstrap = WEFT_BOOTSTRAP_STORE;
      options.rank = rank;
      options.size = kRanks;
      options.store = store.c_str();
      options.backend = "shm";
      options.op_timeout_ms = kOpMs;
      out.take(weft_comm_create(context, &options, &comm, nullptr));
      constexpr int64_t kRows = 100'000;
      weft_param param = WEFT_PARAM_INIT;
      param.name = "embedding";
      param.dtype = WEFT_DTYPE_F32;
      param.ndim = 1;
      param.shape = &kRows;
      param.flags = WEFT_PARAM_SPARSE;
      weft_reducer_options reducer_options = WEFT_REDUCER_OPTIONS_INIT;
      reducer_options.params = &param;
      reducer_options.param_count = 1;
      out.take(weft_reducer_create(comm, &reducer_options, &reducer, nullptr));
      std::vector<int64_t> indices(kRows);
      for (int64_t i = 0; i < kRows; i++) indices[static_cast<size_t>(i)] = i;
      const std::vector<float> values(kRows, 1.0f);
      const auto step = [&](uint64_t entries) {
        weft_sparse gradient = WEFT_SPARSE_INIT;
        gradient.count = entries;
        gradient.indices = indices.data();
        gradient.values = values.data();
        const weft_status begun = weft_reducer_begin(reducer, nullptr);
        const weft_status ready = weft_reducer_ready_sparse(reducer, 0, &gradient, nullptr);
        const weft_status finished = weft_reducer_finish(reducer, nullptr);
        return begun != WEFT_OK ? begun : ready != WEFT_OK ? ready : finished;
      };
      out.take(step(3));
      rank_barrier.wait();
      pools[rank].empty = rank == 0;
      const weft_status failed = step(rank == 0 ? kRows : 3);
      out.called = failed == WEFT_ERR_NOMEM ? 1 : 0;
      out.late |= failed == WEFT_ERR_TIMEOUT;
      weft_reducer_destroy(&reducer);
      pools[rank].empty = false;
      weft_comm_destroy(&comm);
      weft_context_destroy(&context);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& out : outcomes) {
    INFO(weft_status_string(out.worst));
    CHECK(out.ok());
    CHECK(out.called == 1);
    CHECK_FALSE(out.late);
  }
  ::alarm(0);
}

TEST_CASE("an allocation that fails during a communicator's creation fails only the creation") {
  for (const Case& c : {Case{"loopback", WEFT_PROGRESS_THREAD}, Case{"shm", WEFT_PROGRESS_THREAD}}) {
    fail_each(c, Armed::kGroupSetup, 25, [](weft_context*, weft_comm* comm, int, Outcome& out) {
      out.take(weft_barrier(comm, nullptr, nullptr));
    });
  }
}

TEST_CASE(
    "memory, mappings and threads that the system refuses fail calls, and nothing hangs or ends the "
    "process") {
  for (const Kind kind : {Kind::kMalloc, Kind::kMap, Kind::kThread}) {
    for (const Case& c :
         {Case{"loopback", WEFT_PROGRESS_THREAD, kind}, Case{"shm", WEFT_PROGRESS_THREAD, kind}}) {
      fail_each(c, Armed::kContext, 15, [](weft_context*, weft_comm* comm, int, Outcome& out) {
        out.take(weft_barrier(comm, nullptr, nullptr));
      });
      fail_each(c, Armed::kBody, 15, collectives);
      for (const char* hook : {"allreduce", "powersgd"}) {
        fail_each(c, Armed::kBody, 15, [&](weft_context* context, weft_comm* comm, int, Outcome& out) {
          steps(context, comm, out, hook);
        });
      }
    }
  }
}

TEST_CASE("an allocation that fails in a collective fails the communicator, and every callback runs once") {
  for (const Case& c : {Case{"loopback", WEFT_PROGRESS_THREAD}, Case{"loopback", WEFT_PROGRESS_CALLER},
                        Case{"shm", WEFT_PROGRESS_THREAD}, Case{"shm", WEFT_PROGRESS_CALLER}}) {
    fail_each(c, Armed::kBody, 30, collectives);
  }
}

TEST_CASE(
    "an allocation that fails while a reducer exists fails the step, and every bucket is reported once") {
  for (const Case& c : {Case{"loopback", WEFT_PROGRESS_THREAD}, Case{"shm", WEFT_PROGRESS_THREAD},
                        Case{"shm", WEFT_PROGRESS_CALLER}}) {
    for (const char* hook : {"allreduce", "powersgd"}) {
      fail_each(c, Armed::kBody, 30, [&](weft_context* context, weft_comm* comm, int, Outcome& out) {
        steps(context, comm, out, hook);
      });
    }
  }
}

TEST_CASE("an allocation that fails in a call that every rank makes fails it on all ranks at once") {
  for (const Case& c : {Case{"loopback", WEFT_PROGRESS_THREAD}, Case{"shm", WEFT_PROGRESS_CALLER}}) {
    fail_each(c, Armed::kBody, 60, [&](weft_context*, weft_comm* comm, int rank, Outcome& out) {
      collective_calls(comm, rank, out);
    });
  }
}
