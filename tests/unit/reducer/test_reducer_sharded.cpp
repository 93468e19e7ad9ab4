// Sharded reducers: ownership, and results in the owned ranges alone, compared with the serial reference.
#include <cmath>
#include <map>

#include "reducer/bucket/layout.h"
#include "reducer/feature/sharded/ownership.h"
#include "reducer/manifest/manifest.h"
#include "sharded_rig.h"
#include "shm/backend.h"

namespace unit_reducer_sharded {

using namespace weft;
using namespace weft::test;

namespace {

// A rank's reducer with a test's flags, and gradients in either mode.
class Trainer {
 public:
  Trainer(Rank& self, const Model& model, const RigOptions& rig,
          std::shared_ptr<Hook> hook = allreduce_hook())
      : gradients(model), self_(self), model_(model), view_(rig.mode == WEFT_GRADIENT_VIEW) {
    self.expect(make_reducer(self.comm, model, std::move(hook), &reducer, rig), "create");
    if (!reducer) return;
    Manifest manifest;
    self.expect(make_manifest(model.c().data(), model.size(), sizeof(weft_param), &manifest), "manifest");
    for (const Param& p : manifest.params) layouts_.emplace_back(p);
  }

  std::byte* place(size_t i) {
    if (!view_) return gradients[i];
    void* at = nullptr;
    self_.expect(reducer->grad_view(i, &at), "view");
    return static_cast<std::byte*>(at);
  }
  // Returns the offset of a place's element in the program's memory.
  uint64_t at(size_t i, uint64_t element) {
    uint64_t offset = element;
    const auto look = [&](uint64_t to, uint64_t, uint64_t) { offset = to; };
    if (!view_) layouts_[i].for_each_run(element, 1, look);
    return offset * dtype_size(model_[i].dtype);
  }
  void compute(uint64_t seed) {
    gradients.fill(seed, self_.rank);
    for (size_t i = 0; view_ && i < model_.size(); i++) pack(i, gradients[i], place(i));
  }
  void pack(size_t i, const std::byte* from, std::byte* to) {
    layouts_[i].pack(from, to, 0, layouts_[i].count());
  }
  Status ready() {
    for (size_t i = 0; i < model_.size(); i++) {
      WEFT_TRY(reducer->ready(model_.size() - 1 - i, place(model_.size() - 1 - i), nullptr));
    }
    return {};
  }
  Status step(const weft_finish_options& finish = WEFT_FINISH_OPTIONS_INIT) {
    WEFT_TRY(reducer->begin(nullptr));
    WEFT_TRY(ready());
    return reducer->finish(finish);
  }
  // Checks that this rank's owned ranges have the expected values (in the gradients' layout). In copy mode
  // all other bytes must be unchanged.
  void check_results(Gradients& expected, const std::vector<Bytes>& before, const std::string& what) {
    std::map<uint64_t, std::vector<bool>> mine;
    for (const weft_slice& slice : slices_of(self_, *reducer, self_.rank)) {
      std::vector<bool>& owned = mine[slice.param];
      owned.resize(model_.count(slice.param));
      for (uint64_t k = 0; k < slice.count; k++) owned[slice.offset + k] = true;
    }
    for (size_t i = 0; i < model_.size(); i++) {
      const uint32_t size = dtype_size(model_[i].dtype);
      Bytes packed(model_.count(i) * size + 1), old(packed.size());
      pack(i, expected[i], packed.data());
      pack(i, before[i].data(), old.data());
      bool right = true;
      for (uint64_t k = 0; k < model_.count(i); k++) {
        const bool owned = !mine[i].empty() && mine[i][k];
        if (view_ && !owned) continue;
        const Bytes& wanted = owned ? packed : old;
        right &= std::equal(wanted.data() + k * size, wanted.data() + (k + 1) * size, place(i) + at(i, k));
      }
      self_.expect(right, cat(what, ": ", model_[i].name));
    }
  }

  std::unique_ptr<Reducer> reducer;
  Gradients gradients;

 private:
  Rank& self_;
  const Model& model_;
  const bool view_;
  std::vector<Layout> layouts_;
};

// Averages a bucket, and then spoils what this rank does not own.
class SharesHook final : public Hook {
 public:
  explicit SharesHook(bool shares) : shares_(shares) {}
  std::string name() const override { return "own shares"; }
  bool takes_shares() const override { return shares_; }
  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    const auto size = static_cast<size_t>(bucket.size);
    if (bucket.shares == nullptr || bucket.shares[0] != 0 || bucket.shares[size] != bucket.count ||
        !std::is_sorted(bucket.shares, bucket.shares + size + 1))
      return Status::error(Code::kHook, "these are no shares");
    plan->collective_count = 1;
    weft_hook_collective& c = plan->collectives[0];
    c.coll = WEFT_COLL_ALL_REDUCE;
    c.op = WEFT_OP_AVG;
    c.dtype = bucket.dtype;
    c.count = bucket.count;
    return {};
  }
  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    if (stage->index == 0) return {};
    const uint64_t element = dtype_size(static_cast<Dtype>(bucket.dtype));
    auto* const bytes = static_cast<std::byte*>(bucket.buffer);
    std::fill(bytes, bytes + bucket.shares[bucket.rank] * element, std::byte{0x33});
    std::fill(bytes + bucket.shares[bucket.rank + 1] * element, bytes + bucket.count * element,
              std::byte{0x33});
    return {};
  }

 private:
  const bool shares_;
};

Manifest manifest_of(const Model& model) {
  Manifest manifest;
  REQUIRE(make_manifest(model.c().data(), model.size(), sizeof(weft_param), &manifest).ok());
  return manifest;
}

}  // namespace

TEST_CASE("every element has one owner, whatever the buckets and the number of ranks") {
  const Model model(params());
  const Manifest manifest = manifest_of(model);
  for (const uint64_t limit : {uint64_t{0}, uint64_t{300}, uint64_t{1} << 30}) {
    for (const bool whole : {false, true}) {
      for (const int size : {1, 2, 3, 5}) {
        INFO("limit " << limit << ", whole " << whole << ", " << size << " ranks");
        Plan plan = make_plan(manifest, {.limits = {limit}, .order = {}});
        if (whole) plan = grouped_by_owner(manifest, plan, size);
        const Ownership ownership(manifest, plan, size, whole);
        std::vector<std::vector<int>> owners(model.size());
        for (size_t i = 0; i < model.size(); i++) owners[i].resize(model.count(i));
        for (int r = 0; r < size; r++) {
          for (const weft_slice& slice : ownership.slices(r)) {
            CHECK(slice.count > 0);
            if (whole) CHECK(slice.count == model.count(slice.param));
            for (uint64_t k = 0; k < slice.count; k++) owners[slice.param][slice.offset + k]++;
          }
        }
        for (const auto& each : owners) {
          CHECK(std::all_of(each.begin(), each.end(), [](int count) { return count == 1; }));
        }
        for (uint32_t b = 0; b < plan.buckets.size(); b++) {
          uint64_t covered = 0;
          for (const Share& share : ownership.shares(b)) {
            CHECK(share.offset == covered);
            covered += share.count * (share.owner == Share::kEach ? static_cast<uint64_t>(size) : 1);
          }
          CHECK(covered == plan.buckets[b].count);
        }
      }
    }
  }
}

TEST_CASE("owners of whole parameters are balanced, do not depend on the plan, and lie together in buckets") {
  std::vector<TestParam> list;
  for (int i = 0; i < 60; i++) list.push_back({cat("p", i), {10 + i * 37 % 100}});
  const Model model(std::move(list));
  const Manifest manifest = manifest_of(model);
  const std::vector<int> owners = whole_owners(manifest, 4);
  std::vector<uint64_t> loads(4);
  for (size_t i = 0; i < owners.size(); i++) loads[static_cast<size_t>(owners[i])] += model.count(i);
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  CHECK(*most - *least <= 110);
  for (const uint64_t limit : {uint64_t{500}, uint64_t{4000}}) {
    const Plan plan = grouped_by_owner(manifest, make_plan(manifest, {.limits = {limit}, .order = {}}), 4);
    const Ownership ownership(manifest, plan, 4, true);
    for (uint32_t b = 0; b < plan.buckets.size(); b++) CHECK(ownership.shares(b).size() <= 4);
    for (size_t i = 0; i < owners.size(); i++) CHECK(ownership.of(owners[i], i).count == model.count(i));
  }
}

TEST_CASE("each rank receives the results that it owns, in either mode, over loopback and shm") {
  const Model model(params());
  for (const bool over_shm : {false, true}) {
    for (const uint64_t flags : {WEFT_REDUCER_SHARDED, kWhole}) {
      for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
        for (const uint64_t limit : {uint64_t{0}, uint64_t{1000}}) {
          RanksOptions options;
          if (over_shm) options.backend = &shm::backend();
          check(run_threads(
              3,
              [&](Rank& self) {
                Trainer trainer(self, model, {.mode = mode, .limits = {limit}, .flags = flags});
                if (!trainer.reducer) return;
                for (uint64_t seed = 1; seed < 4; seed++) {
                  trainer.compute(seed);
                  const std::vector<Bytes> before = trainer.gradients.memory();
                  Gradients expected = reference(model, {seed}, 3, 3);
                  self.expect(trainer.step(), "step");
                  trainer.check_results(expected, before, "result");
                }
              },
              options));
        }
      }
    }
  }
}

TEST_CASE(
    "norms of sharded gradients cover the whole gradients, are equal on all ranks, and clip owned ranges") {
  const Model model(params());
  for (const uint64_t flags : {WEFT_REDUCER_SHARDED, kWhole}) {
    std::vector<std::vector<double>> all(3);
    check(run_threads(3, [&](Rank& self) {
      Trainer trainer(self, model, {.flags = flags | WEFT_REDUCER_NORMS});
      RigOptions plain{.flags = WEFT_REDUCER_NORMS};
      Trainer other(self, model, plain);
      if (!trainer.reducer || !other.reducer) return;
      weft_norms norms{}, wanted{};
      std::vector<double> each(model.size()), each_wanted(model.size());
      trainer.compute(9);
      other.compute(9);
      self.expect(trainer.step(), "step");
      self.expect(other.step(), "step of the other");
      self.expect(trainer.reducer->norms(&norms, each.data()), "norms");
      self.expect(other.reducer->norms(&wanted, each_wanted.data()), "norms of the other");
      for (size_t i = 0; i < model.size(); i++) {
        self.expect(std::abs(each[i] - each_wanted[i]) <= 1e-12 * each_wanted[i],
                    cat("norm of ", model[i].name));
      }
      self.expect(std::abs(norms.total - wanted.total) <= 1e-12 * wanted.total, "total");
      each.push_back(norms.total);
      all[static_cast<size_t>(self.rank)] = each;

      weft_finish_options clip = WEFT_FINISH_OPTIONS_INIT;
      clip.clip_norm = norms.total / 4;
      trainer.compute(9);
      other.compute(9);
      const std::vector<Bytes> before = trainer.gradients.memory();
      self.expect(trainer.step(clip), "clipped step");
      self.expect(other.step(clip), "clipped step of the other");
      trainer.reducer->norms(&norms, nullptr).ok();
      self.expect(std::abs(norms.clip_factor - 0.25) < 1e-12, "factor");
      trainer.compute(9);
      if (self.rank == 1) store_as(model[0].dtype, HUGE_VAL, trainer.gradients[0]);
      clip.flags = WEFT_FINISH_SKIP_NONFINITE;
      const std::vector<Bytes> kept = trainer.gradients.memory();
      self.expect(trainer.step(clip), "skipped step");
      self.expect(trainer.reducer->norms(&norms, nullptr), "norms");
      self.expect(norms.skipped == 1 && norms.nonfinite_params == 1, "skipped");
      self.expect(trainer.gradients.memory() == kept, "gradients as they were");
    }));
    CHECK(all[0] == all[1]);
    CHECK(all[0] == all[2]);
  }
}

TEST_CASE("sharding works with accumulation, absent parameters, and ranks without data or that have joined") {
  const Model model(params());
  for (const uint64_t flags : {WEFT_REDUCER_SHARDED, kWhole}) {
    check(run_threads(3, [&](Rank& self) {
      Trainer trainer(self, model,
                      {.flags = flags | WEFT_REDUCER_ABSENT | WEFT_REDUCER_UNEVEN | WEFT_REDUCER_NORMS});
      if (!trainer.reducer) return;
      Reducer& reducer = *trainer.reducer;
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      begin.flags = WEFT_BEGIN_LOCAL;
      trainer.gradients.fill(1, self.rank);
      self.expect(reducer.begin(&begin), "begin local");
      self.expect(trainer.ready(), "ready");
      self.expect(reducer.finish({}), "finish local");
      trainer.gradients.fill(2, self.rank);
      const std::vector<Bytes> before = trainer.gradients.memory();
      self.expect(trainer.step(), "step");
      Gradients expected = reference(model, {1, 2}, 3, 3);
      trainer.check_results(expected, before, "accumulated");

      // Rank 2 has no data; parameter 0 is absent on rank 0, 1 everywhere.
      trainer.compute(5);
      const std::vector<Bytes> kept = trainer.gradients.memory();
      std::vector<void*> places;
      for (size_t i = 0; i < model.size(); i++) places.push_back(trainer.gradients[i]);
      begin.flags = self.rank == 2 ? WEFT_BEGIN_NO_DATA : 0;
      begin.gradients = places.data();
      self.expect(reducer.begin(&begin), "begin");
      if (self.rank < 2) {
        const std::vector<uint64_t> absent =
            self.rank == 0 ? std::vector<uint64_t>{0, 1} : std::vector<uint64_t>{1};
        self.expect(reducer.absent(absent.data(), absent.size()), "absent");
        for (size_t i = self.rank == 0 ? 2 : 0; i < model.size(); i++) {
          if (i != 1) self.expect(reducer.ready(i, trainer.gradients[i], nullptr), "ready");
        }
      }
      self.expect(reducer.finish({}), "finish");
      Gradients sums = reference(model, {5}, 2, 3);
      Gradients only_one(model);  // rank 1's gradient alone, over the step's divisor
      for (uint64_t k = 0; k < model.count(0); k++) {
        // Added to zero and divided as the others are.
        store_as(model[0].dtype, value(5, 1, 0, k), only_one[0] + only_one.at(0, k));
        const std::byte* const input = only_one[0] + only_one.at(0, k);
        std::byte* const output = sums[0] + sums.at(0, k);
        host_ops().fold({.dtype = model[0].dtype,
                         .inputs = &input,
                         .input_count = 1,
                         .outputs = &output,
                         .output_count = 1,
                         .count = 1,
                         .postscale = 1.0 / 3});
      }
      sums.memory()[1] = kept[1];
      trainer.check_results(sums, kept, "absent");

      weft_join_result joined{};
      if (self.rank == 0) {
        trainer.compute(6);
        const std::vector<Bytes> old = trainer.gradients.memory();
        self.expect(trainer.step(), "step beside those that have joined");
        Gradients alone = reference(model, {6}, 1, 3);
        trainer.check_results(alone, old, "others have joined");
      }
      self.expect(reducer.join({}, &joined), "join");
      self.expect(joined.steps == (self.rank == 0 ? 0 : 1), "joined steps");
    }));
  }
}

TEST_CASE("a re-plan changes the owners of slices, and not the owners of whole parameters") {
  const Model model(params());
  for (const uint64_t flags : {WEFT_REDUCER_SHARDED, kWhole}) {
    check(run_threads(2, [&](Rank& self) {
      Trainer trainer(self, model, {.flags = flags});
      if (!trainer.reducer) return;
      trainer.compute(1);
      self.expect(trainer.step(), "step");
      auto key = [&] {
        std::vector<std::array<uint64_t, 3>> out;
        for (const weft_slice& s : slices_of(self, *trainer.reducer, self.rank))
          out.push_back({s.param, s.offset, s.count});
        std::sort(out.begin(), out.end());
        return out;
      };
      const auto before = key();
      const uint64_t limit = 3000;
      weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
      options.bucket_limits = &limit;
      options.bucket_limit_count = 1;
      self.expect(trainer.reducer->replan(options), "replan");
      self.expect((key() == before) == (flags == kWhole), "ownership");
      trainer.compute(2);
      const std::vector<Bytes> old = trainer.gradients.memory();
      Gradients expected = reference(model, {2}, 2, 2);
      self.expect(trainer.step(), "step");
      trainer.check_results(expected, old, "after the re-plan");
    }));
  }
}

TEST_CASE("a hook that knows its shares leaves each rank the results that it owns, also after a re-plan") {
  const Model model(params());
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const uint64_t limit : {uint64_t{0}, uint64_t{1000}}) {
      check(run_threads(3, [&](Rank& self) {
        Trainer trainer(self, model, {.mode = mode, .limits = {limit}, .flags = WEFT_REDUCER_SHARDED},
                        std::make_shared<SharesHook>(true));
        if (!trainer.reducer) return;
        for (uint64_t seed = 1; seed < 4; seed++) {
          const uint64_t other = 3000;
          weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
          options.bucket_limits = &other;
          options.bucket_limit_count = 1;
          if (seed == 3) self.expect(trainer.reducer->replan(options), "re-plan");
          trainer.compute(seed);
          const std::vector<Bytes> before = trainer.gradients.memory();
          Gradients expected = reference(model, {seed}, 3, 3);
          self.expect(trainer.step(), "step");
          trainer.check_results(expected, before, cat("step ", seed));
        }
      }));
    }
  }
}

TEST_CASE("options that cannot be combined with sharding are refused by name") {
  const Model model({{"a", {4}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    for (const bool shares : {false, true}) {  // a hook that divides ranges cannot divide whole parameters
      const Status refused = make_reducer(self.comm, model, std::make_shared<SharesHook>(shares), &reducer,
                                          {.flags = shares ? kWhole : uint64_t{WEFT_REDUCER_SHARDED}});
      const char* const flag = shares ? "'own shares' cannot be used with WEFT_REDUCER_OWN_WHOLE"
                                      : "'own shares' cannot be used with WEFT_REDUCER_SHARDED";
      self.expect(refused.code() == Code::kUnsupported && has(refused.text(), flag), refused.text());
    }
    Status made =
        make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_OWN_WHOLE});
    self.expect(made.code() == Code::kArg && has(made.text(), "WEFT_REDUCER_SHARDED"), made.text());
    made = make_reducer(self.comm, model, allreduce_hook(), &reducer,
                        {.flags = WEFT_REDUCER_SHARDED, .replan = WEFT_PLANNER_LIMITS});
    self.expect(made.code() == Code::kArg && has(made.text(), "WEFT_REDUCER_OWN_WHOLE"), made.text());
    weft_slice slice{};
    uint64_t count = 1;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "plain");
    made = reducer->owned(0, &slice, &count);
    self.expect(made.code() == Code::kState && has(made.text(), "WEFT_REDUCER_SHARDED"), made.text());
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_SHARDED}),
                "sharded");
    for (const int rank : {-1, 2})
      self.expect(reducer->owned(rank, &slice, &count).code() == Code::kArg, "rank");
    count = 0;
    const int owner = slices_of(self, *reducer, 0).empty() ? 1 : 0;
    self.expect(reducer->owned(owner, &slice, &count).code() == Code::kArg && count == 1, "no room");
  }));
}

}  // namespace unit_reducer_sharded
