// Hook collectives whose counts differ between ranks and between steps.
#include "reducer/step/counts.h"
#include "reducer_rig.h"
#include "shm/backend.h"

namespace unit_reducer_dynamic {

using namespace weft;
using namespace weft::test;

namespace {

// Every rank gathers the non-zero elements of all buckets, as (place, value) pairs, and adds them itself.
struct Entry {
  float place;
  float value;
};

struct User {
  uint64_t lie = 0;                            // added to the count
  std::vector<std::vector<uint64_t>> counted;  // of all ranks, at each last stage
  std::vector<uint64_t> moved;
};

weft_status plan_gather(void*, const weft_bucket* bucket, weft_hook_plan* plan, char*) {
  const auto size = static_cast<uint64_t>(bucket->size);
  plan->scratch_bytes = (size + 1) * bucket->count * sizeof(Entry);
  plan->collective_count = 1;
  weft_hook_collective& c = plan->collectives[0];
  c.coll = WEFT_COLL_ALL_GATHER;
  c.dtype = WEFT_DTYPE_F32;
  c.count = 2 * bucket->count;
  c.src_space = c.dst_space = WEFT_SPACE_SCRATCH;
  c.dst_offset_bytes = bucket->count * sizeof(Entry);
  c.flags = WEFT_HOOK_COLLECTIVE_DYNAMIC;
  return WEFT_OK;
}

weft_status stage_gather(void* data, const weft_bucket* bucket, weft_stage* stage, char*) {
  User& user = *static_cast<User*>(data);
  auto* values = static_cast<float*>(bucket->buffer);
  auto* mine = static_cast<Entry*>(bucket->scratch);
  if (stage->index == 0) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < bucket->count; i++) {
      if (values[i] != 0) mine[count++] = {static_cast<float>(i), values[i]};
    }
    stage->dynamic_count = 2 * count + user.lie;
    return WEFT_OK;
  }
  const Entry* const all = mine + bucket->count;
  user.counted.emplace_back(stage->counts, stage->counts + bucket->size);
  user.moved.push_back(stage->moved_count);
  std::fill(values, values + bucket->count, 0.0f);
  for (int r = 0; r < bucket->size; r++) {
    const Entry* const block = all + static_cast<uint64_t>(r) * stage->moved_count / 2;
    for (uint64_t i = 0; i < stage->counts[r] / 2; i++) {
      values[static_cast<size_t>(block[i].place)] += block[i].value / static_cast<float>(bucket->divisor);
    }
  }
  return WEFT_OK;
}

std::shared_ptr<Hook> gathering(User* user) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "gathering";
  table.plan = plan_gather;
  table.stage = stage_gather;
  std::shared_ptr<Hook> hook;
  if (!make_hook_table(table, user, &hook).ok()) return nullptr;
  return hook;
}

}  // namespace

TEST_CASE("a dynamic collective moves as much as the rank with the largest count needs") {
  const Model model({{"a", {40}}, {"b", {8}}});
  for (const Backend* backend : {static_cast<const Backend*>(nullptr), &shm::backend()}) {
    RanksOptions options;
    options.backend = backend;
    check(run_threads(
        3,
        [&](Rank& self) {
          User user;
          std::unique_ptr<Reducer> reducer;
          self.expect(make_reducer(self.comm, model, gathering(&user), &reducer, {.limits = {0}}), "create");
          if (!reducer) return;
          weft_reducer_stats before{}, after{};
          for (uint64_t step = 0; step < 4; step++) {
            // Rank r has r * step values in 'a', and never any in 'b'.
            std::vector<float> a(40), b(8);
            const auto rank = static_cast<uint64_t>(self.rank);
            for (uint64_t i = 0; i < rank * step; i++) a[i * 3] = static_cast<float>(12 * (i + 1));
            reducer->query(&before);
            self.expect(reducer->begin(nullptr), "begin");
            self.expect(reducer->ready(1, b.data(), nullptr), "ready");
            self.expect(reducer->ready(0, a.data(), nullptr), "ready");
            self.expect(reducer->finish({}), "finish");
            reducer->query(&after);
            for (uint64_t i = 0; i < 40; i++) {
              double sum = 0;
              for (uint64_t r = 0; r < 3; r++) {
                if (i % 3 == 0 && i / 3 < r * step) sum += static_cast<double>(4 * (i / 3 + 1));
              }
              self.expect(a[i] == static_cast<float>(sum), cat("step ", step, " element ", i));
            }
            const uint64_t counts = 2 * 2 * sizeof(uint64_t);
            self.expect(after.sent_bytes - before.sent_bytes == counts + 2 * 4 * step * sizeof(float),
                        "only what is needed moves");
          }
          self.expect(user.counted.back() == std::vector<uint64_t>{0, 6, 12}, "counts");
          self.expect(user.moved == std::vector<uint64_t>{0, 0, 0, 4, 0, 8, 0, 12}, "moved");
        },
        options));
  }
}

TEST_CASE("a hook that counts more than it declared fails the step on every rank by name") {
  const Model model({{"a", {4}}});
  RankBarrier rank_barrier(2);
  check(run_threads(2, [&](Rank& self) {
    User user;
    user.lie = self.rank == 1 ? 7 : 0;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, gathering(&user), &reducer), "create");
    if (!reducer) return;
    std::vector<float> a = {1, 1, 0, 0};
    self.expect(reducer->begin(nullptr), "begin");
    if (self.rank == 1) rank_barrier.arrive(self);  // the others are inside the step when it fails
    self.expect(reducer->ready(0, a.data(), nullptr), "ready");
    if (self.rank == 0) rank_barrier.arrive(self);
    const Status failed = reducer->finish({});
    self.expect(failed.code() == Code::kHook, "code: " + failed.text());
    self.expect(
        has(failed.text(), "hook 'gathering' counts 11 for collective 0") && has(failed.text(), "rank 1"),
        failed.text());
  }));
}

TEST_CASE("counts of other ranks are checked before they are used") {
  uint64_t largest = 0;
  CHECK(judge_counts({3, 8, 0}, 8, &largest).ok());
  CHECK(largest == 8);
  const Status bad = judge_counts({3, 9, UINT64_MAX}, 8, &largest);
  CHECK(bad.code() == Code::kMismatch);
  CHECK(bad.info().ranks == std::vector<int>{1});
}

}  // namespace unit_reducer_dynamic
