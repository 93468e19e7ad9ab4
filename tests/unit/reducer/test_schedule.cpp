// lib/reducer/step/schedule and layout: the order of a plan's collectives, what a hook may declare, strided
// copies.
#include <utility>
#include <vector>

#include "reducer/bucket/layout.h"
#include "reducer/step/schedule.h"
#include "reducer_rig.h"

namespace unit_schedule {

using namespace weft;
using namespace weft::test;

namespace {

// A hook that declares what the test says.
class Declares final : public Hook {
 public:
  std::function<void(const weft_bucket&, weft_hook_plan*)> declare;

  std::string name() const override { return "declares"; }
  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    declare(bucket, plan);
    return {};
  }
  Status stage(const weft_bucket&, weft_stage*) override { return {}; }
};

Manifest manifest_of(const Model& model) {
  Manifest manifest;
  REQUIRE(make_manifest(model.c().data(), model.size(), sizeof(weft_param), &manifest).ok());
  return manifest;
}

struct Made {
  Manifest manifest;
  Plan plan;
  Schedule schedule;
  Status status;

  Made(std::vector<TestParam> params, std::function<void(const weft_bucket&, weft_hook_plan*)> declare,
       int rank = 1, int size = 4) {
    const Model model(std::move(params));
    manifest = manifest_of(model);
    plan = make_plan(manifest, {.limits = {0}, .order = {}});
    HookViews views(manifest, plan, rank, size);
    Declares hook;
    hook.declare = std::move(declare);
    status = make_schedule(hook, manifest, plan, &views, &schedule);
  }
  std::vector<std::pair<uint32_t, uint32_t>> order() const {
    std::vector<std::pair<uint32_t, uint32_t>> out;
    for (const Slot& slot : schedule.slots) out.emplace_back(slot.bucket, slot.index);
    return out;
  }
};

using Order = std::vector<std::pair<uint32_t, uint32_t>>;

void all_reduces(const weft_bucket& bucket, weft_hook_plan* plan, uint32_t count) {
  plan->collective_count = count;
  for (uint32_t k = 0; k < count; k++) {
    plan->collectives[k].coll = WEFT_COLL_ALL_REDUCE;
    plan->collectives[k].dtype = bucket.dtype;
    plan->collectives[k].op = WEFT_OP_SUM;
    plan->collectives[k].count = bucket.count;
  }
}

std::string refused(std::function<void(weft_hook_plan*)> change, Code code = Code::kArg) {
  const Made made({{"p", {8}}}, [&](const weft_bucket& bucket, weft_hook_plan* plan) {
    all_reduces(bucket, plan, 1);
    plan->scratch_bytes = 256;
    change(plan);
  });
  CHECK(made.status.code() == code);
  CHECK(has(made.status.text(), "bucket 0 ['p']"));
  CHECK(has(made.status.text(), "'declares'"));
  return made.status.text();
}

}  // namespace

TEST_CASE("collectives run in one wavefront, whatever number each bucket has") {
  const std::vector<TestParam> three = {{"a", {1}}, {"b", {1}}, {"c", {1}}};
  CHECK(Made(three, [](const auto& b, auto* p) { all_reduces(b, p, 1); }).order() ==
        Order{{0, 0}, {1, 0}, {2, 0}});
  CHECK(Made(three, [](const auto& b, auto* p) { all_reduces(b, p, 2); }).order() ==
        Order{{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}, {2, 1}});
  CHECK(Made(three, [](const auto& b, auto* p) { all_reduces(b, p, b.index); }).order() ==
        Order{{1, 0}, {2, 0}, {2, 1}});
  CHECK(Made(three, [](const auto& b, auto* p) { all_reduces(b, p, 0); }).order().empty());
}

TEST_CASE("an ordered schedule adds in rank order, only in its reductions") {
  Made made({{"a", {8}}, {"b", {8}}}, [](const weft_bucket& bucket, weft_hook_plan* plan) {
    all_reduces(bucket, plan, 2);
    plan->collectives[1].coll = WEFT_COLL_BROADCAST;
    plan->collectives[1].op = 0;
  });
  REQUIRE(made.status.ok());
  const auto ordered = [&] {
    return std::count_if(made.schedule.slots.begin(), made.schedule.slots.end(),
                         [](const Slot& slot) { return slot.args.ordered; });
  };
  CHECK(ordered() == 0);
  made.schedule.order();
  CHECK(ordered() == 2);
  for (const Slot& slot : made.schedule.slots) {
    CHECK(slot.args.ordered == (slot.args.coll == Coll::kAllReduce));
  }
}

TEST_CASE("the ranks' counts are exchanged just before a dynamic collective") {
  const Made made({{"a", {1}}, {"b", {1}}}, [](const auto& b, auto* p) {
    all_reduces(b, p, 2);
    p->collectives[1].flags = WEFT_HOOK_COLLECTIVE_DYNAMIC;
  });
  CHECK(made.order() == Order{{0, 0}, {1, 0}, {0, 1}, {0, 1}, {1, 1}, {1, 1}});
  CHECK(made.schedule.slots[2].kind == Slot::Kind::kCounts);
  CHECK(made.schedule.slots[3].dynamic);
}

TEST_CASE("an invalid declaration of a hook is refused, naming hook, bucket and collective") {
  const auto set = [](auto member, auto value) {
    return [=](weft_hook_plan* p) { p->collectives[0].*member = value; };
  };
  using C = weft_hook_collective;
  CHECK(has(refused(set(&C::coll, WEFT_COLL_SEND)), "collective 0"));
  refused(set(&C::dtype, 77));
  refused(set(&C::op, 0));
  refused(set(&C::op, WEFT_OP_BXOR), Code::kUnsupported);
  refused(set(&C::op, WEFT_OP_PREMUL_SUM), Code::kUnsupported);
  CHECK(has(refused(set(&C::count, uint64_t{9})), "beyond the bucket's 32 bytes"));
  refused(set(&C::count, UINT64_MAX));
  refused(set(&C::src_offset_bytes, uint64_t{2}));
  refused(set(&C::src_offset_bytes, UINT64_MAX - 3));
  refused(set(&C::src_space, 5));
  CHECK(has(refused(set(&C::flags, WEFT_HOOK_COLLECTIVE_DYNAMIC | WEFT_HOOK_COLLECTIVE_OPTIONAL)),
            "set only one"));
  CHECK(has(refused([](weft_hook_plan* p) {  // in place, but blocks move with the counts
              p->collectives[0].coll = WEFT_COLL_ALL_GATHER;
              p->collectives[0].count = 2;
              p->collectives[0].flags = WEFT_HOOK_COLLECTIVE_DYNAMIC;
            }),
            "in place"));
  refused(set(&C::flags, uint64_t{1} << 40));
  refused([](weft_hook_plan* p) { p->collective_count = WEFT_HOOK_COLLECTIVES + 1; });
  refused([](weft_hook_plan* p) { p->scratch_bytes = UINT64_MAX; });
  refused([](weft_hook_plan* p) { p->result_offset_bytes = 4; });
  refused([](weft_hook_plan* p) { p->result_space = WEFT_SPACE_SCRATCH, p->result_offset_bytes = 256; });
  refused([](weft_hook_plan* p) {  // buffers overlap without being in place
    p->collectives[0].count = 4;
    p->collectives[0].dst_offset_bytes = 4;
  });
  refused(
      [](weft_hook_plan* p) { p->collectives[0].coll = WEFT_COLL_ALL_TO_ALL, p->collectives[0].count = 2; });
  refused(
      [](weft_hook_plan* p) { p->collectives[0].coll = WEFT_COLL_BROADCAST, p->collectives[0].root = 4; });
  refused([](weft_hook_plan* p) {
    p->collectives[0].coll = WEFT_COLL_BROADCAST;
    p->collectives[0].dst_space = WEFT_SPACE_SCRATCH;
  });
}

TEST_CASE("gathering and scattering in place is allowed as in the calls of weft.h") {
  const auto in_place = [](int32_t coll, uint64_t src, uint64_t dst) {
    return Made({{"p", {8}}},
                [=](const weft_bucket& bucket, weft_hook_plan* plan) {
                  all_reduces(bucket, plan, 1);
                  plan->collectives[0].coll = coll;
                  plan->collectives[0].count = 2;  // 4 ranks, this is rank 1
                  plan->collectives[0].src_offset_bytes = src;
                  plan->collectives[0].dst_offset_bytes = dst;
                })
        .status.ok();
  };
  CHECK(in_place(WEFT_COLL_ALL_GATHER, 8, 0));
  CHECK(!in_place(WEFT_COLL_ALL_GATHER, 0, 0));
  CHECK(in_place(WEFT_COLL_REDUCE_SCATTER, 0, 8));
  CHECK(!in_place(WEFT_COLL_REDUCE_SCATTER, 0, 16));
}

TEST_CASE("different declarations of two ranks' hooks are named with both sides") {
  const std::vector<TestParam> two = {{"a", {4}}, {"b", {4}}};
  const auto bytes = [](const Made& made) {
    ByteWriter writer;
    made.schedule.write(&writer);
    return writer.take();
  };
  const Made one(two, [](const auto& b, auto* p) { all_reduces(b, p, 1); });
  const Made half(two, [](const auto& b, auto* p) {
    all_reduces(b, p, 1);
    if (b.index == 1) p->collectives[0].count = 2;
  });
  const Made more(two, [](const auto& b, auto* p) { all_reduces(b, p, b.index + 1); });
  const auto text = [&](const Made& a, const Made& b) {
    return schedule_difference(one.manifest, one.plan, 3, bytes(a), 0, bytes(b));
  };
  CHECK(text(one, one).empty());
  CHECK(
      text(one, half) ==
      "the hook's collectives differ at bucket 1 ['a']: rank 3 declares all_reduce sum f32 x 4 as collective "
      "0 of bucket 1, rank 0 declares all_reduce sum f32 x 2 as collective 0 of bucket 1");
  CHECK(has(text(one, more), "rank 3 declares no more"));
  const Bytes whole = bytes(one);
  CHECK(!schedule_difference(one.manifest, one.plan, 3, whole, 0, ByteView(whole).first(7)).empty());
}

TEST_CASE("any layout is copied into the bucket and back, in pieces of any size") {
  const std::vector<TestParam> layouts = {
      {"scalar", {}},
      {"dense", {3, 4}},
      {"transposed", {3, 4}, Dtype::kF32, {1, 3}},
      {"rows", {3, 4}, Dtype::kF64, {10, 1}},
      {"every_third", {7}, Dtype::kF16, {3}},
      {"block", {2, 3, 4}, Dtype::kF32, {100, 4, 1}},  // the inner two dimensions are contiguous
      {"mixed", {2, 1, 3, 2}, Dtype::kBf16, {1, 9, 20, 7}},
      {"empty", {3, 0, 2}}};
  const Model model(layouts);
  const Manifest manifest = manifest_of(model);
  for (size_t i = 0; i < model.size(); i++) {
    INFO(model[i].name);
    const Param& param = manifest.params[i];
    const Layout layout(param);
    Gradients from(model), back(model);
    from.fill(1, 0);
    Bytes place(param.bytes() + 1, std::byte{0x77});
    layout.flatten(host_ops(), from[i], place.data(), param.dtype, false, 1, false);
    CHECK(place.back() == std::byte{0x77});
    for (uint64_t k = 0; k < param.count && !param.dense; k++) {  // row-major
      CHECK(std::memcmp(place.data() + k * layout.element_bytes(), from[i] + from.at(i, k),
                        layout.element_bytes()) == 0);
    }
    for (const uint64_t most : {uint64_t{1}, uint64_t{5}, uint64_t{1000}}) {
      std::fill(back.memory()[i].begin(), back.memory()[i].end(), Gradients::kGap);
      for (uint64_t first = 0; first < param.count;) {
        const uint64_t count = layout.piece(first, most);
        REQUIRE(count > 0);
        layout.unflatten(host_ops(), place.data(), param.dtype, back[i], first, count, 1.0, true);
        first += count;
      }
      CHECK(back.memory()[i] == from.memory()[i]);
    }
    layout.flatten(host_ops(), from[i], place.data(), param.dtype, true, 1, true);
    layout.unflatten(host_ops(), place.data(), param.dtype, back[i], 0, param.count, 1.0, false);
    for (uint64_t k = 0; k < param.count; k++) {
      Bytes twice(layout.element_bytes());
      store_as(param.dtype, 2 * value(1, 0, i, k), twice.data());
      CHECK(std::memcmp(twice.data(), back[i] + back.at(i, k), twice.size()) == 0);
    }
  }
}

}  // namespace unit_schedule
