// lib/reducer/plan/plan: DistributedDataParallel's assignment (reference: test_c10d_common of PyTorch), and
// Weft's extensions.
#include <string>
#include <vector>

#include "reducer/plan/plan.h"
#include "support/catch.h"

namespace unit_plan {

using namespace weft;

namespace {

Manifest manifest_of(const std::vector<std::pair<Dtype, uint64_t>>& params) {
  Manifest m;
  for (const auto& [dtype, count] : params) {
    Param p;
    p.name = "p" + std::to_string(m.params.size());
    p.dtype = dtype;
    p.shape = {static_cast<int64_t>(count)};
    p.strides = {1};
    p.count = count;
    m.params.push_back(p);
  }
  return m;
}

std::vector<std::vector<uint32_t>> members(const Plan& plan, bool reversed = false) {
  std::vector<std::vector<uint32_t>> out;
  for (const PlannedBucket& b : plan.buckets) out.push_back(b.params);
  if (reversed) out = {out.rbegin(), out.rend()};
  return out;
}

std::vector<uint64_t> limits(const Plan& plan) {
  std::vector<uint64_t> out;
  for (auto b = plan.buckets.rbegin(); b != plan.buckets.rend(); ++b) out.push_back(b->limit_bytes);
  return out;
}

using Buckets = std::vector<std::vector<uint32_t>>;

const std::vector<std::pair<Dtype, uint64_t>> kAlternating = {{Dtype::kF32, 50}, {Dtype::kF64, 25},
                                                              {Dtype::kF32, 50}, {Dtype::kF64, 25},
                                                              {Dtype::kF32, 50}, {Dtype::kF64, 25}};

}  // namespace

TEST_CASE("buckets are filled from the last parameter to the first, and keep the listed order") {
  const Manifest m = manifest_of({{Dtype::kF32, 3}, {Dtype::kF32, 4}, {Dtype::kF32, 5}, {Dtype::kF32, 7}});
  const Plan plan = make_plan(m, {.limits = {28, 36}});
  CHECK(members(plan) == Buckets{{3}, {1, 2}, {0}});
  CHECK(limits(plan) == std::vector<uint64_t>{36, 36, 28});
  CHECK(plan.buckets[1].offsets == std::vector<uint64_t>{0, 4});
  CHECK(plan.buckets[1].count == 9);
  CHECK(plan.bucket_of == std::vector<uint32_t>{2, 1, 1, 0});
  CHECK(plan.offset_of == std::vector<uint64_t>{0, 0, 4, 0});
}

TEST_CASE("by default the first bucket to be launched closes at 1 MiB and the others at 25 MiB") {
  std::vector<std::pair<Dtype, uint64_t>> params(60, {Dtype::kF32, (1u << 20) / 4});
  const Plan plan = make_plan(manifest_of(params), {});
  REQUIRE(plan.buckets.size() == 4);
  CHECK(plan.buckets[0].bytes() == 1u << 20);
  CHECK(plan.buckets[1].bytes() == 25u << 20);
  CHECK(plan.buckets[3].params.size() == 9);
}

TEST_CASE("a bucket closes before a parameter larger than the limit, unless there is little in it") {
  constexpr uint64_t kLarge = 1 << 20, kMiddle = 16 << 10, kSmall = 16;
  const auto planned = [](std::vector<uint64_t> counts, bool ddp) {
    std::vector<std::pair<Dtype, uint64_t>> params;
    for (const uint64_t count : counts) params.emplace_back(Dtype::kF32, count);
    return members(make_plan(manifest_of(params), {.limits = {1 << 20}, .ddp = ddp}));
  };
  CHECK(planned({kSmall, kLarge, kMiddle}, false) == Buckets{{2}, {1}, {0}});
  CHECK(planned({kSmall, kLarge, kMiddle}, true) == Buckets{{2}, {0, 1}});
  CHECK(planned({kSmall, kLarge, kMiddle - 1}, false) == Buckets{{1, 2}, {0}});
  // In the order of readiness as well.
  const Manifest m = manifest_of({{Dtype::kF32, kSmall}, {Dtype::kF32, kMiddle}, {Dtype::kF32, kLarge}});
  CHECK(members(make_plan(m, {.limits = {1 << 20}, .order = {0, 1, 2}})) == Buckets{{0, 1}, {2}});
  CHECK(members(make_plan(m, {.limits = {1 << 20}, .order = {0, 1, 2}, .ddp = true})) == Buckets{{0, 1, 2}});
}

TEST_CASE("buckets of several dtypes are launched as their last members become ready") {
  const Plan plan = make_plan(manifest_of(kAlternating), {.limits = {400}});
  CHECK(members(plan) == Buckets{{3, 5}, {2, 4}, {1}, {0}});
}

// The next four cases are listed in definition order; the plan launches them in reverse.

TEST_CASE("buckets follow DDP: one limit, one dtype") {
  const Manifest m =
      manifest_of({{Dtype::kF32, 100}, {Dtype::kF32, 200}, {Dtype::kF32, 100}, {Dtype::kF32, 50}});
  const Plan plan = make_plan(m, {.limits = {400}, .ddp = true});
  CHECK(members(plan, true) == Buckets{{0}, {1}, {2}, {3}});
  CHECK(limits(plan) == std::vector<uint64_t>{400, 400, 400, 400});
}

TEST_CASE("buckets follow DDP: one limit, two dtypes") {
  const Plan plan = make_plan(manifest_of(kAlternating), {.limits = {400}, .ddp = true});
  CHECK(members(plan, true) == Buckets{{0, 2}, {1, 3}, {4}, {5}});
}

TEST_CASE("buckets follow DDP: several limits, one dtype") {
  const Manifest m =
      manifest_of({{Dtype::kF32, 10}, {Dtype::kF32, 10}, {Dtype::kF32, 10}, {Dtype::kF32, 10}});
  const Plan plan = make_plan(m, {.limits = {40, 80}, .ddp = true});
  CHECK(members(plan, true) == Buckets{{0}, {1, 2}, {3}});
  CHECK(limits(plan) == std::vector<uint64_t>{40, 80, 80});
}

TEST_CASE("buckets follow DDP: several limits, two dtypes") {
  const Plan plan = make_plan(manifest_of(kAlternating), {.limits = {200, 400}, .ddp = true});
  CHECK(members(plan, true) == Buckets{{0}, {1}, {2, 4}, {3, 5}});
  CHECK(limits(plan) == std::vector<uint64_t>{200, 200, 400, 400});
}

TEST_CASE("by DDP's rule the list of buckets is reversed, their contents are not") {
  const Manifest m = manifest_of({{Dtype::kF32, 3}, {Dtype::kF32, 4}, {Dtype::kF32, 5}});
  const Plan plan = make_plan(m, {.limits = {28}, .ddp = true});
  CHECK(members(plan) == Buckets{{2}, {0, 1}});
  CHECK(plan.buckets[1].offsets == std::vector<uint64_t>{0, 3});
  CHECK(plan.buckets[1].count == 7);
  CHECK(plan.bucket_of == std::vector<uint32_t>{1, 1, 0});
  CHECK(plan.offset_of == std::vector<uint64_t>{0, 3, 0});
}

TEST_CASE("by DDP's rule the small bucket is launched last") {
  std::vector<std::pair<Dtype, uint64_t>> params(60, {Dtype::kF32, (1u << 20) / 4});
  const Plan plan = make_plan(manifest_of(params), {.ddp = true});
  REQUIRE(plan.buckets.size() == 4);
  CHECK(plan.buckets[3].bytes() == 1u << 20);  // launched last
  CHECK(plan.buckets[2].bytes() == 25u << 20);
  CHECK(plan.buckets[0].params.size() == 9);
}

TEST_CASE("limit 0 is one parameter a bucket, also for empty ones") {
  const Plan plan =
      make_plan(manifest_of({{Dtype::kF32, 0}, {Dtype::kF32, 7}, {Dtype::kF64, 1}}), {.limits = {0}});
  CHECK(members(plan) == Buckets{{2}, {1}, {0}});
}

TEST_CASE("by DDP's rule a parameter larger than the limit joins the open bucket") {
  const Plan plan = make_plan(manifest_of({{Dtype::kF32, 1}, {Dtype::kF32, 1000}, {Dtype::kF32, 1}}),
                              {.limits = {100}, .ddp = true});
  CHECK(members(plan, true) == Buckets{{0, 1}, {2}});
}

TEST_CASE("by DDP's rule remaining buckets are ordered by their first member, whatever the dtype") {
  const Plan plan =
      make_plan(manifest_of({{Dtype::kF64, 1}, {Dtype::kF16, 1}, {Dtype::kF32, 1}}), {.ddp = true});
  CHECK(members(plan, true) == Buckets{{0}, {1}, {2}});
}

TEST_CASE("an order that the caller gives is kept and not reversed") {
  const Plan plan = make_plan(manifest_of({{Dtype::kF32, 1}, {Dtype::kF32, 1}, {Dtype::kF32, 1}}),
                              {.limits = {8}, .order = {2, 0, 1}});
  CHECK(members(plan) == Buckets{{2, 0}, {1}});
}

TEST_CASE("by order of readiness buckets are launched as their last members become ready") {
  // The bucket of f64 opens first and is full last.
  const Manifest m =
      manifest_of({{Dtype::kF64, 10}, {Dtype::kF32, 10}, {Dtype::kF32, 10}, {Dtype::kF64, 10}});
  const Plan plan = make_plan(m, {.limits = {80}, .order = {0, 1, 2, 3}});
  CHECK(members(plan) == Buckets{{0}, {1, 2}, {3}});
  CHECK(members(make_plan(m, {.limits = {160}, .order = {0, 2, 1, 3}})) == Buckets{{2, 1}, {0, 3}});
}

TEST_CASE("a sparse parameter is alone in its bucket, and interrupts none") {
  Manifest m = manifest_of({{Dtype::kF32, 100}, {Dtype::kF32, 100}, {Dtype::kF32, 100}, {Dtype::kF32, 50}});
  m.params[1].flags = WEFT_PARAM_SPARSE;
  m.params[1].sparse_ndim = 1;
  Plan plan = make_plan(m, {.limits = {700}});
  CHECK(members(plan) == Buckets{{1}, {0, 2, 3}});
  CHECK(plan.buckets[0].sparse);
  CHECK(plan.buckets[0].bytes() == 0);
  CHECK(make_plan(m, Buckets{{0, 2, 3}, {1}}, &plan).ok());
  CHECK(plan.buckets[1].sparse);
  const Status refused = make_plan(m, Buckets{{0, 1, 2, 3}}, &plan);
  CHECK(refused.text().find("'p1') must be alone in bucket 0") != std::string::npos);
}

TEST_CASE("a plan of the program's own is taken if every parameter is in one bucket of its kind") {
  const Manifest m = manifest_of({{Dtype::kF32, 4}, {Dtype::kF64, 2}, {Dtype::kF32, 1}});
  Plan plan;
  REQUIRE(make_plan(m, Buckets{{2, 0}, {1}}, &plan).ok());
  CHECK(members(plan) == Buckets{{2, 0}, {1}});
  CHECK(plan.bucket_of == std::vector<uint32_t>{0, 1, 0});
  CHECK(plan.offset_of == std::vector<uint64_t>{1, 0, 0});
  const auto refused = [&](const Buckets& buckets, const std::string& why) {
    const Status status = make_plan(m, buckets, &plan);
    INFO(status.text());
    CHECK(status.code() == Code::kArg);
    CHECK(status.text().find(why) != std::string::npos);
  };
  refused({{0, 2}}, "'p1') is in no bucket");
  refused({{0, 2}, {1, 1}}, "'p1') is listed twice");
  refused({{0, 1}, {2}}, "'p1') is f64 in host memory, but 'p0' in the same bucket 0 is f32 in host memory");
  refused({{0, 2}, {1}, {}}, "bucket 2 is empty");
  refused({{0, 2}, {1, 3}}, "bucket 1 has an unknown parameter, 3; the reducer has 3");
}

TEST_CASE("a plan can be encoded and decoded, and invalid encodings are refused") {
  const Manifest m = manifest_of(kAlternating);
  const Plan plan = make_plan(m, {.limits = {400}});
  std::vector<uint32_t> words(Plan::words(m.params.size()));
  plan.pack(&words);
  Plan read;
  REQUIRE(Plan::unpack(m, words, &read).ok());
  CHECK(members(read) == members(plan));
  CHECK(read.bucket_of == plan.bucket_of);
  CHECK(read == plan);
  for (size_t b = 0; b < plan.buckets.size(); b++) {
    CHECK(plan.buckets[b].limit_bytes == 400);
    CHECK(read.buckets[b].limit_bytes == 400);
  }
  Plan large = make_plan(m, {.limits = {uint64_t{5} << 40}});
  large.pack(&words);
  REQUIRE(Plan::unpack(m, words, &read).ok());
  CHECK(read.buckets[0].limit_bytes == uint64_t{5} << 40);
  CHECK(read == make_plan(m, {.limits = {uint64_t{6} << 40}}));  // the same buckets
  CHECK(!(read == plan));
  plan.pack(&words);
  for (size_t i = 0; i < words.size(); i++) {
    for (const uint32_t value : {0u, 1u, 5u, 6u, 7u, 13u, UINT32_MAX}) {
      std::vector<uint32_t> changed = words;
      changed[i] = value;
      const Status status = Plan::unpack(m, changed, &read);
      // A valid plan in spite of the change, or refused.
      if (!status.ok()) CHECK(status.code() == Code::kMismatch);
    }
  }
  words.pop_back();
  CHECK(Plan::unpack(m, words, &read).code() == Code::kMismatch);
}

}  // namespace unit_plan
