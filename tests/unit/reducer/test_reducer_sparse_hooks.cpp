// A program's own hooks that ask for sparse gradients: the buckets that they see, and allowed and forbidden
// changes.
#include <functional>
#include <latch>

#include "hook/hook_table.h"
#include "reducer/feature/sparse/sparse_gradient.h"
#include "registry.h"
#include "sparse_rig.h"

namespace unit_reducer_sparse_hooks {

using namespace weft;
using namespace weft::test;

namespace {

// A hook for every gradient: averages dense ones, and does what the test says with sparse ones.
struct User {
  std::function<void(weft_hook_plan&)> plan;
  std::function<weft_status(const weft_bucket&, weft_stage&)> stage;
  uint64_t flags = WEFT_HOOK_SPARSE;
  int planned = 0, joined = 0, strange = 0;  // counts of sparse buckets

  // Checks properties of every sparse bucket.
  void look(const weft_bucket& bucket, bool planning) {
    const weft_bucket_entries& e = *bucket.entries;
    uint64_t elements = 1;
    for (int32_t d = 0; d < bucket.params[0].ndim; d++) {
      elements *= static_cast<uint64_t>(bucket.params[0].shape[d]);
    }
    const bool right = bucket.count == 0 && bucket.buffer == nullptr && bucket.param_count == 1 &&
                       e.row_count * e.row_elements == elements &&
                       (!planning || (e.count == 0 && e.rows == nullptr && e.values == nullptr));
    strange += right ? 0 : 1;
  }
};

User& user(void* data) {
  return *static_cast<User*>(data);
}

std::shared_ptr<Hook> hook_of(User* u) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "sparse";
  table.flags = u->flags;
  table.plan = [](void* data, const weft_bucket* bucket, weft_hook_plan* plan, char*) -> weft_status {
    plan->collective_count = 1;
    weft_hook_collective& c = plan->collectives[0];
    c.coll = WEFT_COLL_ALL_REDUCE;
    c.dtype = bucket->dtype;
    c.op = WEFT_OP_AVG;
    c.count = bucket->count;
    if (bucket->entries == nullptr) return WEFT_OK;
    plan->scratch_bytes = 8;
    user(data).planned++;
    user(data).look(*bucket, true);
    if (user(data).plan) user(data).plan(*plan);
    return WEFT_OK;
  };
  table.stage = [](void* data, const weft_bucket* bucket, weft_stage* stage, char*) -> weft_status {
    if (bucket->entries == nullptr) return WEFT_OK;
    user(data).look(*bucket, false);
    return user(data).stage ? user(data).stage(*bucket, *stage) : WEFT_OK;
  };
  table.join = [](void* data, const weft_bucket* bucket, char*) -> weft_status {
    if (bucket->entries != nullptr) user(data).joined += bucket->entries->count == 0 ? 1 : 100;
    return WEFT_OK;
  };
  std::shared_ptr<Hook> hook;
  if (!make_hook_table(table, u, &hook).ok()) return nullptr;
  return hook;
}

void scale(const weft_bucket& bucket, double by) {
  CopyArgs args;
  args.src = args.dst = static_cast<std::byte*>(bucket.entries->values);
  args.count = bucket.entries->count * bucket.entries->row_elements;
  args.src_dtype = args.dst_dtype = static_cast<Dtype>(bucket.dtype);
  args.scale = by;
  if (args.count > 0) host_ops().copy(args);
}

// Leaves out the entries of odd rows.
void drop_odd(const weft_bucket& bucket) {
  weft_bucket_entries& e = *bucket.entries;
  const uint64_t bytes = e.row_elements * dtype_size(static_cast<Dtype>(bucket.dtype));
  auto* const values = static_cast<std::byte*>(e.values);
  uint64_t kept = 0;
  for (uint64_t i = 0; i < e.count; i++) {
    if (e.rows[i] % 2 != 0) continue;
    e.rows[kept] = e.rows[i];
    std::memmove(values + kept++ * bytes, values + i * bytes, bytes);
  }
  e.count = kept;
}

const std::vector<TestParam>& params() {
  static const std::vector<TestParam> list = {{"dense", {9, 5}},
                                              {"embedding", {40, 6}, Dtype::kF32, {}, 1},
                                              {"half", {50, 3}, Dtype::kF16, {}, 1},
                                              {"grid", {6, 7, 2}, Dtype::kF64, {}, 2}};
  return list;
}

// Rank r touches the rows r, r + every, ...; a row's value is its number.
std::vector<uint64_t> rows_of_rank(const TestParam& param, int rank, uint64_t every) {
  std::vector<uint64_t> rows;
  for (auto row = static_cast<uint64_t>(rank); row < row_count(param); row += every) rows.push_back(row);
  return rows;
}

double entry(uint64_t row, int rank) {
  return static_cast<double>((row * 7 + static_cast<uint64_t>(rank) * 3) % 13) - 6;
}

Status one_step(Reducer& reducer, const Model& model, Gradients& gradients, int rank, uint64_t every,
                const weft_begin_options* begin = nullptr) {
  WEFT_TRY(reducer.begin(begin));
  for (size_t i = 0; i < model.size(); i++) {
    if (model[i].sparse_ndim == 0) {
      gradients.fill(i, 1, rank);
      WEFT_TRY(reducer.ready(i, gradients[i], nullptr));
      continue;
    }
    const std::vector<uint64_t> rows = rows_of_rank(model[i], rank, every);
    const Coo coo = make_coo(model[i], rows, [&](uint64_t e, uint64_t) { return entry(rows[e], rank); });
    WEFT_TRY(reducer.ready_sparse(i, coo.c(), nullptr));
  }
  return reducer.finish({});
}

// Compares each row with the sum over these ranks, divided; no odd rows if they are dropped. Returns the
// first difference.
std::string wrong(Reducer& reducer, const Model& model, const std::vector<int>& ranks, uint64_t every,
                  bool drops, double divisor) {
  for (size_t i = 0; i < model.size(); i++) {
    if (model[i].sparse_ndim == 0) continue;
    std::map<uint64_t, double> sums;
    for (const int rank : ranks) {
      for (const uint64_t row : rows_of_rank(model[i], rank, every)) {
        if (!drops || row % 2 == 0) sums[row] += entry(row, rank);
      }
    }
    weft_sparse result{};
    if (!reducer.sparse_result(i, &result).ok()) return "no result";
    const std::vector<uint64_t> rows = rows_of(model[i], result);
    const bool whole = rows.size() == row_count(model[i]);
    if (rows.size() != sums.size() && !whole) return cat(model[i].name, ": ", rows.size(), " rows");
    const uint64_t elements = row_elements(model[i]);
    for (uint64_t e = 0; e < rows.size(); e++) {
      for (uint64_t k = 0; k < elements; k++) {
        const std::byte* at =
            static_cast<const std::byte*>(result.values) + (e * elements + k) * dtype_size(model[i].dtype);
        const double expected = sums.count(rows[e]) != 0 ? sums[rows[e]] / divisor : 0;
        const double got = load(model[i].dtype, at);
        if (std::fabs(got - expected) > 2e-3 * std::fabs(expected)) {
          return cat(model[i].name, ", row ", rows[e], ": ", got, ", not ", expected);
        }
      }
    }
  }
  return "";
}

}  // namespace

TEST_CASE("a hook that asks for sparse gradients sees its rank's entries, changes them, and then the sums") {
  const Model model(params());
  for (const Engine::Mode mode : {Engine::Mode::kThread, Engine::Mode::kCaller}) {
    for (const char* const around : {"", "fp16"}) {
      RanksOptions options;
      options.mode = mode;
      const auto body = [&](Rank& self) {
        User u;
        uint64_t every = 0;
        u.stage = [&](const weft_bucket& bucket, weft_stage& stage) {
          auto* const calls = static_cast<uint64_t*>(bucket.scratch);
          if (stage.index == 0) {
            // Entries are as the program passed them, whatever the hook did to them in the step before.
            for (uint64_t e = 0; e < bucket.entries->count; e++) {
              const auto row = static_cast<uint64_t>(bucket.entries->rows[e]);
              const auto* const at =
                  static_cast<const std::byte*>(bucket.entries->values) +
                  e * bucket.entries->row_elements * dtype_size(static_cast<Dtype>(bucket.dtype));
              const bool mine = row == static_cast<uint64_t>(self.rank) + e * every;
              u.strange +=
                  mine && load(static_cast<Dtype>(bucket.dtype), at) == entry(row, self.rank) ? 0 : 1;
            }
            drop_odd(bucket);
            scale(bucket, 2);
          } else {
            scale(bucket, 0.5);
          }
          u.strange += (*calls)++ % 2 == stage.index ? 0 : 1;
          return WEFT_OK;
        };
        std::shared_ptr<Hook> hook = hook_of(&u);
        if (*around != 0) {
          self.expect(Registry::make_hook(around, {{}, hook, host_ops()}, &hook), around);
        }
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {0}}), "create");
        if (!reducer) return;
        self.expect(u.planned == 3, "each is planned");
        Gradients gradients(model);
        // From hardly any rows, where entries are communicated, to all, where dense gradients are.
        for (const uint64_t each : {17, 5, 1}) {
          every = each;
          self.expect(one_step(*reducer, model, gradients, self.rank, every), "step");
          const std::string what = wrong(*reducer, model, {0, 1, 2}, every, true, 3);
          self.expect(what.empty(), cat("one row in ", every, ": ", what));
          if (every == 17) self.expect(reducer->replan(WEFT_REPLAN_OPTIONS_INIT), "replan");
        }
        self.expect(u.strange == 0, cat(u.strange, " strange buckets"));
      };
      check(run_threads(3, body, options));
    }
  }
}

TEST_CASE("a hook decides whether sums of entries are divided, and whether entries are communicated") {
  const Model model(params());
  for (const int what : {0, 1}) {
    check(run_threads(2, [&](Rank& self) {
      User u;
      u.plan = [&](weft_hook_plan& plan) {
        plan.collectives[0].op = WEFT_OP_SUM;
        plan.collective_count = what == 0 ? 1 : 0;
      };
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook_of(&u), &reducer), "create");
      if (!reducer) return;
      Gradients gradients(model);
      for (int step = 0; step < 2; step++) {
        self.expect(one_step(*reducer, model, gradients, self.rank, 7), "step");
        const std::vector<int> ranks = what == 0 ? std::vector<int>{0, 1} : std::vector<int>{self.rank};
        self.expect(wrong(*reducer, model, ranks, 7, false, 1).empty(), cat("result, ", what));
      }
      self.expect(u.strange == 0, "strange");
    }));
  }
}

TEST_CASE("a hook sees sparse gradients of ranks without data") {
  const Model model(params());
  check(run_threads(3, [&](Rank& self) {
    User u;
    u.stage = [](const weft_bucket& bucket, weft_stage& stage) {
      if (stage.index == 0) drop_odd(bucket);
      return WEFT_OK;
    };
    std::unique_ptr<Reducer> reducer;
    const RigOptions rig = {.flags = WEFT_REDUCER_UNEVEN, .divide_by = WEFT_DIVIDE_ACTIVE};
    self.expect(make_reducer(self.comm, model, hook_of(&u), &reducer, rig), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (int step = 0; step < 3; step++) {
      if (step == 1 && self.rank == 2) {
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = WEFT_BEGIN_NO_DATA;
        self.expect(reducer->begin(&begin), "begin");
        self.expect(reducer->finish({}), "finish");
        self.expect(u.joined == 3, cat(u.joined, " told, without entries"));
      } else {
        self.expect(one_step(*reducer, model, gradients, self.rank, 5), "step");
        const std::vector<int> ranks = step == 1 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
        const std::string what = wrong(*reducer, model, ranks, 5, true, static_cast<double>(ranks.size()));
        self.expect(what.empty(), cat("step ", step, ": ", what));
      }
    }
    self.expect(u.strange == 0, "strange");
  }));
}

TEST_CASE("a hook's changes to a sparse gradient affect only copies of the program's entries") {
  const TestParam test{"p", {10, 1}, Dtype::kF32, {}, 1};
  Param param;
  param.shape = {10, 1};
  param.strides = {1, 1};
  param.count = 10;
  param.sparse_ndim = 1;
  std::atomic<uint64_t> bytes{0};
  SparseGradient gradient(param, {}, &bytes);
  const Coo coo = make_coo(test, {2, 5}, [](uint64_t e, uint64_t) { return static_cast<double>(e + 1); });
  REQUIRE(gradient.put(coo.c(), false).ok());
  REQUIRE(gradient.complete(host_ops()).ok());
  for (int attempt = 0; attempt < 2; attempt++) {  // a retry
    weft_bucket_entries* const shown = gradient.hide();
    CHECK((shown->count == 0 && shown->rows == nullptr));
    gradient.begin({.rank = 0, .size = 1, .factor = 0.5});
    REQUIRE(gradient.show_own(host_ops()).ok());
    REQUIRE(shown->count == 2);
    CHECK(shown->rows[1] == 5);
    auto* const values = static_cast<float*>(shown->values);
    CHECK(values[0] == 0.5f);
    CHECK(values[1] == 1.0f);
    values[0] = 77;
    shown->rows[0] = 1;
    shown->count = 1;
    CHECK(gradient.take_shown().ok());
  }
  gradient.begin({.rank = 0, .size = 1});
  for (const auto& [count, first, second] :
       {std::tuple{uint64_t{3}, 2, 5}, {2, 5, 2}, {2, 5, 5}, {2, 2, 10}, {2, -1, 2}}) {
    INFO(count << " " << first << " " << second);
    gradient.begin({.rank = 0, .size = 1});
    REQUIRE(gradient.show_own(host_ops()).ok());
    weft_bucket_entries* const shown = gradient.shown();
    shown->count = count;
    shown->rows[0] = first;
    shown->rows[1] = second;
    CHECK(gradient.take_shown().code() == Code::kHook);
  }
}

TEST_CASE("forbidden changes of a hook to sparse gradients fail by name on every rank") {
  const Model model(params());
  const auto stage_fails = [&](const char* text,
                               const std::function<void(const weft_bucket&, weft_stage&)>& bad) {
    std::latch created(2);  // an earlier failure would fail create
    check(run_threads(2, [&](Rank& self) {
      User u;
      u.stage = [&](const weft_bucket& bucket, weft_stage& stage) {
        if (self.rank == 1) bad(bucket, stage);
        return WEFT_OK;
      };
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook_of(&u), &reducer, {.timeout_ms = 20'000}), "create");
      created.arrive_and_wait();
      if (!reducer) return;
      Gradients gradients(model);
      Status status = one_step(*reducer, model, gradients, self.rank, 7);
      // A rank that has received all it needs may get the error one step later.
      if (status.ok()) status = one_step(*reducer, model, gradients, self.rank, 7);
      self.expect(status.code() == Code::kHook && has(status.text(), text), status.text());
      self.expect(status.info().ranks == std::vector<int>{1}, "rank");
    }));
  };
  stage_fails("stage 0: the hook left 99 entries of ", [](const weft_bucket& bucket, weft_stage& stage) {
    if (stage.index == 0) bucket.entries->count = 99;
  });
  stage_fails("the hook left rows that do not ascend", [](const weft_bucket& bucket, weft_stage& stage) {
    if (stage.index == 0) bucket.entries->rows[0] = bucket.entries->rows[1];
  });
  stage_fails("stage 0: hook 'sparse': a stage of a sparse gradient cannot complete later",
              [](const weft_bucket&, weft_stage& stage) { stage.pending = stage.index == 0; });
  stage_fails("stage 1: hook 'sparse': a stage of a sparse gradient cannot complete later",
              [](const weft_bucket&, weft_stage& stage) { stage.pending = stage.index == 1; });
}

TEST_CASE(
    "forbidden declarations for a sparse gradient are refused by name, and ranks must declare the same") {
  const Model model(params());
  const auto refused = [&](Code code, const char* text, int bad_rank,
                           const std::function<void(weft_hook_plan&)>& bad,
                           uint64_t flags = WEFT_HOOK_SPARSE) {
    check(run_threads(2, [&](Rank& self) {
      User u;
      if (bad_rank < 0 || bad_rank == self.rank) {
        u.plan = bad;
        u.flags = flags;
      }
      std::unique_ptr<Reducer> reducer;
      const Status status = make_reducer(self.comm, model, hook_of(&u), &reducer);
      self.expect(status.code() == code && has(status.text(), text), status.text());
    }));
  };
  const char* const nothing_else =
      "for a sparse gradient it must be an all_reduce with WEFT_OP_SUM or WEFT_OP_AVG";
  refused(Code::kArg, "collective_count is 2; for a sparse gradient at most one", -1,
          [](weft_hook_plan& plan) { plan.collective_count = 2; });
  refused(Code::kArg, nothing_else, -1, [](weft_hook_plan& plan) { plan.collectives[0].count = 3; });
  refused(Code::kArg, nothing_else, -1, [](weft_hook_plan& plan) { plan.collectives[0].op = WEFT_OP_MAX; });
  refused(Code::kArg, nothing_else, -1,
          [](weft_hook_plan& plan) { plan.collectives[0].dtype = WEFT_DTYPE_I8; });
  refused(Code::kArg, nothing_else, -1,
          [](weft_hook_plan& plan) { plan.collectives[0].coll = WEFT_COLL_ALL_GATHER; });
  refused(Code::kArg, "stays where its entries are", -1,
          [](weft_hook_plan& plan) { plan.result_space = WEFT_SPACE_SCRATCH; });
  refused(Code::kMismatch, "the hook's collectives differ at ", 1,
          [](weft_hook_plan& plan) { plan.collectives[0].op = WEFT_OP_SUM; });
  refused(Code::kMismatch, "the hook's collectives differ at ", 1,
          [](weft_hook_plan& plan) { plan.collective_count = 0; });
  refused(Code::kMismatch, "the hook's collectives differ at ", 1, nullptr, 0);
  User u;
  u.flags = 4;
  CHECK(hook_of(&u) == nullptr);
}

}  // namespace unit_reducer_sparse_hooks
