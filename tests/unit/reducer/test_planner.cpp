// lib/reducer/plan/planner: bucket boundaries by the cost model, compared with all possible boundaries.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/splitmix.h"
#include "reducer/plan/planner.h"
#include "support/catch.h"

namespace unit_planner {

using namespace weft;

namespace {

Param param(std::string name, uint64_t count, Dtype dtype = Dtype::kF32) {
  Param p;
  p.name = std::move(name);
  p.dtype = dtype;
  p.shape = {static_cast<int64_t>(count)};
  p.strides = {1};
  p.count = count;
  return p;
}

Manifest manifest_of(const std::vector<uint64_t>& counts) {
  Manifest m;
  for (const uint64_t count : counts) m.params.push_back(param("p" + std::to_string(m.params.size()), count));
  return m;
}

using Points = std::vector<TransferCost::Point>;
using Buckets = std::vector<std::vector<uint32_t>>;

Buckets members(const Plan& plan) {
  Buckets out;
  for (const PlannedBucket& b : plan.buckets) out.push_back(b.params);
  return out;
}

std::vector<uint32_t> as_listed(size_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// Returns the least exposed time of all plans that keep the order 0, 1, 2 ...
uint64_t least_exposed(const Manifest& m, const ReadyTimes& ready, const TransferCost& cost) {
  const size_t count = m.params.size();
  uint64_t least = UINT64_MAX;
  for (uint32_t cuts = 0; cuts < 1u << (count - 1); cuts++) {
    Buckets buckets(1);
    for (uint32_t i = 0; i < count; i++) {
      buckets.back().push_back(i);
      if (i + 1 < count && (cuts >> i & 1) != 0) buckets.emplace_back();
    }
    Plan plan;
    REQUIRE(make_plan(m, buckets, &plan).ok());
    least = std::min(least, exposed_ns(plan, ready, cost));
  }
  return least;
}

}  // namespace

TEST_CASE("the cost of a collective is interpolated between the measured sizes") {
  const TransferCost cost(Points{{1000, 50}, {0, 10}, {3000, 150}});
  CHECK(cost.ns(0) == 10);
  CHECK(cost.ns(500) == 30);
  CHECK(cost.ns(2000) == 100);
  CHECK(cost.ns(5000) == 250);
  CHECK(TransferCost(Points{{100, 7}}).ns(5000) == 7);
  const TransferCost noisy(Points{{0, 10}, {100, 40}, {200, 30}});
  CHECK(noisy.ns(200) == 40);
  CHECK(noisy.ns(150) == 40);
}

TEST_CASE("the exposed time of a plan is the time after the last gradient") {
  const Manifest m = manifest_of({100, 100});  // 400 bytes each
  const TransferCost cost(Points{{0, 10}, {1000, 1010}});
  Plan apart, together;
  REQUIRE(make_plan(m, Buckets{{0}, {1}}, &apart).ok());
  REQUIRE(make_plan(m, Buckets{{0, 1}}, &together).ok());
  CHECK(exposed_ns(apart, {0, 1000}, cost) == 410);  // the first one had completed long before
  CHECK(exposed_ns(together, {0, 1000}, cost) == 810);
  CHECK(exposed_ns(apart, {0, 100}, cost) == 410 + 310);
  CHECK(exposed_ns(apart, {0, kNeverReady}, cost) == 820);
}

TEST_CASE("the planner finds the best of all boundaries") {
  SplitMix64 random(20261121);
  for (int round = 0; round < 300; round++) {
    const size_t count = 1 + random.next() % 9;
    std::vector<uint64_t> counts;
    ReadyTimes ready;
    uint64_t now = 0;
    for (size_t i = 0; i < count; i++) {
      counts.push_back(random.next() % 4 == 0 ? 1 + random.next() % 5 : 1 + random.next() % 20000);
      ready.push_back(now += random.next() % 40000);
    }
    const uint64_t start = random.next() % 30000;
    const TransferCost cost(
        {{0, start}, {4096, start + 4096 + random.next() % 4096}, {1 << 16, start + 80000}});
    const Manifest m = manifest_of(counts);
    CAPTURE(round, counts, ready);
    const Plan plan = plan_by_model(m, bucket_limits({}), ready, cost);
    CHECK(exposed_ns(plan, ready, cost) == least_exposed(m, ready, cost));
  }
}

TEST_CASE("a plan by the model follows the order of readiness, and leaves the last bucket small") {
  const Manifest m = manifest_of({1000, 1000, 1000, 1000, 1000, 10});
  const TransferCost cost(Points{{0, 1000}, {4000, 2000}});
  const Plan plan = plan_by_model(m, bucket_limits({}), {60000, 50000, 40000, 30000, 20000, 70000}, cost);
  std::vector<uint32_t> order;
  for (const auto& bucket : members(plan)) order.insert(order.end(), bucket.begin(), bucket.end());
  CHECK(order == std::vector<uint32_t>{4, 3, 2, 1, 0, 5});
  CHECK(members(plan).back() == std::vector<uint32_t>{5});
}

TEST_CASE("if nothing can overlap, one bucket is best") {
  const Manifest m = manifest_of({10, 20, 30, 40});
  const Plan plan =
      plan_by_model(m, bucket_limits({}), {5, 5, 5, 5}, TransferCost(Points{{0, 100}, {1000, 200}}));
  CHECK(members(plan) == Buckets{{0, 1, 2, 3}});
}

TEST_CASE("a plan by the model never exposes more than DDP's, whatever else uses the network") {
  SplitMix64 random(7);
  for (int round = 0; round < 200; round++) {
    Manifest m;
    ReadyTimes ready;
    const size_t count = 2 + random.next() % 60;
    for (size_t i = 0; i < count; i++) {
      Param p = param("p" + std::to_string(i), 1 + random.next() % 100000,
                      random.next() % 3 == 0 ? Dtype::kF16 : Dtype::kF32);
      if (random.next() % 12 == 0) p.flags = WEFT_PARAM_STATE_ONLY;
      ready.push_back(random.next() % 10 == 0 ? kNeverReady : random.next() % 1000000);
      m.params.push_back(p);
    }
    if (m.reduced() == 0) continue;
    const TransferCost cost(Points{{0, random.next() % 20000}, {1 << 20, 500000}});
    const std::vector<uint64_t> limits = {1 << 16, 1 << 19};
    std::vector<uint32_t> order = as_listed(count);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return ready[a] < ready[b]; });
    const Plan plan = plan_by_model(m, limits, ready, cost);
    const Plan by_size = make_plan(m, {.limits = limits, .order = order});
    CAPTURE(round);
    CHECK(exposed_ns(plan, ready, cost) <= exposed_ns(by_size, ready, cost));
    Plan again;  // the plan that is sent to the other ranks is valid, and has every parameter
    CHECK(make_plan(m, members(plan), &again).ok());
  }
}

TEST_CASE("a model with very many parameters can be planned") {
  std::vector<uint64_t> counts(20000);
  ReadyTimes ready(counts.size());
  for (size_t i = 0; i < counts.size(); i++) {
    counts[i] = i % 2 == 0 ? 1 : 1000;
    ready[i] = i * 400;
  }
  const Manifest m = manifest_of(counts);
  const TransferCost cost(Points{{0, 20000}, {1 << 20, 120000}});
  const Plan plan = plan_by_model(m, bucket_limits({}), ready, cost);
  const Plan by_size = make_plan(m, {.order = as_listed(counts.size())});
  CHECK(exposed_ns(plan, ready, cost) < exposed_ns(by_size, ready, cost) / 2);
}

}  // namespace unit_planner
