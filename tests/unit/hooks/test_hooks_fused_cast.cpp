// fp16 and bf16 in copy mode, where copies divide and round (fused cast). Results have the bits of view mode,
// where the hook's stages do this, in every kind of step, and so have those of sharded reducers in either
// mode. Also tests the memory that this takes.
#include <algorithm>
#include <functional>

#include "hooks_rig.h"
#include "sharded_rig.h"

namespace unit_hooks_fused_cast {

using namespace weft;
using namespace weft::test;

namespace {

constexpr int kRanks = 3;
constexpr uint64_t kSteps = 7;

struct Way {
  std::string hook = "bf16";
  std::vector<TestParam> params = layers();
  RigOptions rig = {.limits = {3000}};
  uint32_t micro_batches = 1;
  bool local = false;     // local steps before some steps, of some parameters
  bool absent = false;    // parameters are absent on one rank, on another, or on both
  bool no_data = false;   // one rank has no data in some steps
  bool weighted = false;  // rank r has the weight r + 1
  bool replans = false;   // re-plans by the first step's order of readiness
  double clip_norm = 0;
  double size = 1;  // of the gradients
};

// A rank's gradients, in its own memory or in views.
class Home {
 public:
  Home(const Model& model, Reducer& reducer, bool views)
      : model_(model), reducer_(reducer), views_(views), own_(model) {}

  void* at(size_t i) {
    if (!views_) return own_[i];
    void* view = nullptr;
    return reducer_.grad_view(i, &view).ok() ? view : nullptr;
  }
  // Views are packed.
  uint64_t offset(size_t i, uint64_t k) const {
    return views_ ? k * dtype_size(model_[i].dtype) : own_.at(i, k);
  }
  // add: adds to the existing value, as a program does in its views.
  void fill(const Way& way, size_t i, uint64_t seed, int rank, bool add) {
    for (uint64_t k = 0; k < model_.count(i); k++) {
      std::byte element[8];
      store_as(model_[i].dtype, way.size * noise(seed, rank, i, k), element);
      std::byte* const to = static_cast<std::byte*>(at(i)) + offset(i, k);
      const CopyArgs args{element, to, 1, model_[i].dtype, model_[i].dtype, 1.0};
      (add ? host_ops().accumulate : host_ops().copy)(args);
    }
  }
  // Packed like views; what this rank does not own is zero.
  Bytes owned(size_t i, const std::vector<weft_slice>& slices) {
    const Bytes whole = packed(i);
    Bytes out(whole.size());
    const uint64_t bytes = dtype_size(model_[i].dtype);
    for (const weft_slice& slice : slices) {
      if (slice.param != i) continue;
      std::copy_n(whole.data() + slice.offset * bytes, slice.count * bytes,
                  out.data() + slice.offset * bytes);
    }
    return out;
  }
  Bytes packed(size_t i) {
    Bytes out;
    for (uint64_t k = 0; k < model_.count(i); k++) {
      const auto* const from = static_cast<const std::byte*>(at(i)) + offset(i, k);
      out.insert(out.end(), from, from + dtype_size(model_[i].dtype));
    }
    return out;
  }
  bool views() const { return views_; }

 private:
  const Model& model_;
  Reducer& reducer_;
  const bool views_;
  Gradients own_;
};

bool is_absent(const Way& way, uint64_t s, int rank, size_t param) {
  return way.absent && rank < 2 && ((s + param) >> rank & 1) != 0;
}

// Runs one synchronised step with the local steps before it.
Status step(const Way& way, const Model& model, Reducer& reducer, Home& home, uint64_t s, int rank) {
  std::vector<void*> pointers;
  for (size_t i = 0; i < model.size(); i++) pointers.push_back(home.at(i));
  weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
  std::vector<bool> added(model.size());
  if (way.local && s % 3 != 0) {
    begin.flags = WEFT_BEGIN_LOCAL;
    WEFT_TRY(reducer.begin(&begin));
    for (size_t i = s % 2; i < model.size(); i += 2) {
      home.fill(way, i, 100 + s, rank, false);
      added[i] = true;
      WEFT_TRY(reducer.ready(i, home.at(i), nullptr));
    }
    WEFT_TRY(reducer.finish({}));
  }
  const bool empty = way.no_data && s % 3 == 1 && rank == 1;
  begin.flags = empty ? WEFT_BEGIN_NO_DATA : 0;
  begin.micro_batches = way.micro_batches;
  begin.weight = way.weighted ? rank + 1 : 0;
  begin.gradients = home.views() ? nullptr : pointers.data();
  WEFT_TRY(reducer.begin(&begin));
  for (uint64_t i = 0; i < model.size() && !empty; i++) {
    if (is_absent(way, s, rank, i)) {
      WEFT_TRY(reducer.absent(&i, 1));
      continue;
    }
    home.fill(way, i, s, rank, home.views() && added[i]);
    WEFT_TRY(reducer.ready(i, home.at(i), nullptr));
  }
  weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
  finish.clip_norm = way.clip_norm;
  return reducer.finish(finish);
}

// Returns every rank's results after every step: [step][rank][param].
std::vector<std::vector<std::vector<Bytes>>> run(const Way& way, int32_t mode) {
  const Model model(way.params);
  std::vector<std::vector<std::vector<Bytes>>> results(kSteps, std::vector<std::vector<Bytes>>(kRanks));
  check(run_threads(kRanks, [&](Rank& self) {
    std::shared_ptr<Hook> hook;
    self.expect(built_in(way.hook, "", &hook), "hook");
    RigOptions rig = way.rig;
    rig.mode = mode;
    if (way.absent) rig.flags |= WEFT_REDUCER_ABSENT;
    if (way.no_data || way.weighted) rig.flags |= WEFT_REDUCER_UNEVEN;
    if (way.weighted) rig.divide_by = WEFT_DIVIDE_WEIGHTS;
    if (way.clip_norm != 0) rig.flags |= WEFT_REDUCER_NORMS;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook, &reducer, rig), "create");
    if (!reducer) return;
    Home home(model, *reducer, mode == WEFT_GRADIENT_VIEW);
    const bool sharded = (rig.flags & WEFT_REDUCER_SHARDED) != 0;
    for (uint64_t s = 0; s < kSteps; s++) {
      if (way.replans && s == 2) self.expect(reducer->replan({}), "re-plan");
      self.expect(step(way, model, *reducer, home, s, self.rank), cat("step ", s));
      auto& mine = results[s][static_cast<size_t>(self.rank)];
      std::vector<weft_slice> slices;
      if (sharded) slices = slices_of(self, *reducer, self.rank);
      for (size_t i = 0; i < model.size(); i++) {
        const bool nowhere = is_absent(way, s, 0, i) && is_absent(way, s, 1, i) && is_absent(way, s, 2, i);
        mine.push_back(nowhere ? Bytes() : sharded ? home.owned(i, slices) : home.packed(i));
        if (mode != WEFT_GRADIENT_COPY || nowhere || way.rig.flags != 0) continue;
        Bytes again(model.span(i));
        self.expect(reducer->result(i, again.data()), "result");
        for (uint64_t k = 0; k < model.count(i); k++) {
          const uint64_t bytes = dtype_size(model[i].dtype);
          self.expect(std::memcmp(again.data() + model.offset(i, k) * bytes, mine.back().data() + k * bytes,
                                  bytes) == 0,
                      "the result is that of finish");
        }
      }
    }
  }));
  return results;
}

void same_both_ways(const Way& way) {
  for (const char* const hook : {"bf16", "fp16"}) {
    INFO(hook);
    Way with = way;
    with.hook = hook;
    const auto copied = run(with, WEFT_GRADIENT_COPY), viewed = run(with, WEFT_GRADIENT_VIEW);
    for (uint64_t s = 0; s < kSteps; s++) {
      for (size_t r = 0; r < kRanks; r++) {
        INFO("step " << s << ", rank " << r);
        REQUIRE(copied[s][r].size() == way.params.size());
        CHECK((copied[s][r] == viewed[s][r]));
        CHECK((copied[s][r] == copied[s][0]));
      }
    }
  }
}

// Returns a parameter's result from what the ranks own of it, which is zero elsewhere.
Bytes put_together(const std::vector<std::vector<Bytes>>& by_rank, size_t param) {
  Bytes whole = by_rank[0].at(param);
  for (size_t r = 1; r < by_rank.size(); r++) {
    const Bytes& more = by_rank[r].at(param);
    std::transform(whole.begin(), whole.end(), more.begin(), whole.begin(), std::bit_or<>());
  }
  return whole;
}

// The owners' slices of sharded reducers make up the results of a reducer that is not sharded.
void same_sharded(const Way& way) {
  for (const char* const hook : {"allreduce", "bf16", "fp16"}) {
    Way with = way;
    with.hook = hook;
    for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
      with.rig.flags = way.rig.flags;
      const auto whole = run(with, mode);
      for (const uint64_t flags : {uint64_t{WEFT_REDUCER_SHARDED}, kWhole}) {
        if (way.replans && flags != kWhole) continue;  // a re-plan moves slices
        with.rig.flags = way.rig.flags | flags;
        INFO(hook << ", mode " << mode << ", flags " << flags);
        const auto parts = run(with, mode);
        for (uint64_t s = 0; s < kSteps; s++) {
          for (size_t i = 0; i < way.params.size(); i++) {
            INFO("step " << s << ", " << way.params[i].name);
            CHECK((put_together(parts[s], i) == whole[s][0].at(i)));
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("sharded reducers with casts have the bits of those that are not sharded") {
  same_sharded({});
  same_sharded({.micro_batches = 3, .replans = true});
  same_sharded({.rig = {.limits = {0}, .flags = WEFT_REDUCER_DETERMINISTIC}});
  same_sharded({.micro_batches = 2, .local = true, .absent = true});
  same_sharded({.rig = {.limits = {3000}, .flags = WEFT_REDUCER_RETAIN}, .local = true, .weighted = true});
}

TEST_CASE("sharded reducers may communicate gradients in a type of another size") {
  for (const int32_t dtype : {WEFT_DTYPE_F32, WEFT_DTYPE_F16, WEFT_DTYPE_BF16}) {
    INFO("reduce_dtype " << dtype);
    same_sharded({.params = mixed_params(), .rig = {.limits = {3000}, .reduce_dtype = dtype}});
    same_sharded({.params = mixed_params(), .rig = {.limits = {3000}, .reduce_dtype = dtype}, .local = true});
  }
}

TEST_CASE("fused casts have the bits of the hook's stages") {
  same_both_ways({});
  same_both_ways({.micro_batches = 3});
  same_both_ways({.rig = {.limits = {3000}, .flags = WEFT_REDUCER_DETERMINISTIC}});
  same_both_ways({.replans = true});
}

TEST_CASE("gradients that local steps accumulate in f32 are rounded once") {
  same_both_ways({.local = true});
  same_both_ways({.local = true, .replans = true});
  same_both_ways({.micro_batches = 2, .local = true, .absent = true});
}

TEST_CASE("absent parameters contribute zeros to fused casts") {
  same_both_ways({.absent = true});
  same_both_ways({.absent = true, .no_data = true});
}

TEST_CASE("uneven steps are divided, and weighted, before they are rounded") {
  same_both_ways({.no_data = true});
  same_both_ways({.weighted = true});
  same_both_ways({.micro_batches = 3, .local = true, .no_data = true, .weighted = true});
  same_both_ways({.rig = {.limits = {3000}, .flags = WEFT_REDUCER_RETAIN}, .local = true, .weighted = true});
}

TEST_CASE("results of fused casts are measured, and clipped") {
  same_both_ways({.clip_norm = 0.5});
  same_both_ways({.absent = true, .clip_norm = 0.5});
  same_both_ways({.clip_norm = 0.5, .size = 1e30});  // bf16 represents all of them, fp16 none
}

TEST_CASE("gradients of other types, and with another reduce dtype, keep the hook's bits") {
  same_both_ways({.params = mixed_params(), .local = true});
  for (const int32_t dtype : {WEFT_DTYPE_F32, WEFT_DTYPE_F16, WEFT_DTYPE_BF16}) {
    INFO("reduce_dtype " << dtype);
    same_both_ways({.params = mixed_params(), .rig = {.limits = {3000}, .reduce_dtype = dtype}});
  }
}

TEST_CASE("a fused cast takes no memory beside the buckets", "[of_fused_cast]") {
  const Model model(layers());
  for (const bool copy : {true, false}) {
    Training training;
    training.rig.mode = copy ? WEFT_GRADIENT_COPY : WEFT_GRADIENT_VIEW;
    check(run_threads(2, [&](Rank& self) {
      std::shared_ptr<Hook> hook;
      self.expect(built_in("bf16", "", &hook), "hook");
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook, &reducer, training.rig), "create");
      if (!reducer) return;
      weft_reducer_stats stats{};
      stats.struct_size = sizeof stats;
      reducer->query(&stats);
      self.expect((stats.scratch_bytes == 0) == copy, cat("scratch of ", stats.scratch_bytes, " bytes"));
    }));
  }
}

}  // namespace unit_hooks_fused_cast
