// A step in steady state allocates nothing, and a reducer holds as much memory as it reports. This is a
// separate program because it replaces operator new.
#include "counting_new.h"
#include "shm/backend.h"
#include "sparse_rig.h"

using namespace weft;
using namespace weft::test;

namespace {

// A kind of step.
struct Kind {
  const char* name;
  uint64_t flags = 0;       // of the reducer
  uint64_t begin = 0;       // flags
  bool leaves_out = false;  // the last parameter
  uint64_t finish = 0;      // flags
  uint32_t uses = 1;        // of the first parameter
  int32_t divide_by = WEFT_DIVIDE_WORLD;
  int32_t reduce_dtype = 0;
  int32_t mode = 0;    // the only mode that this kind allows; 0: both
  bool tells = false;  // on_bucket
};
constexpr Kind kKinds[] = {
    {.name = "plain"},
    {.name = "absent", .flags = WEFT_REDUCER_ABSENT, .leaves_out = true},
    {.name = "the rest absent",
     .flags = WEFT_REDUCER_ABSENT,
     .leaves_out = true,
     .finish = WEFT_FINISH_REST_ABSENT},
    {.name = "fixed", .begin = WEFT_BEGIN_FIXED, .leaves_out = true},
    {.name = "uneven", .flags = WEFT_REDUCER_UNEVEN, .divide_by = WEFT_DIVIDE_WEIGHTS},
    {.name = "uneven, absent", .flags = WEFT_REDUCER_UNEVEN | WEFT_REDUCER_ABSENT, .leaves_out = true},
    {.name = "static", .flags = WEFT_REDUCER_STATIC | WEFT_REDUCER_ABSENT, .leaves_out = true, .uses = 3},
    {.name = "retained", .flags = WEFT_REDUCER_RETAIN},
    {.name = "norms", .flags = WEFT_REDUCER_NORMS},
    {.name = "sharded", .flags = WEFT_REDUCER_SHARDED | WEFT_REDUCER_NORMS},
    {.name = "recorded", .begin = WEFT_BEGIN_RECORD},
    {.name = "travelling in 16 bits", .reduce_dtype = WEFT_DTYPE_BF16},
    {.name = "travelling in f32", .flags = WEFT_REDUCER_NORMS, .reduce_dtype = WEFT_DTYPE_F32},
    {.name = "accumulated in f32",
     .flags = WEFT_REDUCER_ACCUMULATE_F32,
     .reduce_dtype = WEFT_DTYPE_F16,
     .mode = WEFT_GRADIENT_COPY},
    {.name = "deterministic", .flags = WEFT_REDUCER_DETERMINISTIC},
    {.name = "strays", .flags = WEFT_REDUCER_COPY_STRAYS, .mode = WEFT_GRADIENT_VIEW},
    {.name = "told of buckets", .tells = true},
};

Status step(Reducer& reducer, const Kind& kind, Gradients& gradients, bool copy, bool local) {
  copy |= (kind.flags & WEFT_REDUCER_COPY_STRAYS) != 0;
  const uint64_t last = gradients.memory().size() - 1;
  weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
  begin.flags = local ? WEFT_BEGIN_LOCAL : kind.begin;
  weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
  finish.flags = local ? 0 : kind.finish;
  WEFT_TRY(reducer.begin(&begin));
  for (uint64_t i = 0; i < last + (kind.leaves_out ? 0 : 1); i++) {
    for (uint32_t use = 0; use < (i == 0 ? kind.uses : 1); use++) {
      WEFT_TRY(reducer.ready(i, copy ? gradients[i] : nullptr, nullptr));
    }
  }
  const bool says_so = kind.leaves_out && kind.finish == 0 && (kind.flags & WEFT_REDUCER_STATIC) == 0;
  if (says_so && !local) WEFT_TRY(reducer.absent(&last, 1));
  return reducer.finish(finish);
}

}  // namespace

TEST_CASE("a steady-state step allocates nothing, whatever is absent, uneven, static or accumulated") {
  const Model model(mixed_params());
  for (const Kind& kind : kKinds) {
    for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
      if (kind.mode != 0 && kind.mode != mode) continue;
      INFO(kind.name << ", mode " << mode);
      RanksOptions options;
      options.mode = Engine::Mode::kCaller;  // everything happens on this thread
      options.backend = &shm::backend();
      const auto failures = run_threads(
          2,
          [&](Rank& self) {
            std::unique_ptr<Reducer> reducer;
            uint64_t told = 0;
            RigOptions rig{.mode = mode,
                           .flags = kind.flags,
                           .divide_by = kind.divide_by,
                           .reduce_dtype = kind.reduce_dtype};
            if (kind.tells) {
              rig.on_bucket = [](void* data, uint64_t, uint32_t, weft_status) {
                ++*static_cast<uint64_t*>(data);
              };
              rig.on_bucket_user_data = &told;
            }
            self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
            if (!reducer) return;
            Gradients gradients(model);
            for (int i = 0; i < 20; i++) {
              // By then the queues have grown to their final size.
              counting = i >= 10 && self.rank == 0;
              const Status status = step(*reducer, kind, gradients, mode == WEFT_GRADIENT_COPY, i % 4 == 3);
              self.comm->context().callbacks().run_posted();
              counting = false;
              self.expect(status, "step");
            }
            self.expect(told == (kind.tells ? 15 * reducer->bucket_count() : 0), "told of every bucket");
          },
          options);
      check(failures);
      CHECK(allocations.exchange(0) == 0);
    }
  }
}

TEST_CASE("a steady-state step with buffers and a comparison of values allocates nothing") {
  RanksOptions options;
  options.mode = Engine::Mode::kCaller;
  options.backend = &shm::backend();
  const auto failures = run_threads(
      2,
      [](Rank& self) {
        const int64_t nine = 9;
        float weight[9] = {}, gradient[9] = {}, mean[9] = {}, count = 0;
        weft_param params[3] = {WEFT_PARAM_INIT, WEFT_PARAM_INIT, WEFT_PARAM_INIT};
        float* const values[] = {weight, mean, &count};
        const char* const names[] = {"weight", "mean", "count"};
        for (int i = 0; i < 3; i++) {
          params[i].name = names[i];
          params[i].dtype = WEFT_DTYPE_F32;
          params[i].ndim = i < 2 ? 1 : 0;
          params[i].shape = &nine;
          params[i].flags = i == 0 ? 0 : WEFT_PARAM_BUFFER;
          params[i].parameter = values[i];
        }
        weft_reducer_options wish = WEFT_REDUCER_OPTIONS_INIT;
        wish.params = params;
        wish.param_count = 3;
        wish.flags = WEFT_REDUCER_BUFFERS;
        wish.buffers_root = 1;
        wish.check_interval = 1;
        std::unique_ptr<Reducer> reducer;
        self.expect(Reducer::create(self.comm, wish, allreduce_hook(), &reducer), "create");
        if (!reducer) return;
        for (int step = 0; step < 20; step++) {
          counting = step >= 10 && self.rank == 0;
          mean[3] = static_cast<float>(step + self.rank);
          bool ok = reducer->begin(nullptr).ok();
          ok &= mean[3] == static_cast<float>(step + 1);
          ok &= reducer->ready(0, gradient, nullptr).ok();
          ok &= reducer->finish({}).ok();
          counting = false;
          self.expect(ok, "step");
        }
      },
      options);
  check(failures);
  CHECK(allocations.exchange(0) == 0);
}

TEST_CASE("a step with as many sparse entries as the one before it takes no more memory") {
  std::vector<TestParam> params = mixed_params();
  params.push_back({"embedding", {50, 3}, Dtype::kF32, {}, 1});
  params.push_back({"grid", {5, 4, 3}, Dtype::kF16, {}, 2});
  const Model model(params);
  const uint64_t first = model.size() - 2;
  RanksOptions options;
  options.mode = Engine::Mode::kCaller;
  options.backend = &shm::backend();
  check(run_threads(
      2,
      [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
        if (!reducer) return;
        Gradients gradients(model);
        const auto one = [](uint64_t, uint64_t) { return 1.0; };
        const std::vector<Coo> entries = {make_coo(model[first], {7, 3, 3, 40}, one),
                                          make_coo(model[first + 1], {19, 0, 19}, one)};
        uint64_t memory = 0;
        for (int step = 0; step < 20; step++) {
          counting = step >= 10 && self.rank == 0;
          bool ok = reducer->begin(nullptr).ok();
          for (size_t i = 0; i < first; i++) ok &= reducer->ready(i, gradients[i], nullptr).ok();
          for (size_t i = 0; i < 2; i++) ok &= reducer->ready_sparse(first + i, entries[i].c(), nullptr).ok();
          ok &= reducer->finish({}).ok();
          counting = false;
          self.expect(ok, "step");
          // Memory whose size depends on counts comes from the program's allocator.
          weft_reducer_stats stats{};
          reducer->query(&stats);
          self.expect(step < 2 || stats.other_bytes == memory, "memory grows");
          memory = stats.other_bytes;
        }
      },
      options));
  CHECK(allocations.exchange(0) == 0);
}

TEST_CASE("a reducer holds as much memory as it reports") {
  std::vector<TestParam> params;
  for (int i = 0; i < 2000; i++) params.push_back({cat("layer", i, ".attention.weight"), {3, 5}});
  const Model model(params);
  RanksOptions options;
  options.mode = Engine::Mode::kCaller;
  for (const uint64_t flags : {uint64_t{0}, uint64_t{WEFT_REDUCER_ABSENT | WEFT_REDUCER_UNEVEN |
                                                     WEFT_REDUCER_STATIC | WEFT_REDUCER_NORMS}}) {
    check(run_threads(
        1,
        [&](Rank& self) {
          std::unique_ptr<Reducer> reducer;
          const int64_t before = live_bytes;
          self.expect(
              make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {4096}, .flags = flags}),
              "create");
          const auto held = static_cast<double>(live_bytes - before);
          if (!reducer) return;
          weft_reducer_stats stats{};
          reducer->query(&stats);
          const auto said = static_cast<double>(stats.other_bytes);
          // malloc rounds up. The communicator's memory for the lane is not counted.
          self.expect(held < 1.1 * said && said < 1.1 * held, cat("it holds ", held, " and says ", said));
        },
        options));
  }
}
