// Runs of a program on two ranks, in each of which one allocation fails, and the rules that hold for all
// runs. No process ends and no rank waits for a deadline. Every rank has an error, or the failed call is a
// listed one that has a fallback. Nothing is left behind. Only test_allocations.cpp includes this.
#pragma once

#include <unistd.h>
#include <weft/weft.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.h"
#include "support/failing_allocations.h"
#include "support/function_names.h"
#include "support/holdings.h"
#include "support/sampling.h"

namespace weft_test {

using weft::test::FailingAllocations;
using weft::test::FunctionNames;
using weft::test::Holdings;
using Kind = FailingAllocations::Kind;

inline constexpr int kRanks = 2;
inline constexpr int64_t kInitMs = 20'000;
// The other rank detects a rank that fails before both have connected by this deadline alone.
inline constexpr int64_t kNeverCameMs = 250;
inline constexpr int64_t kOpMs = 20'000;
inline constexpr uint64_t kMostRuns = 600;  // of one body with WEFT_TEST_ALL: some make 10,000 calls
inline constexpr unsigned kLongestS = 200;  // the longest run, on a busy machine

// Where calls begin to fail. Until both ranks have met, a rank detects the other one's failure by its
// deadline.
// kRecovery: as kBody, of a program that recovers from errors by itself, so each rank may succeed in the end.
enum class Armed { kContext, kBody, kRecovery, kDestroy };

// The results of a rank's calls.
struct Outcome {
  weft_status worst = WEFT_OK;      // the first error
  char text[WEFT_ERROR_TEXT] = "";  // of that error
  int posted = 0;                   // callbacks that must run
  int called = 0;                   // callbacks that have run
  bool late = false;                // a call returned because of its deadline
  void take(weft_status status) {
    if (ok() && status != WEFT_OK) {
      weft_error error = WEFT_ERROR_INIT;
      weft_last_error(&error);
      worst = status;
      std::memcpy(text, error.text, sizeof text);
    }
    late |= status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_NOT_DONE;
  }
  bool ok() const { return worst == WEFT_OK; }
};

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

struct AllocatingRank {
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  int rank = 0;
  Outcome* out = nullptr;
  RankBarrier* barrier = nullptr;
};
using Body = std::function<void(AllocatingRank& rank)>;

struct Case {
  const char* backend;
  int32_t progress;
  Kind kind = Kind::kNew;
};

// Runs one rank, from context creation to its destruction.
inline void run_rank(const Case& c, const std::string& store, Armed armed, uint64_t n, const Body& body,
                     int64_t init_ms, AllocatingRank& rank, uint64_t* reached) {
  Outcome& out = *rank.out;
  RankBarrier& rank_barrier = *rank.barrier;
  weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
  context_options.progress = c.progress;
  // UCX 1.13, which a module loads, ends the process where malloc fails.
  if (c.kind != Kind::kNew) context_options.module_path = "/dev";
  const auto arm = [&] { FailingAllocations::arm(c.kind, n); };
  const auto disarm = [&] { *reached = FailingAllocations::disarm(); };
  if (armed == Armed::kContext) rank_barrier.wait(arm);
  out.take(weft_context_create(&context_options, &rank.context, nullptr));
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  options.bootstrap = WEFT_BOOTSTRAP_STORE;
  options.rank = rank.rank;
  options.size = kRanks;
  options.store = store.c_str();
  options.backend = c.backend;
  options.init_timeout_ms = init_ms;
  options.op_timeout_ms = kOpMs;
  if (rank.context != nullptr) out.take(weft_comm_create(rank.context, &options, &rank.comm, nullptr));
  if (armed == Armed::kBody || armed == Armed::kRecovery) rank_barrier.wait(arm);
  if (rank.comm != nullptr) body(rank);
  // A program leaves after an error, which the other rank has or gets now.
  if (!out.ok()) weft_comm_destroy(&rank.comm);
  if (armed != Armed::kDestroy) rank_barrier.wait(disarm);
  if (out.ok()) out.take(weft_barrier(rank.comm, nullptr, nullptr));
  if (armed == Armed::kDestroy) rank_barrier.wait(arm);
  out.take(weft_comm_destroy(&rank.comm));
  out.take(weft_context_destroy(&rank.context));
  if (armed != Armed::kDestroy) return;
  rank_barrier.wait(disarm);
  // A destroy that failed can be repeated.
  if (rank.comm != nullptr) out.take(weft_comm_destroy(&rank.comm));
  if (rank.context != nullptr) out.take(weft_context_destroy(&rank.context));
}

// Returns the number of calls that the armed part made.
inline uint64_t run(const Case& c, Armed armed, uint64_t n, const Body& body, Outcome (&outcomes)[kRanks],
                    int64_t init_ms = kInitMs) {
  static int runs = 0;
  const std::string store =
      "unix:@weft-allocations-" + std::to_string(::getpid()) + "-" + std::to_string(runs++);
  uint64_t reached = 0;
  RankBarrier rank_barrier;
  std::thread threads[kRanks];
  for (int r = 0; r < kRanks; r++) {
    threads[r] = std::thread([&, r] {
      AllocatingRank rank{nullptr, nullptr, r, &outcomes[r], &rank_barrier};
      run_rank(c, store, armed, n, body, init_ms, rank, &reached);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return reached;
}

// A call that may fail without an error, because there is a fallback.
struct Fallback {
  Kind kind;
  const char* function;  // a part of the name of a function on the stack
  const char* what;      // the fallback
};
inline constexpr Fallback kFallbacks[] = {
    {Kind::kNew, "weft::coll::Schedule::shrink", "a schedule keeps spare memory"},
    {Kind::kNew, "weft::Callbacks::post",
     "a call that waits runs the callback, or the next callback's thread"},
    {Kind::kNew, "weft::Metrics::Source::~Source", "the metrics of an object that has ended are missing"},
    {Kind::kNew, "weft::StatusServer::start", "weft status does not find the process"},
    {Kind::kNew, "weft::SocketMesh::Core::gone", "a rank that has left already closed its connection"},
    {Kind::kNew, "weft::replan_automatically", "the bucket plan stays"},
    {Kind::kNew, "weft::Comm::cancelled", "the error of cancelled operations has no text"},
    {Kind::kNew, "weft::CommTasks::close_lane", "the number of a closed lane is not used again"},
    {Kind::kNew, "weft::Members::with_places", "an error does not name the processes of its ranks"},
    {Kind::kNew, "weft::place_text", "an error does not name the processes of its ranks"},
    {Kind::kNew, "weft::Comm::adopt", "the error of another rank lacks its text"},
    {Kind::kNew, "weft::Comm::send_failure", "the end of the connection reports the failure"},
    {Kind::kNew, "weft::SocketMesh::leave", "the end of the connection says that the rank left"},
    {Kind::kNew, "weft::SocketMesh::Core::give_signs_of_life", "the next heartbeat follows"},
    {Kind::kNew, "weft::Generations::on_peer_left",
     "the communicator fails, which its rank has left as well"},
    {Kind::kNew, "weft::SecureStream::receive", "the communicator fails, which its rank has left as well"},
    {Kind::kNew, "weft::Registry::probe", "a backend that cannot be examined is not chosen"},
    {Kind::kNew, "weft::StoreExchange::~StoreExchange", "the end of the connection says that the rank left"},
    {Kind::kNew, "weft::StoreServer::Loop",
     "a rank whose connection is dropped before it joined tries again"},
    {Kind::kMalloc, "weft::Registry::load_accelerator", "there are no devices"},
    {Kind::kMalloc, "weft::prepare_unwinding", "the library is loaded with the first exception"},
    {Kind::kMalloc, "weft::check_descriptors", "a lack of descriptors is detected later"},
    {Kind::kMalloc, "weft::check_user_is_known", "the overflow user is the usual one, 65534"},
    {Kind::kMalloc, "weft::allowed_cores", "cores are not compared"},
    {Kind::kMalloc, "weft::shm::available_memory", "a lack of memory is detected when it is populated"},
    {Kind::kMalloc, "weft::shm::GroupTuner::GroupTuner", "crossover sizes are the usual ones"},
    {Kind::kMalloc, "weft::StatusServer::start", "weft status does not find the process"},
    {Kind::kMalloc, "weft::Callbacks::post",
     "a call that waits runs the callback, or the next callback's thread"},
    {Kind::kMap, "weft::ForkGuard::ForkGuard", "each call compares the process's number"},
    {Kind::kMap, "weft::shm::map", "the mapping lies anywhere"},
    {Kind::kMap, "weft::shm::feasible_arena", "the arena is smaller"},
    {Kind::kThread, "weft::StatusServer::start", "weft status does not find the process"},
    {Kind::kThread, "weft::Callbacks::post",
     "a call that waits runs the callback, or the next callback's thread"},
};

// The functions in which the call failed, one a line, innermost first.
inline std::string stack_of_failure() {
  static FunctionNames names;
  std::string text;
  for (int i = 0; i < FailingAllocations::frame_count(); i++) {
    std::string name = names.at(FailingAllocations::frames()[i]);
    if (name.starts_with("weft_test::")) break;
    if (name.starts_with("weft")) text += "\n  " + name.substr(0, name.find('('));
  }
  return text;
}

inline bool has_fallback(Kind kind, const std::string& stack) {
  return std::any_of(std::begin(kFallbacks), std::end(kFallbacks), [&](const Fallback& fallback) {
    return fallback.kind == kind && stack.find(fallback.function) != std::string::npos;
  });
}

// Returns whether a rank may report this code when its own call fails. A thread that cannot be started, and a
// system call that finds no memory, is the system's error.
inline bool is_cause(Kind kind, weft_status status) {
  return (status == WEFT_ERR_NOMEM && kind != Kind::kThread) ||
         (status == WEFT_ERR_SYSTEM && kind != Kind::kNew);
}
// The same for a call of another rank: the cause, or that the first rank left, aborted, cannot use a backend,
// or lacks in what all compare. A rank that never came is absent at the deadline.
inline bool is_consequence(Kind kind, Armed armed, weft_status status) {
  return is_cause(kind, status) || status == WEFT_ERR_PEER_FAILED || status == WEFT_ERR_ABORTED ||
         status == WEFT_ERR_MISMATCH || status == WEFT_ERR_MINORITY || status == WEFT_ERR_UNAVAILABLE ||
         (status == WEFT_ERR_TIMEOUT && armed == Armed::kContext);
}
// Returns whether the rank's error is the cause, or names it: a rank that shrinks may find the other one gone
// before its own error counts.
inline bool names_cause(Kind kind, const Outcome& out) {
  return is_cause(kind, out.worst) || std::strstr(out.text, "Cannot allocate memory") != nullptr ||
         std::strstr(out.text, "out of memory") != nullptr;
}

// Returns whether a rank left without a goodbye, for which it had no memory. The other ranks see the end of
// its connections, and do not know why.
inline bool leaves_silently(const std::string& stack) {
  return stack.find("weft::SocketMesh::leave") != std::string::npos;
}

// Numbers of runs.
struct Tally {
  uint64_t errors = 0;     // every rank had an error
  uint64_t fallbacks = 0;  // no rank had one
  uint64_t unreached = 0;  // fewer calls were made than the one that was to fail
};

// Checks a run whose n-th call failed, or was never made.
inline void check_run(const Case& c, Armed armed, uint64_t n, uint64_t reached,
                      const Outcome (&outcomes)[kRanks], Tally& tally) {
  const Outcome& first = outcomes[0];
  const Outcome& second = outcomes[1];
  const bool failed = FailingAllocations::frame_count() > 0;
  CHECK(failed == (reached >= n));
  for (const Outcome& out : outcomes) {
    CHECK((!out.late || armed == Armed::kContext));
    CHECK(out.called == out.posted);
  }
  if (!failed) {
    tally.unreached++;
    CHECK((first.ok() && second.ok()));
    return;
  }
  const bool ok = first.ok() && second.ok();
  const std::string stack = ok && armed == Armed::kDestroy ? "" : stack_of_failure();
  INFO("failed in" << stack);
  if (ok) {
    tally.fallbacks++;
    // Leaving is never refused.
    CHECK((armed == Armed::kDestroy || armed == Armed::kRecovery || has_fallback(c.kind, stack)));
    return;
  }
  tally.errors++;
  CHECK_FALSE(armed == Armed::kDestroy);
  CHECK((names_cause(c.kind, first) || names_cause(c.kind, second) || leaves_silently(stack)));
  CHECK(is_consequence(c.kind, armed, first.worst));
  CHECK(is_consequence(c.kind, armed, second.worst));
}

// Returns whether each of several runs leaves blocks of malloc behind. One run may: the C library keeps
// memory of threads that have ended for later ones.
inline bool leaves_blocks(const Case& c, Armed armed, uint64_t n, const Body& body) {
  for (int again = 0; again < 4; again++) {
    Outcome outcomes[kRanks];
    const Holdings before = Holdings::now();
    run(c, armed, n, body, outcomes);
    if (Holdings::once_threads_are(before.threads).blocks <= before.blocks) return false;
  }
  return true;
}

// Fails each call that a run reaches, one a run. If there are more than `most` (with WEFT_TEST_ALL:
// kMostRuns), an evenly spread selection fails. never: says why the run makes no such call, if it makes none.
inline void fail_each(const char* title, const Case& c, Armed armed, uint64_t most, const Body& body,
                      const char* never = nullptr) {
  constexpr const char* kKinds[] = {"operator new", "malloc", "mmap", "pthread_create"};
  const char* const kind = kKinds[static_cast<size_t>(c.kind)];
  INFO(title << ", " << c.backend << ", progress " << c.progress << ", " << kind);
  uint64_t count = UINT64_MAX;
  // Twice: what is made once in a process stays (loaded libraries, tables, threads' memory that is used
  // again).
  for (int warm_up = 0; warm_up < 2; warm_up++) {
    Outcome outcomes[kRanks];
    ::alarm(kLongestS);  // turns a hang into a failure
    count = std::min(count, run(c, armed, 0, body, outcomes));
    for (const Outcome& out : outcomes) {
      INFO(out.text);
      REQUIRE(out.ok());
    }
  }
  INFO((never == nullptr ? "" : never));
  CHECK((count == 0) == (never != nullptr));
  const uint64_t runs = weft::test::sampling(std::min(count + 1, kMostRuns), most, most);
  const uint64_t step = std::max<uint64_t>(1, count / runs);
  Tally tally;
  for (uint64_t n = 1; n <= count; n += step) {
    ::alarm(kLongestS);
    Outcome outcomes[kRanks];
    const Holdings before = Holdings::now();
    uint64_t reached = run(c, armed, n, body, outcomes, armed == Armed::kContext ? kNeverCameMs : kInitMs);
    const bool late = outcomes[0].late || outcomes[1].late;
    if (late && !names_cause(c.kind, outcomes[0]) && !names_cause(c.kind, outcomes[1])) {
      // Both came, but the machine is busy.
      for (Outcome& out : outcomes) out = {};
      reached = run(c, armed, n, body, outcomes);
    }
    const Holdings after = Holdings::once_threads_are(before.threads);
    const std::string left = after.beyond(before);
    INFO("call " << n << " of about " << count << "\nrank 0: " << outcomes[0].text
                 << "\nrank 1: " << outcomes[1].text << "\nleft behind: " << left
                 << (left.empty() ? "" : stack_of_failure()));
    CHECK(left.empty());
    check_run(c, armed, n, reached, outcomes, tally);
    if (after.blocks > before.blocks) {
      INFO("failed in" << stack_of_failure());
      CHECK_FALSE(leaves_blocks(c, armed, n, body));
    }
  }
  ::alarm(0);
  std::printf("%-19s %-8s progress %d, %-14s: %4llu of %5llu calls failed: %4llu errors, %2llu fallbacks\n",
              title, c.backend, c.progress, kind,
              static_cast<unsigned long long>(tally.errors + tally.fallbacks),
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(tally.errors),
              static_cast<unsigned long long>(tally.fallbacks));
  if (never != nullptr) return;
  CHECK(tally.errors + tally.fallbacks > 0);
  if (c.kind == Kind::kNew && armed != Armed::kDestroy) CHECK(tally.errors > 0);
}

}  // namespace weft_test
