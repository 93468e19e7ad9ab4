// A failing allocation, whichever it is and on whichever thread, is an error of the call or of the
// communicator. No process ends, no rank waits for a deadline, nothing is left behind, and every object can
// be destroyed afterwards.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "capi/allocation_bodies.h"
#include "capi/allocation_runs.h"
#include "support/catch.h"

using namespace weft_test;  // NOLINT(google-build-using-namespace)

namespace {

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

// Cases of all backends and ways of progress.
constexpr Case kAll[] = {{"loopback", WEFT_PROGRESS_THREAD},
                         {"loopback", WEFT_PROGRESS_CALLER},
                         {"shm", WEFT_PROGRESS_THREAD},
                         {"shm", WEFT_PROGRESS_CALLER}};
constexpr Case kSome[] = {{"loopback", WEFT_PROGRESS_CALLER}, {"shm", WEFT_PROGRESS_THREAD}};

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

TEST_CASE("an allocation that fails during a context's and a communicator's creation fails only that") {
  for (const char* backend : {"loopback", "shm"}) {
    fail_each("meeting", {backend, WEFT_PROGRESS_THREAD}, Armed::kContext, 12, meeting);
    fail_each("leaving", {backend, WEFT_PROGRESS_THREAD}, Armed::kDestroy, 10, meeting);
  }
}

TEST_CASE(
    "memory, mappings and threads that the system refuses fail calls, and nothing hangs or ends the "
    "process") {
  for (const Kind kind : {Kind::kMalloc, Kind::kMap, Kind::kThread}) {
    for (const char* backend : {"loopback", "shm"}) {
      const Case c = {backend, WEFT_PROGRESS_THREAD, kind};
      fail_each("meeting", c, Armed::kContext, 12, meeting);
      const bool is_loopback = std::string(backend) == "loopback";
      const char* const mapped = kind == Kind::kMap ? "all memory was mapped by the creation" : nullptr;
      const char* const private_memory =
          kind == Kind::kMap && is_loopback ? "loopback maps no memory" : nullptr;
      fail_each("split", c, Armed::kBody, 8, split, private_memory);
      fail_each("recovery", c, Armed::kRecovery, 8, recovery, private_memory);
      // A callback needs a thread only if its request is not complete at once.
      if (kind == Kind::kMap || (kind == Kind::kMalloc && is_loopback)) {
        fail_each("collectives", c, Armed::kBody, 8, collectives, mapped);
      }
      for (const char* hook : {"allreduce", "powersgd"}) {
        fail_each(hook, c, Armed::kBody, 8, [&](AllocatingRank& r) { steps(r, hook); }, mapped);
      }
    }
  }
}

TEST_CASE("an allocation that fails in a collective fails the communicator, and every callback runs once") {
  for (const Case& c : kAll) {
    fail_each("collectives", c, Armed::kBody, 12, collectives);
    fail_each("every collective", c, Armed::kBody, 12, every_collective);
    fail_each("messages", c, Armed::kBody, 12, messages);
  }
}

TEST_CASE("an allocation that fails in a split or in a shrink fails it on all ranks") {
  for (const Case& c : kSome) {
    fail_each("split", c, Armed::kBody, 12, split);
    fail_each("recovery", c, Armed::kRecovery, 12, recovery);
  }
}

TEST_CASE(
    "an allocation that fails while a reducer exists fails the step, and every bucket is reported once") {
  for (const Case& c : kAll) {
    for (const char* hook : {"allreduce", "powersgd"}) {
      fail_each(hook, c, Armed::kBody, 12, [&](AllocatingRank& r) { steps(r, hook); });
    }
  }
}

TEST_CASE("an allocation that fails in a hook, or while its state is saved, fails the step") {
  for (const char* hook : {"bf16", "onebit", "topk", "int8", "quantize", "batched_powersgd"}) {
    fail_each(hook, kSome[1], Armed::kBody, 8, [&](AllocatingRank& r) { steps(r, hook); });
  }
}

TEST_CASE(
    "an allocation that fails in a reducer of sparse, absent, retained or sharded gradients fails the step") {
  for (const Case& c : kSome) {
    fail_each("features", c, Armed::kBody, 12, features);
    fail_each("sharded", c, Armed::kBody, 10, sharded);
  }
}

TEST_CASE("an allocation that fails in a call that every rank makes fails it on all ranks at once") {
  for (const Case& c : kSome) fail_each("collective calls", c, Armed::kBody, 12, collective_calls);
}
