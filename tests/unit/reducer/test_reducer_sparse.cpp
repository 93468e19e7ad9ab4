// Sparse gradients: the result is the average of the contributions, whether entries or dense gradients are
// communicated.
#include <set>

#include "hook/hook_table.h"
#include "registry.h"
#include "shm/backend.h"
#include "sparse_rig.h"

namespace unit_reducer_sparse {

using namespace weft;
using namespace weft::test;

namespace {

// Returns the rows that a rank touches in a step: about one in `one_in`, some of them twice, unordered.
std::vector<uint64_t> touched(const TestParam& param, uint64_t seed, int rank, uint64_t one_in) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(rank));
  std::vector<uint64_t> rows;
  for (uint64_t row = 0; row < row_count(param); row++) {
    if (random() % one_in != 0) continue;
    rows.push_back(row);
    if (random() % 3 == 0) rows.push_back(row);
  }
  std::shuffle(rows.begin(), rows.end(), random);
  return rows;
}

Coo entries(const TestParam& param, uint64_t seed, int rank, uint64_t one_in) {
  return make_coo(param, touched(param, seed, rank, one_in),
                  [&](uint64_t e, uint64_t k) { return value(seed, rank, e, k); });
}

// The sum over all entries of ranks and seeds, by row. Whole numbers are exact in every dtype.
using Rows = std::map<uint64_t, std::vector<double>>;

Rows sum_of(const TestParam& param, const std::vector<uint64_t>& seeds, int ranks, uint64_t one_in) {
  Rows sum;
  for (const uint64_t seed : seeds) {
    for (int r = 0; r < ranks; r++) {
      const std::vector<uint64_t> rows = touched(param, seed, r, one_in);
      for (uint64_t e = 0; e < rows.size(); e++) {
        std::vector<double>& row = sum[rows[e]];
        row.resize(row_elements(param));
        for (uint64_t k = 0; k < row.size(); k++) row[k] += value(seed, r, e, k);
      }
    }
  }
  return sum;
}

// Rounds once, as the reducer divides.
Bytes divided(Dtype dtype, double sum, double divisor) {
  Bytes input(8), out(8);
  store_as(dtype, sum, input.data());
  const std::byte* from = input.data();
  std::byte* to = out.data();
  FoldArgs fold;
  fold.dtype = dtype;
  fold.inputs = &from;
  fold.outputs = &to;
  fold.input_count = fold.output_count = 1;
  fold.count = 1;
  fold.postscale = 1.0 / divisor;
  host_ops().fold(fold);
  return out;
}

// Returns the first difference of a result; empty if there is none.
std::string wrong(const TestParam& param, const weft_sparse& result, const Rows& sum, double divisor) {
  const std::vector<uint64_t> rows = rows_of(param, result);
  if (rows.size() != result.count) return "not sorted";
  if (rows.size() != sum.size() && rows.size() != row_count(param)) return cat(rows.size(), " rows");
  const uint64_t elements = row_elements(param);
  const uint32_t size = dtype_size(param.dtype);
  Rows left = sum;
  for (uint64_t e = 0; e < rows.size(); e++) {
    for (uint64_t k = 0; k < elements; k++) {
      const auto found = left.find(rows[e]);
      const double expected = found == left.end() ? 0 : found->second[k];
      const Bytes rounded = divided(param.dtype, expected, divisor);
      const std::byte* got = static_cast<const std::byte*>(result.values) + (e * elements + k) * size;
      if (load(param.dtype, got) != load(param.dtype, rounded.data())) {
        return cat("row ", rows[e], ": ", load(param.dtype, got), ", not ", expected, " / ", divisor);
      }
    }
    left.erase(rows[e]);
  }
  return left.empty() ? "" : cat(left.size(), " rows are missing");
}

// Records what a hook of the program's own sees.
struct Shown {
  std::set<std::string> planned, staged;
  uint32_t last = 0;     // buckets that were the last one
  uint32_t strange = 0;  // buckets that are not among those counted
  uint64_t replanned = 0;

  void look(const weft_bucket& bucket, std::set<std::string>* names) {
    for (uint64_t i = 0; i < bucket.param_count; i++) names->insert(bucket.params[i].name);
    strange += bucket.index >= bucket.bucket_count ? 1 : 0;
  }
};

std::shared_ptr<Hook> hook_that_notes(Shown* shown) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "notes";
  table.plan = [](void* data, const weft_bucket* bucket, weft_hook_plan* plan, char*) -> weft_status {
    static_cast<Shown*>(data)->look(*bucket, &static_cast<Shown*>(data)->planned);
    plan->collective_count = 1;
    plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
    plan->collectives[0].dtype = bucket->dtype;
    plan->collectives[0].op = WEFT_OP_AVG;
    plan->collectives[0].count = bucket->count;
    return WEFT_OK;
  };
  table.stage = [](void* data, const weft_bucket* bucket, weft_stage* stage, char*) -> weft_status {
    Shown& notes = *static_cast<Shown*>(data);
    notes.look(*bucket, &notes.staged);
    notes.last += stage->index == 0 && bucket->is_last != 0 ? 1 : 0;
    return WEFT_OK;
  };
  table.replan = [](void* data, uint64_t buckets, char*) -> weft_status {
    static_cast<Shown*>(data)->replanned = buckets;
    return WEFT_OK;
  };
  std::shared_ptr<Hook> hook;
  if (!make_hook_table(table, shown, &hook).ok()) return nullptr;
  return hook;
}

const std::vector<TestParam>& sparse_params() {
  static const std::vector<TestParam> params = {{"dense", {9, 5}},
                                                {"embedding", {40, 6}, Dtype::kF32, {}, 1},
                                                {"half", {50, 3}, Dtype::kF16, {}, 1},
                                                {"bias", {8}},
                                                {"grid", {6, 7, 2, 3}, Dtype::kF64, {}, 2},
                                                {"points", {5, 5, 4}, Dtype::kBf16, {}, 3}};
  return params;
}

// Runs one step of all parameters with entries of the seed.
Status ready_step(Reducer& reducer, const Model& model, Gradients& gradients, uint64_t seed, int rank,
                  uint64_t one_in) {
  for (size_t i = 0; i < model.size(); i++) {
    if (model[i].sparse_ndim == 0) {
      void* at = gradients[i];
      static_cast<void>(reducer.grad_view(i, &at).ok());
      gradients.fill(i, seed, rank, static_cast<std::byte*>(at != nullptr ? at : gradients[i]));
      WEFT_TRY(reducer.ready(i, at != nullptr ? at : gradients[i], nullptr));
    } else {
      // The entries are only read during the call.
      const Coo coo = entries(model[i], seed + i, rank, one_in);
      WEFT_TRY(reducer.ready_sparse(i, coo.c(), nullptr));
    }
  }
  return {};
}

void expect_results(Rank& self, Reducer& reducer, const Model& model, const std::vector<uint64_t>& seeds,
                    uint64_t one_in, double divisor) {
  for (size_t i = 0; i < model.size(); i++) {
    if (model[i].sparse_ndim == 0) continue;
    std::vector<uint64_t> own;
    for (const uint64_t seed : seeds) own.push_back(seed + i);
    weft_sparse result{};
    self.expect(reducer.sparse_result(i, &result), "sparse_result");
    const std::string what = wrong(model[i], result, sum_of(model[i], own, self.size, one_in), divisor);
    self.expect(what.empty(), cat(model[i].name, ", one row in ", one_in, ": ", what));
  }
}

}  // namespace

TEST_CASE("entries of all ranks are averaged and sorted, and each row occurs once") {
  const Model model(sparse_params());
  for (const Backend* backend : {static_cast<const Backend*>(nullptr), &shm::backend()}) {
    for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
      RanksOptions options;
      options.backend = backend;
      check(run_threads(
          3,
          [&](Rank& self) {
            std::unique_ptr<Reducer> reducer;
            self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.mode = mode}), "create");
            if (!reducer) return;
            Gradients gradients(model);
            uint64_t seed = 0;
            // From hardly any rows, where entries are communicated, to all, where dense gradients are; and
            // none.
            for (const uint64_t one_in : {20, 8, 3, 1, 1000}) {
              self.expect(reducer->begin(nullptr), "begin");
              self.expect(ready_step(*reducer, model, gradients, ++seed * 100, self.rank, one_in), "ready");
              self.expect(reducer->finish({}), "finish");
              expect_results(self, *reducer, model, {seed * 100}, one_in, 3);
            }
          },
          options));
    }
  }
}

TEST_CASE("hooks do not change sparse gradients") {
  const Model model(sparse_params());
  for (const char* const name : {"allreduce", "fp16", "bf16", "int8", "fp8", "quantize", "onebit", "topk",
                                 "powersgd", "batched_powersgd", "post_local_sgd"}) {
    check(run_threads(2, [&](Rank& self) {
      std::shared_ptr<Hook> hook;
      const char* const options = std::string(name) == "post_local_sgd" ? "local=none start=1" : "";
      self.expect(Registry::make_hook(name, {options, nullptr, host_ops()}, &hook), name);
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {0}}), "create");
      if (!reducer) return;
      Gradients gradients(model);
      for (const uint64_t seed : {100, 200}) {
        self.expect(reducer->begin(nullptr), "begin");
        self.expect(ready_step(*reducer, model, gradients, seed, self.rank, 9), "ready");
        self.expect(reducer->finish({}), "finish");
        expect_results(self, *reducer, model, {seed}, 9, 2);
      }
    }));
  }
}

TEST_CASE(
    "a hook that does not ask for them is never shown a sparse bucket, and its last bucket is a dense one") {
  const Model model(sparse_params());
  const std::set<std::string> dense = {"dense", "bias"};
  check(run_threads(2, [&](Rank& self) {
    Shown shown;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook_that_notes(&shown), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (const uint64_t seed : {100, 200, 300}) {
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(ready_step(*reducer, model, gradients, seed, self.rank, 9), "ready");
      self.expect(reducer->finish({}), "finish");
      expect_results(self, *reducer, model, {seed}, 9, 2);
      // Afterwards a sparse bucket is launched last.
      if (seed == 100) self.expect(reducer->replan(WEFT_REPLAN_OPTIONS_INIT), "replan");
    }
    self.expect(shown.planned == dense && shown.staged == dense, "dense parameters alone");
    self.expect(shown.last == 3 && shown.strange == 0, cat(shown.last, " last buckets in three steps"));
    self.expect(shown.replanned == reducer->bucket_count(), "indices and counts are of all buckets");
  }));
}

TEST_CASE("a sparse gradient is communicated as entries or dense, whichever is smaller") {
  const Model model({{"e", {1000, 4}, Dtype::kF32, {}, 1}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    weft_reducer_stats before{}, after{};
    const auto step = [&](uint64_t rows) {
      std::vector<uint64_t> mine(rows);
      std::iota(mine.begin(), mine.end(), static_cast<uint64_t>(self.rank));
      const Coo coo = make_coo(model[0], mine, [](uint64_t, uint64_t) { return 2.0; });
      reducer->query(&before);
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(reducer->ready_sparse(0, coo.c(), nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
      reducer->query(&after);
      weft_sparse result{};
      self.expect(reducer->sparse_result(0, &result), "result");
      self.expect(after.bytes_reduced - before.bytes_reduced == result.count * (8 + 16), "bytes reduced");
      return std::pair(result.count, after.sent_bytes - before.sent_bytes);
    };
    self.expect(step(10) == std::pair(uint64_t{11}, uint64_t{8 + 10 * (8 + 16)}), "entries");
    self.expect(step(600) == std::pair(uint64_t{601}, uint64_t{8 + 600 * (8 + 16)}), "many entries");
    self.expect(step(900) == std::pair(uint64_t{1000}, uint64_t{8 + 1000 * 16}), "whole");
    self.expect(step(0) == std::pair(uint64_t{0}, uint64_t{8}), "nothing");
    // Which of a lane's two executors runs which collective changes from step to step.
    const auto several = [&] {
      for (const uint64_t rows : {900, 600, 900, 600, 0, 900, 600}) step(rows);
    };
    several();
    const uint64_t memory = after.other_bytes;
    several();
    self.expect(after.other_bytes == memory, "memory grows with the counts only");
  }));
}

TEST_CASE("local steps accumulate entries, also over a re-plan") {
  const Model model(sparse_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t window = 0; window < 3; window++) {
      weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT, last = WEFT_BEGIN_OPTIONS_INIT;
      local.flags = WEFT_BEGIN_LOCAL;
      last.micro_batches = 3;
      std::vector<uint64_t> seeds;
      for (uint64_t l = 0; l < 3; l++) {
        seeds.push_back(10'000 * (window + 1) + 100 * l);
        if (l == 2 && window > 0) self.expect(reducer->replan(WEFT_REPLAN_OPTIONS_INIT), "replan");
        self.expect(reducer->begin(l < 2 ? &local : &last), "begin");
        self.expect(ready_step(*reducer, model, gradients, seeds.back(), self.rank, 9), "ready");
        self.expect(reducer->finish({}), "finish");
      }
      expect_results(self, *reducer, model, seeds, 9, 2 * 3);
    }
  }));
}

TEST_CASE("an absent sparse parameter contributes no entries") {
  const Model model({{"e", {40, 2}, Dtype::kF32, {}, 1}, {"d", {3}}, {"f", {30}, Dtype::kF32, {}, 1}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_ABSENT}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    const Coo coo = make_coo(model[0], {3, 39}, [](uint64_t, uint64_t) { return 8.0; });
    for (int step = 0; step < 2; step++) {
      const uint64_t absent[] = {2, 0};
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(reducer->absent(absent, self.rank == step ? 2 : 1), "absent");
      if (self.rank != step) self.expect(reducer->ready_sparse(0, coo.c(), nullptr), "ready");
      self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
      weft_sparse result{};
      self.expect(reducer->sparse_result(0, &result), "result");
      self.expect(
          result.count == 2 && result.indices[1] == 39 && *static_cast<const float*>(result.values) == 4.0f,
          "its entries alone, over the step's divisor");
      const Status none = reducer->sparse_result(2, &result);
      self.expect(none.code() == Code::kState && has(none.text(), "'f'): it was absent on every rank"),
                  none.text());
    }
  }));
}

TEST_CASE("ranks without data take part in the exchange of entries") {
  const Model model(sparse_params());
  check(run_threads(3, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    RigOptions rig;
    rig.flags = WEFT_REDUCER_UNEVEN;
    rig.divide_by = WEFT_DIVIDE_ACTIVE;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
    if (!reducer) return;
    Gradients gradients(model);
    // Rank 2 joins at once, rank 1 after two steps.
    for (uint64_t step = 1; step <= 4; step++) {
      if (self.rank == 2 || (self.rank == 1 && step > 2)) break;
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(ready_step(*reducer, model, gradients, step * 100, self.rank, 6), "ready");
      self.expect(reducer->finish({}), "finish");
      Rank active = {self.rank, step > 2 ? 1 : 2, self.comm, self.group, {}};
      expect_results(active, *reducer, model, {step * 100}, 6, active.size);
      for (const std::string& failure : active.failures) self.expect(false, failure);
    }
    weft_join_result joined{};
    self.expect(reducer->join({}, &joined), "join");
  }));
}

TEST_CASE("norms count sparse results, and scale them") {
  const Model model({{"e", {500, 2}, Dtype::kF32, {}, 1}, {"d", {2}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_NORMS}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    // By entries and by a dense gradient; the sums are 6 and 8.
    for (const uint64_t rows : {2, 450}) {
      std::vector<uint64_t> all(rows);
      std::iota(all.begin(), all.end(), uint64_t{0});
      const Coo coo = make_coo(model[0], all, [](uint64_t e, uint64_t k) {
        return e > 0 ? 0.0 : k == 0 ? 6.0 : 8.0;
      });
      for (const double limit : {0.0, 5.0}) {
        weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
        finish.clip_norm = limit;
        std::fill_n(gradients[1], 8, std::byte{0});
        self.expect(reducer->begin(nullptr), "begin");
        self.expect(reducer->ready_sparse(0, coo.c(), nullptr), "ready");
        self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
        self.expect(reducer->finish(finish), "finish");
        weft_norms norms{};
        double each[2] = {};
        self.expect(reducer->norms(&norms, each), "norms");
        self.expect(norms.total == 10 && each[0] == 10, cat("norm ", norms.total));
        weft_sparse result{};
        self.expect(reducer->sparse_result(0, &result), "result");
        const auto* values = static_cast<const float*>(result.values);
        self.expect(values[0] == (limit > 0 ? 3 : 6) && values[1] == (limit > 0 ? 4 : 8), "scaled");
      }
    }
    weft_finish_options skip = WEFT_FINISH_OPTIONS_INIT;
    skip.flags = WEFT_FINISH_SKIP;
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready_sparse(0, WEFT_SPARSE_INIT, nullptr), "ready");
    self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
    self.expect(reducer->finish(skip), "finish");
    weft_sparse result{};
    const Status none = reducer->sparse_result(0, &result);
    self.expect(has(none.text(), "skipped"), none.text());
  }));
}

}  // namespace unit_reducer_sparse
