// Ranks that die, fail or stop at an exact place: the others name them.
#include <sched.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "fault/processes.h"
#include "support/catch.h"

using weft_test::Joined;
using weft_test::Processes;
using weft_test::Reporter;
using weft_test::Word;

namespace {

constexpr int kBoundMs = 10000;
constexpr int kRanks = 3;

struct Place {
  std::string name;
  const char* hook = "allreduce";
};
// The casts of the bf16 hook are fused into the copies.
const Place kPlaces[] = {{"forming"},   {"operation@0"}, {"operation@3"},
                         {"stage@0.0"}, {"stage@1.1"},   {"stage@1.1", "bf16"}};

// Creates a communicator, runs a few operations and a few reducer steps, and destroys all. The final word is
// the first failure.
void live(const char* backend, int rank, const std::string& store, Reporter& reporter,
          const char* hook = "allreduce") {
  Joined joined(backend, rank, kRanks, store);
  weft_error error = joined.error;
  weft_status status = joined.status;
  weft_reducer* reducer = nullptr;
  if (status == WEFT_OK) {
    std::vector<float> data(100'000, 1.0f);
    for (int i = 0; status == WEFT_OK && i < 5; i++) {
      status = weft_all_reduce(joined.comm, data.data(), data.data(), data.size(), WEFT_DTYPE_F32,
                               WEFT_OP_MAX, nullptr, nullptr);
    }
    const int64_t shape = 50'000;
    const weft_param params[2] = {{sizeof(weft_param), "a", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0},
                                  {sizeof(weft_param), "b", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0}};
    const uint64_t limit = 0;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = 2;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    if (status == WEFT_OK) status = weft_hook_create(joined.context, hook, nullptr, &options.hook);
    if (status == WEFT_OK) status = weft_reducer_create(joined.comm, &options, &reducer, &error);
    weft_hook_destroy(&options.hook);
    for (int step = 0; status == WEFT_OK && step < 3; step++) {
      status = weft_reducer_begin(reducer, nullptr);
      for (const uint64_t i : {1, 0}) {
        if (status == WEFT_OK) status = weft_reducer_ready(reducer, i, data.data() + i * 50'000, nullptr);
      }
      if (status == WEFT_OK) status = weft_reducer_finish(reducer, nullptr);
    }
    if (status == WEFT_OK) status = weft_barrier(joined.comm, nullptr, nullptr);
    if (status != WEFT_OK && error.code == 0) weft_comm_error(joined.comm, &error);
  }
  weft_reducer_destroy(&reducer);
  weft_comm_destroy(&joined.comm);
  weft_context_destroy(&joined.context);
  reporter.end(status, error);
}

}  // namespace

TEST_CASE("a rank that dies or fails at an exact place is named by all others") {
  for (const std::string& backend : weft_test::backends()) {
    for (const int victim : {0, 2}) {
      for (const auto& [place, hook] : kPlaces) {
        for (const std::string action : {"kill", "fail"}) {
          INFO(backend << ", hook " << hook << ", rank " << victim << " at " << place << "=" << action);
          const std::string store = weft_test::store_name();
          Processes ranks(kRanks, [&](int rank, Reporter& reporter) {
            if (rank == victim) setenv("WEFT_FAILPOINTS", (place + "=" + action).c_str(), 1);
            live(backend.c_str(), rank, store, reporter, hook);
          });
          Word word;
          for (int r = 0; r < kRanks; r++) {
            INFO("rank " << r);
            const bool spoke = ranks.last_word(r, kBoundMs, &word);
            if (r == victim && action == "kill") {
              CHECK(!spoke);  // the victim reached the place
              continue;
            }
            REQUIRE(spoke);
            INFO(word.text);
            CHECK(word.status != WEFT_OK);
            const std::string text = word.text;
            if (r == victim) {
              CHECK(text.find("failpoint " + place) != std::string::npos);
            } else {
              CHECK((word.failed_rank == victim ||
                     text.find("rank " + std::to_string(victim)) != std::string::npos));
              const bool gone =
                  word.evidence == WEFT_EVIDENCE_CONNECTION || word.evidence == WEFT_EVIDENCE_PROCESS;
              // A rank that fails during creation leaves.
              const bool leaves = action == "kill" || place == "forming";
              CHECK((word.evidence == WEFT_EVIDENCE_REPORT || (leaves && gone)));
            }
            CHECK(ranks.exited_cleanly(r, kBoundMs));
          }
        }
      }
    }
  }
}

TEST_CASE("a rank that dies, stops or fails during autotuning is named by the other one in time") {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < 2) WEFT_SKIP("one core");
  bool has_ucx = false;
  for (const std::string& backend : weft_test::backends()) has_ucx |= backend == "ucx";
  if (!has_ucx) WEFT_SKIP("no ucx");
  for (const int victim : {0, 1}) {
    for (const std::string action : {"kill", "stop", "fail"}) {
      for (const std::string place : {"measuring@0", "measuring@1"}) {
        INFO("rank " << victim << " at " << place << "=" << action);
        if (action == "stop" && place == "measuring@0") continue;  // creation then takes the whole time
        const std::string store = weft_test::store_name();
        Processes ranks(2, [&](int rank, Reporter& reporter) {
          if (rank == victim) setenv("WEFT_FAILPOINTS", (place + "=" + action).c_str(), 1);
          weft_test::Terms terms;
          terms.init_timeout_ms = 3'000;
          Joined joined("ucx", rank, 2, store, terms);
          weft_comm_destroy(&joined.comm);
          weft_context_destroy(&joined.context);
          reporter.end(joined.status, joined.error);
        });
        Word word;
        REQUIRE(ranks.last_word(1 - victim, kBoundMs, &word));
        INFO(word.text);
        CHECK(word.status == (action == "kill"   ? WEFT_ERR_PEER_FAILED
                              : action == "stop" ? WEFT_ERR_TIMEOUT
                                                 : WEFT_ERR_SYSTEM));
        CHECK(word.failed_rank == victim);
        CHECK(ranks.exited_cleanly(1 - victim, kBoundMs));
        if (action != "fail") continue;
        CHECK(std::string(word.text).find("failpoint " + place) != std::string::npos);
        REQUIRE(ranks.last_word(victim, kBoundMs, &word));
        CHECK(std::string(word.text).find("failpoint " + place) != std::string::npos);
      }
    }
  }
}

TEST_CASE("a rank that dies while it leaves blocks no other rank") {
  for (const std::string& backend : weft_test::backends()) {
    for (const int victim : {0, 1}) {
      INFO(backend << ", rank " << victim);
      const std::string store = weft_test::store_name();
      Processes ranks(kRanks, [&](int rank, Reporter& reporter) {
        if (rank == victim) setenv("WEFT_FAILPOINTS", "leaving=kill", 1);
        live(backend.c_str(), rank, store, reporter);
      });
      Word word;
      for (int r = 0; r < kRanks; r++) {
        if (r == victim) continue;
        REQUIRE(ranks.last_word(r, kBoundMs, &word));
        // The others may detect its death before the end of the last barrier, which it had already joined.
        CHECK(
            (word.status == WEFT_OK || (word.status == WEFT_ERR_PEER_FAILED && word.failed_rank == victim)));
        CHECK(ranks.exited_cleanly(r, kBoundMs));
      }
    }
  }
}

TEST_CASE("a rank whose allocation or system call fails blocks no other rank, and is named") {
  for (const std::string& backend : weft_test::backends()) {
    const std::string system = backend == "ucx" ? "system@1" : "system@0";
    for (const std::string& place : {system, std::string("memory@1"), std::string("memory@2")}) {
      for (const int victim : {0, 2}) {
        INFO(backend << ", rank " << victim << " at " << place);
        const std::string store = weft_test::store_name();
        Processes ranks(kRanks, [&](int rank, Reporter& reporter) {
          if (rank == victim) setenv("WEFT_FAILPOINTS", (place + "=fail").c_str(), 1);
          live(backend.c_str(), rank, store, reporter);
        });
        for (int r = 0; r < kRanks; r++) {
          INFO("rank " << r);
          Word word;
          REQUIRE(ranks.last_word(r, kBoundMs, &word));
          INFO(word.text);
          CHECK(word.status != WEFT_OK);
          const std::string text = word.text;
          CHECK(text.find("failpoint " + place) != std::string::npos);  // on the others too
          if (r != victim) CHECK(text.find("rank " + std::to_string(victim)) != std::string::npos);
          if (r == victim && place != system) CHECK(word.status == WEFT_ERR_NOMEM);
          CHECK(ranks.exited_cleanly(r, kBoundMs));
        }
      }
    }
  }
}
