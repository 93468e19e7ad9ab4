// Replicas stay bitwise equal in every mode, on data whose sums depend on their order, over shared memory and
// over messages, by every algorithm of all_reduce. Other tests check the values of the results.
#include <cmath>

#include "coll/select.h"
#include "shm/backend.h"
#include "sparse_rig.h"

namespace unit_reducer_replicas {

using namespace weft;
using namespace weft::test;

namespace {

constexpr int kRanks = 3;

// A way to make steps.
struct Way {
  const char* name;
  int32_t mode = WEFT_GRADIENT_COPY;
  uint64_t flags = 0;
  int32_t divide_by = WEFT_DIVIDE_WORLD;
  int32_t reduce_dtype = 0;
  int locals = 0;        // local steps before each synchronised one
  bool absent = false;   // some parameters are absent, other ones on each rank
  bool no_data = false;  // one rank has no data, another one in each step
  bool joins = false;    // rank r has data for r + 1 steps
  uint32_t uses = 1;     // of each dense parameter
  double clip = 0;       // the norm
  weft_planner replan = WEFT_PLANNER_DEFAULT;
  weft_accumulation accumulation = WEFT_ACCUMULATION_REDUCER;  // copy mode
};

constexpr int32_t kView = WEFT_GRADIENT_VIEW;
constexpr Way kWays[] = {
    {.name = "copy"},
    {.name = "view", .mode = kView},
    {.name = "accumulated", .locals = 2},
    {.name = "accumulated by the program", .locals = 2, .accumulation = WEFT_ACCUMULATION_PROGRAM},
    {.name = "accumulated in views", .mode = kView, .locals = 2},
    {.name = "accumulated in f32", .flags = WEFT_REDUCER_ACCUMULATE_F32, .locals = 2},
    {.name = "absent", .flags = WEFT_REDUCER_ABSENT, .absent = true},
    {.name = "absent, in views", .mode = kView, .flags = WEFT_REDUCER_ABSENT, .absent = true},
    {.name = "absent and accumulated", .flags = WEFT_REDUCER_ABSENT, .locals = 1, .absent = true},
    {.name = "join", .flags = WEFT_REDUCER_UNEVEN, .joins = true},
    {.name = "join, in views, by active ranks",
     .mode = kView,
     .flags = WEFT_REDUCER_UNEVEN,
     .divide_by = WEFT_DIVIDE_ACTIVE,
     .joins = true},
    {.name = "join, absent, accumulated",
     .flags = WEFT_REDUCER_UNEVEN | WEFT_REDUCER_ABSENT,
     .locals = 1,
     .absent = true,
     .joins = true},
    {.name = "join, absent, accumulated by the program",
     .flags = WEFT_REDUCER_UNEVEN | WEFT_REDUCER_ABSENT,
     .locals = 1,
     .absent = true,
     .joins = true,
     .accumulation = WEFT_ACCUMULATION_PROGRAM},
    {.name = "without data", .flags = WEFT_REDUCER_UNEVEN, .no_data = true},
    {.name = "weights, in views",
     .mode = kView,
     .flags = WEFT_REDUCER_UNEVEN,
     .divide_by = WEFT_DIVIDE_WEIGHTS,
     .no_data = true},
    {.name = "re-plan", .replan = WEFT_PLANNER_LIMITS},
    {.name = "re-plan, in views, join",
     .mode = kView,
     .flags = WEFT_REDUCER_UNEVEN,
     .joins = true,
     .replan = WEFT_PLANNER_LIMITS},
    {.name = "static, used twice", .flags = WEFT_REDUCER_STATIC, .uses = 2},
    {.name = "in bf16", .reduce_dtype = WEFT_DTYPE_BF16},
    {.name = "in f32, in views", .mode = kView, .reduce_dtype = WEFT_DTYPE_F32},
    {.name = "clipped", .flags = WEFT_REDUCER_NORMS, .clip = 1},
    {.name = "retained", .flags = WEFT_REDUCER_RETAIN},
};

std::vector<TestParam> params() {
  return {{"long", {2'003}},
          {"half", {701}, Dtype::kF16},
          {"brain", {13, 29}, Dtype::kBf16},
          {"table", {40, 5}, Dtype::kF32, {}, 1},
          {"double", {307}, Dtype::kF64},
          {"few", {3}},
          {"middle", {31, 17}}};
}

// Values of very different sizes, so that the order of addition changes the sum.
double rough(uint64_t seed, int rank, size_t param, uint64_t element) {
  const auto at = static_cast<double>(element + param * 7 + seed * 13 + 1);
  const auto size =
      static_cast<int>((element * 7 + static_cast<uint64_t>(rank) * 5 + seed * 3 + param) % 13) - 6;
  return std::ldexp(std::sin(at * (rank + 1.3)), size);
}

// A rank's results after a step: its gradients' bytes, then the indices and values of sparse ones. Empty if
// the rank does not see the step.
using Outcome = std::vector<Bytes>;

class Replica {
 public:
  Replica(Rank& self, const Model& model, const Way& way)
      : self_(self), model_(model), way_(way), home_(model), list_(model.c()) {
    for (size_t i = 0; i < model_.size(); i++) {
      if (sparse(i)) continue;
      if (!view()) list_[i].gradient = home_[i];  // receives results of locally absent parameters too
      if ((way.flags & WEFT_REDUCER_STATIC) == 0) list_[i].uses = way.uses;
    }
    constexpr uint64_t kLimits[] = {600, 3000};
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = list_.data();
    options.param_count = list_.size();
    options.mode = way.mode;
    options.bucket_limits = kLimits;
    options.bucket_limit_count = 2;
    options.flags = way.flags;
    options.replan = way.replan;
    options.accumulation = view() ? WEFT_ACCUMULATION_PROGRAM : way.accumulation;
    options.divide_by = way.divide_by;
    options.reduce_dtype = way.reduce_dtype;
    self_.expect(Reducer::create(self.comm, options, allreduce_hook(), &reducer_), "create");
  }

  // Returns the outcome of each step.
  std::vector<Outcome> run() {
    std::vector<Outcome> outcomes(kRanks);
    for (uint64_t step = 0; reducer_ && step < kRanks && self_.failures.empty(); step++) {
      if (way_.joins && step > static_cast<uint64_t>(self_.rank)) break;
      make(step);
      outcomes[step] = look(true);
    }
    if (!way_.joins || !self_.failures.empty()) return outcomes;
    weft_join_result joined{};
    self_.expect(reducer_->join({}, &joined), "join");
    self_.expect(joined.last_active == kRanks - 1, "the last rank has had data to the end");
    // The outcome of the last step; sparse results are not kept.
    outcomes.back() = look(false);
    return outcomes;
  }

 private:
  bool view() const { return way_.mode == kView; }
  bool program_adds() const { return view() || way_.accumulation == WEFT_ACCUMULATION_PROGRAM; }
  bool sparse(size_t i) const { return model_[i].sparse_ndim > 0; }
  std::byte* place(size_t i) {
    void* at = home_[i];
    if (view()) self_.expect(reducer_->grad_view(i, &at), "grad_view");
    return static_cast<std::byte*>(at);
  }
  // At least two of three ranks have each gradient, so that no parameter is absent everywhere.
  bool has_gradient(uint64_t step, size_t i) const {
    if (sparse(i) && way_.locals > 0 && program_adds()) return true;  // else its sum would be lost
    return !way_.absent || (i + static_cast<size_t>(self_.rank) + step) % 4 != 0 ||
           (way_.joins && self_.rank == kRanks - 1);
  }

  // Computes a gradient of the parameter and calls ready. `add`: adds it to those of earlier local steps.
  void contribute(size_t i, uint64_t seed, bool add) {
    if (sparse(i)) {
      if (!add) seeds_.clear();
      seeds_.push_back(seed);
      std::vector<uint64_t> rows;
      for (const uint64_t each : seeds_) {
        // Row 9 comes from all ranks, and twice.
        const auto own = static_cast<uint64_t>(self_.rank) * 2 + each % 5;
        for (const uint64_t row : {uint64_t{9}, own, 30 + each % 3, uint64_t{9}}) rows.push_back(row);
      }
      const Coo coo = make_coo(model_[i], rows, [&](uint64_t e, uint64_t k) {
        return rough(seeds_[e / 4], self_.rank, i, e % 4 * 11 + k);
      });
      const weft_sparse entries = coo.c();
      return self_.expect(reducer_->ready_sparse(i, entries, nullptr), "ready_sparse");
    }
    std::byte* const to = place(i);
    const Dtype dtype = model_[i].dtype;
    for (uint64_t k = 0; k < model_.count(i); k++) {
      std::byte* const at = to + k * dtype_size(dtype);
      store_as(dtype, rough(seed, self_.rank, i, k) + (add ? load(dtype, at) : 0), at);
    }
    for (uint32_t use = 0; use < way_.uses; use++) self_.expect(reducer_->ready(i, to, nullptr), "ready");
  }

  void make(uint64_t step) {
    bool added = false;
    for (int local = 0; local < way_.locals; local++) {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      begin.flags = WEFT_BEGIN_LOCAL;
      self_.expect(reducer_->begin(&begin), "begin, local");
      for (size_t i = 0; i < model_.size(); i++)
        contribute(i, step * 10 + 1 + static_cast<uint64_t>(local), added);
      self_.expect(reducer_->finish({}), "finish, local");
      added = program_adds();
    }
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    const bool none = way_.no_data && static_cast<uint64_t>(self_.rank) == step % kRanks;
    if (none) begin.flags = WEFT_BEGIN_NO_DATA;
    if (way_.divide_by == WEFT_DIVIDE_WEIGHTS) begin.weight = 1 + self_.rank * 0.7;
    self_.expect(reducer_->begin(&begin), "begin");
    for (size_t n = 0; !none && n < model_.size(); n++) {
      const size_t i = (n * 3 + static_cast<size_t>(self_.rank)) % model_.size();
      const uint64_t param = i;
      if (has_gradient(step, i)) {
        contribute(i, step * 10, added);
      } else {
        self_.expect(reducer_->absent(&param, 1), "absent");
      }
    }
    weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
    finish.clip_norm = way_.clip;
    self_.expect(reducer_->finish(finish), "finish");
  }

  Outcome look(bool with_sparse) {
    Outcome out;
    for (size_t i = 0; i < model_.size(); i++) {
      if (!sparse(i)) {
        const std::byte* const at = place(i);
        out.emplace_back(at, at + model_.span(i));
        continue;
      }
      weft_sparse result{};
      if (!with_sparse) continue;
      self_.expect(reducer_->sparse_result(i, &result), "sparse_result");
      const auto* const rows = reinterpret_cast<const std::byte*>(result.indices);
      const auto* const values = static_cast<const std::byte*>(result.values);
      out.emplace_back(rows, rows + result.count * sizeof(int64_t));
      out.emplace_back(values, values + result.count * row_elements(model_[i]) * dtype_size(model_[i].dtype));
    }
    return out;
  }

  Rank& self_;
  const Model& model_;
  const Way& way_;
  Gradients home_;
  std::vector<weft_param> list_;
  std::vector<uint64_t> seeds_;  // of the sparse gradient's sum
  std::unique_ptr<Reducer> reducer_;
};

// A backend, and the algorithm that is forced on it.
struct Over {
  std::string name;
  RanksOptions options;
};

std::vector<Over> backends() {
  std::vector<Over> all(2);
  all[0].name = "loopback";
  all[1].name = "shm";
  all[1].options.backend = &shm::backend();
  for (const coll::AlgorithmRow row : coll::algorithms()) {
    if (row().coll != Coll::kAllReduce) continue;
    Over& forced = all.emplace_back();
    forced.name = forced.options.comm.algorithms = cat("all_reduce:", row().name);
  }
  return all;
}

}  // namespace

TEST_CASE("the sums of this file depend on their order") {
  const Model model(params());
  for (size_t i = 0; i < model.size(); i++) {
    if (model[i].sparse_ndim > 0 || model.count(i) < 10) continue;
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < kRanks; rank++) {
      Bytes& input = inputs.emplace_back(model.span(i));
      for (uint64_t k = 0; k < model.count(i); k++)
        store_as(model[i].dtype, rough(0, rank, i, k), input.data() + k * dtype_size(model[i].dtype));
    }
    uint64_t differ = 0;
    for (uint64_t k = 0; k < model.count(i); k++) {
      const auto at = [&](size_t rank) {
        return load(model[i].dtype, inputs[rank].data() + k * dtype_size(model[i].dtype));
      };
      const double up = (at(0) + at(1)) + at(2), down = at(0) + (at(1) + at(2));
      const bool f64 = model[i].dtype == Dtype::kF64;
      const auto a = static_cast<float>(at(0)), b = static_cast<float>(at(1)), c = static_cast<float>(at(2));
      differ += f64 ? up != down : (a + b) + c != a + (b + c);
    }
    INFO(model[i].name << ": " << differ);
    // For 16-bit gradients f32 holds most sums exactly.
    CHECK((differ > 0 || dtype_size(model[i].dtype) == 2));
  }
}

TEST_CASE("replicas are bitwise equal in every mode, over shared memory and by every algorithm") {
  const Model model(params());
  for (const Over& over : backends()) {
    for (const Way& way : kWays) {
      INFO(over.name << ", " << way.name);
      std::vector<std::vector<Outcome>> outcomes(kRanks);
      check(run_threads(
          kRanks,
          [&](Rank& self) {
            Replica replica(self, model, way);
            outcomes[static_cast<size_t>(self.rank)] = replica.run();
          },
          over.options));
      for (size_t step = 0; step < kRanks; step++) {
        const Outcome& first = outcomes[kRanks - 1][step];  // it sees every step
        for (size_t rank = 0; rank < kRanks; rank++) {
          const Outcome& other = outcomes[rank][step];
          INFO("step " << step << ", rank " << rank);
          const bool last = way.joins && step + 1 == kRanks;
          CHECK((!other.empty() || (way.joins && rank < step && !last)));
          for (size_t part = 0; part < std::min(other.size(), first.size()); part++) {
            INFO("part " << part);
            CHECK(other[part] == first[part]);
          }
        }
      }
    }
  }
}

}  // namespace unit_reducer_replicas
