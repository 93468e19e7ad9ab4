// SIGSTOP of a rank: the others' operations, which could wait for minutes, end within the heartbeat budget
// and name it. The rank finds that it is excluded when it continues. A rank that only computes for longer
// than the budget is not affected.
#include <string>
#include <vector>

#include "fault/processes.h"
#include "support/catch.h"

using weft_test::Joined;
using weft_test::Processes;
using weft_test::Reporter;
using weft_test::Terms;
using weft_test::Word;

namespace {

constexpr int kBoundMs = 10000;
constexpr int kSetupMs = 30000;
constexpr int kRanks = 3;

Terms patient(int64_t heartbeat_timeout_ms, int32_t progress = 0) {
  Terms terms;
  terms.op_timeout_ms = 300'000;
  terms.heartbeat_timeout_ms = heartbeat_timeout_ms;
  terms.progress = progress;
  return terms;
}

bool names(const std::string& text, int rank) {
  return text.find("nothing was received from rank " + std::to_string(rank)) != std::string::npos;
}

// Runs one all_reduce after the other until one fails. Sends mark 1 after some.
weft_status reduce_until_failure(weft_comm* comm, uint64_t count, Reporter& reporter) {
  std::vector<float> data(count, 1.0f);
  for (int i = 1;; i++) {
    const weft_status status =
        weft_all_reduce(comm, data.data(), data.data(), count, WEFT_DTYPE_F32, WEFT_OP_MAX, nullptr, nullptr);
    if (status != WEFT_OK) return status;
    if (i == 20) reporter.mark(1);
  }
}

}  // namespace

TEST_CASE("a stopped rank is named by all others, and gets the error itself when it continues") {
  for (const std::string& backend : weft_test::backends()) {
    for (const int victim : {0, 2}) {
      INFO(backend << ", victim " << victim);
      const std::string store = weft_test::store_name();
      const uint64_t count = victim == 0 ? 100'000 : 1'000'000;
      Processes ranks(kRanks, [&](int rank, Reporter& reporter) {
        Joined joined(backend.c_str(), rank, kRanks, store,
                      patient(0, victim == 0 ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_CALLER));
        if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
        const weft_status status = reduce_until_failure(joined.comm, count, reporter);
        weft_error error = WEFT_ERROR_INIT;
        weft_comm_error(joined.comm, &error);
        weft_comm_destroy(&joined.comm);
        weft_context_destroy(&joined.context);
        reporter.end(status, error);
      });
      REQUIRE(ranks.wait_for_mark(victim, 1, kSetupMs));
      ranks.kill(victim, SIGSTOP);
      const uint64_t stopped_at = weft_test::now_ms();
      Word word;
      for (int r = 0; r < kRanks; r++) {
        if (r == victim) continue;
        REQUIRE(ranks.last_word(r, kBoundMs, &word));
        INFO("rank " << r << ": " << word.text);
        CHECK(word.at_ms < stopped_at + kBoundMs);
        CHECK(word.status == WEFT_ERR_PEER_FAILED);
        CHECK(word.failed_rank == victim);
        CHECK((word.evidence == WEFT_EVIDENCE_HEARTBEAT || word.evidence == WEFT_EVIDENCE_REPORT));
        CHECK(names(word.text, victim));
        CHECK(ranks.exited_cleanly(r, kBoundMs));
      }
      ranks.kill(victim, SIGCONT);
      REQUIRE(ranks.last_word(victim, kBoundMs, &word));
      INFO("the stopped rank: " << word.text);
      CHECK(word.status == WEFT_ERR_PEER_FAILED);
      CHECK(names(word.text, victim));  // itself: the others' report came first
      CHECK(ranks.exited_cleanly(victim, kBoundMs));
    }
  }
}

TEST_CASE("the survivors of a stopped rank shrink and continue, and it cannot continue when it wakes up") {
  for (const std::string& backend : weft_test::backends()) {
    for (const int victim : {0, 1}) {
      INFO(backend << ", victim " << victim);
      const std::string store = weft_test::store_name();
      Processes ranks(kRanks, [&](int rank, Reporter& reporter) {
        Joined joined(backend.c_str(), rank, kRanks, store, patient(1000));
        if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
        (void)reduce_until_failure(joined.comm, 100'000, reporter);
        weft_comm* next = nullptr;
        weft_error error = WEFT_ERROR_INIT;
        weft_status status = weft_comm_shrink(joined.comm, nullptr, &next, &error);
        int64_t mine = rank, sum = 0;
        if (status == WEFT_OK) {
          status = weft_all_reduce(next, &mine, &sum, 1, WEFT_DTYPE_I64, WEFT_OP_SUM, nullptr, nullptr);
          if (status == WEFT_OK) status = static_cast<weft_status>(1000 + sum);
        }
        weft_comm_destroy(&next);
        weft_comm_destroy(&joined.comm);
        weft_context_destroy(&joined.context);
        reporter.end(status, error);
      });
      REQUIRE(ranks.wait_for_mark(victim, 1, kSetupMs));
      ranks.kill(victim, SIGSTOP);
      Word word;
      for (int r = 0; r < kRanks; r++) {
        if (r == victim) continue;
        REQUIRE(ranks.last_word(r, kBoundMs, &word));
        INFO("rank " << r << ": " << word.text);
        CHECK(word.status == 1000 + 3 - victim);
        CHECK(ranks.exited_cleanly(r, kBoundMs));
      }
      ranks.kill(victim, SIGCONT);
      REQUIRE(ranks.last_word(victim, kBoundMs, &word));
      INFO("the stopped rank: " << word.text);
      CHECK((word.status == WEFT_ERR_MINORITY || word.status == WEFT_ERR_PEER_FAILED));
      CHECK(ranks.exited_cleanly(victim, kBoundMs));
    }
  }
}

TEST_CASE(
    "a rank that computes for several heartbeat budgets is not reported as lost, in either progress mode") {
  constexpr int64_t kBudgetMs = 1000;
  for (const std::string& backend : weft_test::backends()) {
    for (const int32_t progress : {WEFT_PROGRESS_THREAD, WEFT_PROGRESS_CALLER}) {
      INFO(backend << ", progress mode " << progress);
      const std::string store = weft_test::store_name();
      Processes ranks(kRanks, [&](int rank, Reporter& reporter) {
        Joined joined(backend.c_str(), rank, kRanks, store, patient(kBudgetMs, progress));
        weft_error error = joined.error;
        weft_status status = joined.status;
        float one = 1.0f;
        for (int i = 0; status == WEFT_OK && i < 2; i++) {
          volatile uint64_t result = 0;
          const uint64_t until = weft_test::now_ms() + 3 * kBudgetMs;
          // Computes without calling Weft.
          while (rank == 1 && i == 1 && weft_test::now_ms() < until) result = result + 1;
          status = weft_all_reduce(joined.comm, &one, &one, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr);
        }
        if (status != WEFT_OK) weft_comm_error(joined.comm, &error);
        weft_comm_destroy(&joined.comm);
        weft_context_destroy(&joined.context);
        reporter.end(status, error);
      });
      for (int r = 0; r < kRanks; r++) {
        Word word;
        REQUIRE(ranks.last_word(r, kSetupMs, &word));
        INFO("rank " << r << ": " << word.text);
        CHECK(word.status == WEFT_OK);
        CHECK(ranks.exited_cleanly(r, kBoundMs));
      }
    }
  }
}

namespace {

// An all-reduce hook whose first stage is slow on rank 1, in step 1.
constexpr int64_t kStageBudgetMs = 1000;

weft_status plan_slow(void*, const weft_bucket* bucket, weft_hook_plan* plan, char*) {
  plan->collective_count = 1;
  plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
  plan->collectives[0].dtype = bucket->dtype;
  plan->collectives[0].op = WEFT_OP_AVG;
  plan->collectives[0].count = bucket->count;
  return WEFT_OK;
}

weft_status stage_slow(void*, const weft_bucket* bucket, weft_stage* stage, char*) {
  volatile uint64_t result = 0;
  const bool slow = bucket->rank == 1 && bucket->step == 1 && stage->index == 0;
  const uint64_t until = slow ? weft_test::now_ms() + 3 * kStageBudgetMs : 0;
  while (weft_test::now_ms() < until) result = result + 1;
  return WEFT_OK;
}

weft_status three_steps(const Joined& joined, weft_error* error) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "slow";
  table.plan = plan_slow;
  table.stage = stage_slow;
  weft_hook* hook = nullptr;
  weft_status status = weft_hook_create_custom(joined.context, &table, nullptr, &hook);
  const int64_t shape[] = {1000};
  weft_param param = WEFT_PARAM_INIT;
  param.name = "weight";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 1;
  param.shape = shape;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  options.hook = hook;
  weft_reducer* reducer = nullptr;
  if (status == WEFT_OK) status = weft_reducer_create(joined.comm, &options, &reducer, error);
  std::vector<float> gradient(1000, 1.0f);
  for (int step = 0; step < 3 && status == WEFT_OK; step++) {
    status = weft_reducer_begin(reducer, nullptr);
    if (status == WEFT_OK) status = weft_reducer_ready(reducer, 0, gradient.data(), nullptr);
    if (status == WEFT_OK) status = weft_reducer_finish(reducer, nullptr);
    if (status != WEFT_OK) weft_reducer_error(reducer, error);
  }
  weft_reducer_destroy(&reducer);
  weft_hook_destroy(&hook);
  return status;
}

}  // namespace

TEST_CASE("a rank whose hook computes for several budgets is not reported as lost, in either progress mode") {
  for (const std::string& backend : weft_test::backends()) {
    for (const int32_t progress : {WEFT_PROGRESS_THREAD, WEFT_PROGRESS_CALLER}) {
      INFO(backend << ", progress mode " << progress);
      const std::string store = weft_test::store_name();
      Processes ranks(kRanks, [&](int rank, Reporter& reporter) {
        Joined joined(backend.c_str(), rank, kRanks, store, patient(kStageBudgetMs, progress));
        weft_error error = joined.error;
        const weft_status status = joined.status == WEFT_OK ? three_steps(joined, &error) : joined.status;
        weft_comm_destroy(&joined.comm);
        weft_context_destroy(&joined.context);
        reporter.end(status, error);
      });
      for (int r = 0; r < kRanks; r++) {
        Word word;
        REQUIRE(ranks.last_word(r, kSetupMs, &word));
        INFO("rank " << r << ": " << word.text);
        CHECK(word.status == WEFT_OK);
        CHECK(ranks.exited_cleanly(r, kBoundMs));
      }
    }
  }
}
