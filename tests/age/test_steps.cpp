// The numbers of a reducer's steps that a program sees, where they begin late, and ranks that differ in them.
// Each rank is a process with failpoints of its own.
#include <weft/weft.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fault/processes.h"
#include "support/catch.h"

namespace {

using weft_test::Joined;
using weft_test::Processes;
using weft_test::Reporter;
using weft_test::Word;

constexpr int kBoundMs = 30'000;
constexpr int kSteps = 5;
constexpr uint64_t kParams = 2;
constexpr int64_t kShape = 3000;

// A hook that sends buckets as they are, and checks the step numbers that it gets.
struct Watching {
  uint64_t first = 0;
  uint64_t seen = 0;
  bool right = true;
};

weft_status plan(void*, const weft_bucket* bucket, weft_hook_plan* plan, char*) {
  plan->collective_count = 1;
  plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
  plan->collectives[0].dtype = bucket->dtype;
  plan->collectives[0].op = WEFT_OP_AVG;
  plan->collectives[0].count = bucket->count;
  return WEFT_OK;
}

weft_status watch(void* user_data, const weft_bucket* bucket, weft_stage*, char*) {
  constexpr uint64_t kStages = kParams * 2;  // of a step
  auto* const watching = static_cast<Watching*>(user_data);
  watching->right &= bucket->step == watching->first + watching->seen++ / kStages;
  return WEFT_OK;
}

// Makes steps, in some of which the first parameter is absent on this rank, and checks numbers and results.
// Returns the first call's error, or a status below 0 for what was wrong.
weft_status make_steps(weft_comm* comm, weft_hook* hook, int rank, uint64_t first, weft_error* error) {
  const weft_param params[kParams] = {
      {sizeof(weft_param), "a", WEFT_DTYPE_F32, 1, &kShape, nullptr, 0, 0, 0},
      {sizeof(weft_param), "b", WEFT_DTYPE_F32, 1, &kShape, nullptr, 0, 0, 0}};
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params;
  options.param_count = kParams;
  const uint64_t limit = 0;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  options.flags = WEFT_REDUCER_ABSENT;
  options.hook = hook;
  weft_reducer* reducer = nullptr;
  weft_status status = weft_reducer_create(comm, &options, &reducer, error);
  std::vector<float> gradients[kParams] = {std::vector<float>(kShape), std::vector<float>(kShape)};
  for (uint64_t step = 0; step < kSteps && status == WEFT_OK; step++) {
    const bool absent = rank == 1 && step % 2 == 1;
    for (std::vector<float>& gradient : gradients) std::fill(gradient.begin(), gradient.end(), rank + 1.0f);
    status = weft_reducer_begin(reducer, nullptr);
    if (status == WEFT_OK) status = weft_reducer_ready(reducer, 1, gradients[1].data(), nullptr);
    const uint64_t none = 0;
    if (status == WEFT_OK) {
      status = absent ? weft_reducer_absent(reducer, &none, 1)
                      : weft_reducer_ready(reducer, 0, gradients[0].data(), nullptr);
    }
    if (status == WEFT_OK) status = weft_reducer_finish(reducer, nullptr);
    if (status != WEFT_OK) break;
    weft_verdict verdict = WEFT_VERDICT_INIT;
    weft_reducer_stats stats{};
    stats.struct_size = sizeof stats;
    weft_reducer_verdict(reducer, &verdict);
    weft_reducer_query(reducer, &stats);
    if (stats.steps != first + step + 1 || verdict.next_step != stats.steps ||
        verdict.last_finished_step != first + step) {
      status = -1;
    }
    const float sum = step % 2 == 1 ? 1.0f : 3.0f;
    if (rank == 0 && (gradients[0][17] != sum / 2 || gradients[1][kShape - 1] != 1.5f)) status = -2;
  }
  if (status > 0 && reducer != nullptr) weft_reducer_error(reducer, error);
  weft_reducer_destroy(&reducer);
  return status;
}

void run_rank(const std::string& backend, int rank, const std::string& store, uint64_t first,
              Reporter& reporter) {
  const std::string points = "steps=begin:" + std::to_string(first) +
                             ", stamps=begin:" + std::to_string(static_cast<uint32_t>(first));
  setenv("WEFT_FAILPOINTS", points.c_str(), 1);
  Joined joined(backend.c_str(), rank, 2, store);
  if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
  Watching watching{first};
  weft_hook_table table = WEFT_HOOK_TABLE_INIT;
  table.name = "watching";
  table.plan = plan;
  table.stage = watch;
  weft_error error = WEFT_ERROR_INIT;
  weft_hook* hook = nullptr;
  weft_status status = weft_hook_create_custom(joined.context, &table, &watching, &hook);
  if (status == WEFT_OK) status = make_steps(joined.comm, hook, rank, first, &error);
  if (status == WEFT_OK && !watching.right) status = -3;
  weft_hook_destroy(&hook);
  weft_comm_destroy(&joined.comm);
  weft_context_destroy(&joined.context);
  reporter.end(status, error);
}

}  // namespace

TEST_CASE("steps keep their numbers above 2^31, 2^32 and 2^63, whatever their stamps") {
  for (const uint64_t first : {uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 63}) {
    INFO(first);
    const std::string store = weft_test::store_name();
    Processes ranks(2,
                    [&](int rank, Reporter& reporter) { run_rank("shm", rank, store, first - 3, reporter); });
    for (int r = 0; r < 2; r++) {
      Word word;
      REQUIRE(ranks.last_word(r, kBoundMs, &word));
      INFO("rank " << r << ": " << word.text);
      CHECK(word.status == WEFT_OK);
      CHECK(ranks.exited_cleanly(r, kBoundMs));
    }
  }
}

// Messages and shared memory carry step numbers modulo 2^24 - 1, which the error shows.
TEST_CASE(
    "ranks whose steps have different numbers, equal in their lower 32 bits, get an error that names both") {
  constexpr uint64_t kFirst = 7, kOther = kFirst + (uint64_t{1} << 32);
  const std::string store = weft_test::store_name();
  Processes ranks(2, [&](int rank, Reporter& reporter) {
    run_rank("shm", rank, store, rank == 1 ? kOther : kFirst, reporter);
  });
  for (int r = 0; r < 2; r++) {
    Word word;
    REQUIRE(ranks.last_word(r, kBoundMs, &word));
    INFO("rank " << r << ": " << word.text);
    CHECK(word.status == WEFT_ERR_MISMATCH);
    const std::string text = word.text;
    CHECK(text.find("step 7 ") != std::string::npos);
    CHECK(text.find("step " + std::to_string(kOther % 0xffffff) + " ") != std::string::npos);
  }
}
