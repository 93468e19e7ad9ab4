// lib/reducer/reducer: averages gradients of several ranks, in every layout, mode and order of readiness.
// Misuse and failure: test_reducer_errors.cpp; hooks: test_reducer_hooks.cpp.
#include <atomic>
#include <mutex>

#include "reducer_rig.h"
#include "shm/backend.h"

namespace unit_reducer {

using namespace weft;
using namespace weft::test;

namespace {

// Runs averaged steps with gradients from `ranks` threads, and compares them with the reference.
void check_steps(int ranks, const RigOptions& rig, int threads, const RanksOptions& options = {}) {
  const Model model(mixed_params());
  const auto failures = run_threads(
      ranks,
      [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        const Status made = make_reducer(self.comm, model, allreduce_hook(), &reducer, rig);
        self.expect(made, "create");
        if (!made.ok()) return;
        Gradients gradients(model);
        for (uint64_t step = 0; step < 3; step++) {
          gradients.fill(step, self.rank);
          self.expect(reducer->begin(nullptr), "begin");
          self.expect(ready_all(*reducer, pointers(gradients), step * 100 + static_cast<uint64_t>(self.rank),
                                threads),
                      "ready");
          self.expect(reducer->finish({}), "finish");
          const Gradients expected = reference(model, {step}, ranks, ranks);
          const std::string name = differs(model, gradients.memory(), expected.memory());
          self.expect(name.empty(), cat("step ", step, ": wrong result in ", name));
        }
      },
      options);
  check(failures);
}

}  // namespace

TEST_CASE("gradients of any layout and dtype are averaged over 1 to 5 ranks") {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    INFO(ranks << " ranks");
    check_steps(ranks, {}, 1);
  }
}

TEST_CASE("gradients may become ready in any order from several threads at once") {
  check_steps(3, {}, 4);
}

TEST_CASE("results do not depend on the buckets' limits") {
  for (const auto& limits : std::vector<std::vector<uint64_t>>{{}, {0}, {1}, {100, 1000}, {1u << 20}}) {
    check_steps(2, {.limits = limits}, 2);
  }
}

TEST_CASE("in caller mode finish drives the step") {
  RanksOptions options;
  options.mode = Engine::Mode::kCaller;
  check_steps(2, {}, 1, options);
}

TEST_CASE("in view mode gradients are computed in the buckets, in the parameter's layout if it is dense") {
  const Model model(mixed_params());
  const int ranks = 3;
  const auto failures = run_threads(ranks, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const Status made =
        make_reducer(self.comm, model, allreduce_hook(), &reducer, {.mode = WEFT_GRADIENT_VIEW});
    self.expect(made, "create");
    if (!made.ok()) return;
    // Views are packed: a gradient that is not dense becomes row-major.
    std::vector<TestParam> packed = mixed_params();
    for (TestParam& p : packed) {
      if (p.name == "padded" || p.name == "every_second") p.strides.clear();
    }
    const Model views(packed);
    Gradients filler(views);
    std::vector<std::byte*> memory(views.size());
    for (size_t i = 0; i < views.size(); i++) {
      void* view = nullptr;
      self.expect(reducer->grad_view(i, &view), "grad_view");
      memory[i] = static_cast<std::byte*>(view);
    }
    for (uint64_t step = 0; step < 2; step++) {
      for (size_t i = 0; i < views.size(); i++) filler.fill(i, step, self.rank, memory[i]);
      self.expect(reducer->begin(nullptr), "begin");
      // NULL and the view are equivalent.
      std::vector<std::byte*> given = memory;
      if (step == 1) std::fill(given.begin(), given.end(), nullptr);
      self.expect(ready_all(*reducer, given, step, 2), "ready");
      self.expect(reducer->finish({}), "finish");
      const Gradients expected = reference(views, {step}, ranks, ranks);
      for (size_t i = 0; i < views.size(); i++) {
        const bool same = expected.memory()[i].empty() || std::memcmp(memory[i], expected.memory()[i].data(),
                                                                      expected.memory()[i].size()) == 0;
        self.expect(same, "wrong result in " + views[i].name);
      }
    }
  });
  check(failures);
}

TEST_CASE("replicas are bitwise equal also when sums depend on their order") {
  const Model model({{"w", {1023}}, {"b", {77}}, {"h", {513}, Dtype::kF16}});
  std::vector<std::vector<Bytes>> results(4);
  const auto failures = run_threads(4, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    std::mt19937_64 random(static_cast<uint64_t>(self.rank));
    std::normal_distribution<double> normal(0, 3);
    for (size_t i = 0; i < model.size(); i++) {
      for (uint64_t k = 0; k < model.count(i); k++) {
        store_as(model[i].dtype, normal(random), gradients[i] + gradients.at(i, k));
      }
    }
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(ready_all(*reducer, pointers(gradients), 7), "ready");
    self.expect(reducer->finish({}), "finish");
    results[static_cast<size_t>(self.rank)] = gradients.memory();
  });
  check(failures);
  for (const auto& result : results) CHECK(result == results[0]);
}

TEST_CASE("the program's own collectives may run between begin and finish") {
  const Model model(mixed_params());
  const auto failures = run_threads(3, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 3; step++) {
      gradients.fill(step, self.rank);
      self.expect(reducer->begin(nullptr), "begin");
      for (size_t i = model.size(); i-- > 0;) {
        self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
        float mine = static_cast<float>(self.rank + 1), sum = 0;
        CollectiveArgs args;
        args.coll = Coll::kAllReduce;
        args.dtype = Dtype::kF32;
        args.op = ReduceOp::kSum;
        args.count = 1;
        args.src = reinterpret_cast<const std::byte*>(&mine);
        args.dst = reinterpret_cast<std::byte*>(&sum);
        self.expect(self.run(args), "all_reduce inside a step");
        self.expect(sum == 6.0f, "its result");
      }
      self.expect(reducer->finish({}), "finish");
      const Gradients expected = reference(model, {step}, 3, 3);
      self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "wrong result");
    }
  });
  check(failures);
}

TEST_CASE("two reducers on one communicator do not disturb each other") {
  const Model a({{"a", {100}}, {"b", {3}}}), b({{"c", {50}, Dtype::kF64}});
  const auto failures = run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> first, second;
    self.expect(make_reducer(self.comm, a, allreduce_hook(), &first), "create");
    self.expect(make_reducer(self.comm, b, allreduce_hook(), &second), "create");
    if (!first || !second) return;
    Gradients ga(a), gb(b);
    ga.fill(1, self.rank);
    gb.fill(2, self.rank);
    self.expect(first->begin(nullptr), "begin");
    self.expect(second->begin(nullptr), "begin");
    // Each rank uses another order: the reducers have lanes of their own.
    for (int turn = 0; turn < 2; turn++) {
      if ((turn == 0) == (self.rank == 0)) {
        self.expect(ready_all(*first, pointers(ga), 0), "ready");
      } else {
        self.expect(ready_all(*second, pointers(gb), 0), "ready");
      }
    }
    self.expect(second->finish({}), "finish");
    self.expect(first->finish({}), "finish");
    self.expect(differs(a, ga.memory(), reference(a, {1}, 2, 2).memory()).empty(), "first");
    self.expect(differs(b, gb.memory(), reference(b, {2}, 2, 2).memory()).empty(), "second");
  });
  check(failures);
}

TEST_CASE("local steps accumulate in the bucket, and the next synchronised step averages the sum") {
  const Model model(mixed_params());
  const auto failures = run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t round = 0; round < 2; round++) {
      weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
      local.flags = WEFT_BEGIN_LOCAL;
      std::vector<uint64_t> seeds;
      for (uint64_t micro = 0; micro < 3; micro++) {
        seeds.push_back(round * 10 + micro);
        gradients.fill(seeds.back(), self.rank);
        const std::vector<Bytes> before = gradients.memory();
        weft_begin_options last = WEFT_BEGIN_OPTIONS_INIT;
        last.micro_batches = 4;  // any divisor that the program wants
        self.expect(reducer->begin(micro < 2 ? &local : &last), "begin");
        self.expect(ready_all(*reducer, pointers(gradients), micro), "ready");
        self.expect(reducer->finish({}), "finish");
        if (micro < 2) self.expect(gradients.memory() == before, "a local step writes to gradients");
      }
      const Gradients expected = reference(model, seeds, 2, 2 * 4);
      const std::string name = differs(model, gradients.memory(), expected.memory());
      self.expect(name.empty(), cat("round ", round, ": wrong result in ", name));
    }
    weft_reducer_stats stats{};
    reducer->query(&stats);
    self.expect(stats.steps == 2 && stats.local_steps == 4, "counts of steps");
  });
  check(failures);
}

TEST_CASE(
    "a rank whose number of local steps differs is named, with both numbers, and gets no wrong result") {
  const Model model(mixed_params());
  for (const uint64_t flags : {uint64_t{0}, WEFT_REDUCER_ABSENT | WEFT_REDUCER_NORMS}) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = flags}), "create");
      if (!reducer) return;
      Gradients gradients(model);
      weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT, last = WEFT_BEGIN_OPTIONS_INIT;
      local.flags = WEFT_BEGIN_LOCAL;
      last.micro_batches = 4;
      const auto window = [&](int locals) {
        for (int micro = 0; micro <= locals; micro++) {
          gradients.fill(static_cast<uint64_t>(micro), self.rank);
          WEFT_TRY(reducer->begin(micro < locals ? &local : &last));
          WEFT_TRY(ready_all(*reducer, pointers(gradients), 1));
          WEFT_TRY(reducer->finish({}));
        }
        return Status();
      };
      self.expect(window(3), "a window of all ranks");
      self.expect(window(3), "another one");
      // Rank 1 missed this window's first step.
      const Status status = window(self.rank == 0 ? 3 : 2);
      self.expect(status.code() == Code::kMismatch, status.text());
      for (const char* part :
           {"after 3 local steps", "after 2 local steps", "the same number of local steps"})
        self.expect(has(status.text(), part), status.text());
      const std::string whose = cat("rank ", self.rank, " calls");
      self.expect(has(status.text(), "rank 0") && has(status.text(), "rank 1"), status.text() + whose);
      Gradients mine(model);
      mine.fill(self.rank == 0 ? 3 : 2, self.rank);
      self.expect(differs(model, gradients.memory(), mine.memory()).empty(), "another window's result");
    }));
  }
}

TEST_CASE("a rank that is one step ahead is named, with both steps, and gets no other step's gradients") {
  const Model model({{"a", {5}}});
  for (const Backend* backend : {static_cast<const Backend*>(nullptr), &shm::backend()}) {
    RanksOptions options;
    options.backend = backend;
    check(run_threads(
        2,
        [&](Rank& self) {
          std::unique_ptr<Reducer> reducer;
          self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
          if (!reducer) return;
          Gradients gradients(model);
          const uint64_t param = 0;
          // Rank 0 violates the rule that the same parameters are absent everywhere: its second step
          // completes without communication, and its third step meets the others' second.
          Status status;
          for (uint64_t step = 0; step < 3 && status.ok(); step++) {
            gradients.fill(step, self.rank);
            weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
            begin.flags = WEFT_BEGIN_FIXED;
            status = reducer->begin(&begin);
            const bool absent = self.rank == 0 && step == 1;
            if (status.ok())
              status = absent ? reducer->absent(&param, 1) : reducer->ready(0, gradients[0], nullptr);
            if (status.ok()) status = reducer->finish({});
          }
          self.expect(status.code() == Code::kMismatch, cat("'", status.text(), "'"));
          const std::string steps[] = {"step 2 with", "step 1 with"};
          for (const std::string& part : steps) self.expect(has(status.text(), part), status.text());
          self.expect(has(status.text(), "every rank must make the same synchronised steps"), status.text());
          self.expect(has(status.text(), cat("rank ", 1 - self.rank)), status.text());
          Gradients mine(model);
          mine.fill(self.rank == 0 ? 2 : 1, self.rank);
          self.expect(differs(model, gradients.memory(), mine.memory()).empty(), "another step's result");
        },
        options));
  }
}

TEST_CASE("a gradient that is missing from a local step adds nothing") {
  const Model model({{"a", {10}}, {"b", {10}}});
  const auto failures = run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
    local.flags = WEFT_BEGIN_LOCAL;
    gradients.fill(1, 0);
    self.expect(reducer->begin(&local), "begin");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    gradients.fill(2, 0);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(ready_all(*reducer, pointers(gradients), 0), "ready");
    self.expect(reducer->finish({}), "finish");
    self.expect(gradients.memory()[0] == reference(model, {1, 2}, 1, 1).memory()[0], "a");
    self.expect(gradients.memory()[1] == reference(model, {2}, 1, 1).memory()[1], "b");
  });
  check(failures);
}

namespace {

struct Reported {
  std::mutex mutex;
  std::vector<uint32_t> buckets;
  std::vector<weft_status> codes;
  bool inside = true;
};

void note_bucket(void* data, uint64_t, uint32_t bucket, weft_status status) {
  auto& reported = *static_cast<Reported*>(data);
  const std::lock_guard lock(reported.mutex);
  reported.buckets.push_back(bucket);
  reported.codes.push_back(status);
  reported.inside &= Callbacks::inside();
}

}  // namespace

TEST_CASE("every bucket is reported once, in order, and described with its times") {
  const Model model({{"a", {64}}, {"b", {64}}, {"c", {64}}, {"d", {72}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    Reported reported;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.limits = {256}, .on_bucket = note_bucket, .on_bucket_user_data = &reported}),
                "create");
    if (!reducer) return;
    self.expect(reducer->bucket_count() == 4, "four buckets");
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(ready_all(*reducer, pointers(gradients), 3), "ready");
    self.expect(reducer->finish({}), "finish");
    uint64_t launched = 0;
    for (uint32_t b = 0; b < 4; b++) {
      weft_bucket_info info{};
      uint64_t params[2] = {99, 99};
      self.expect(reducer->bucket(b, &info, params, 2), "bucket");
      self.expect(info.param_count == 1 && params[0] == 3 - b, "its parameters");
      self.expect(info.bytes == (b == 0 ? 288u : 256u) && info.limit_bytes == 256, "its size");
      self.expect(info.ready_ns > 0 && info.launch_ns >= launched && info.done_ns >= info.launch_ns,
                  "its times");
      launched = info.launch_ns;
    }
    weft_bucket_info info{};
    self.expect(reducer->bucket(4, &info, nullptr, 0).code() == Code::kArg, "unknown bucket");
    weft_reducer_stats stats{};
    reducer->query(&stats);
    self.expect(stats.bytes_reduced == 3 * 256 + 288, "bytes reduced");
    self.expect(stats.bucket_bytes == 4 * 4096 && stats.scratch_bytes == 0 && stats.other_bytes > 0,
                "memory");
    self.expect(stats.step_ns >= stats.exposed_ns, "times");
    reducer.reset();  // no callback after this
    self.expect(reported.buckets == std::vector<uint32_t>{0, 1, 2, 3}, "callbacks");
    self.expect(reported.codes == std::vector<weft_status>(4, WEFT_OK), "their codes");
    self.expect(reported.inside, "marked as callbacks");
  });
  check(failures);
}

namespace {

// Records the order of events.
class Events final : public TraceSink {
 public:
  void record(const TraceEvent& event) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  std::vector<TraceEvent> of(TraceKind kind) const {
    const std::lock_guard lock(mutex_);
    std::vector<TraceEvent> out;
    for (const TraceEvent& e : events_) {
      if (e.kind == kind) out.push_back(e);
    }
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
};

}  // namespace

TEST_CASE("a bucket is launched, reduced and copied back while later gradients are computed") {
  const Model model({{"first", {500}}, {"middle", {500}}, {"last", {500}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    Events events;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Context& context = self.comm->context();
    context.set_trace(&events);
    Gradients gradients(model);
    gradients.fill(5, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(2, gradients[2], nullptr), "ready");
    // The first bucket completes before the others are ready; no thread calls Weft meanwhile.
    const Deadline deadline = Deadline::after(context.clock(), 60'000, 0);
    for (uint32_t round = 0; events.of(TraceKind::kDone).empty() && !deadline.expired(context.clock());
         round++) {
      context.clock().relax(round);
    }
    self.expect(gradients.memory()[2] == reference(model, {5}, 2, 2).memory()[2], "copied back already");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    context.set_trace(nullptr);
    const auto ready = events.of(TraceKind::kReady);
    const auto launched = events.of(TraceKind::kLaunch);
    self.expect(ready.size() == 3 && launched.size() == 3, "events");
    self.expect(launched[0].begin_ns < ready[2].begin_ns, "a launch before the last ready");
    self.expect(launched[0].bucket == 0 && launched[1].bucket == 1 && launched[2].bucket == 2,
                "launched in order, although the last became full first");
    self.expect(events.of(TraceKind::kStep).size() == 1, "one step");
  });
  check(failures);
}

TEST_CASE("a step with one hundred thousand tiny parameters works") {
  std::vector<TestParam> params;
  for (int i = 0; i < 100'000; i++) params.push_back({"layer." + std::to_string(i) + ".bias", {3}});
  const Model model(params);
  const auto failures = run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {}}), "create");
    if (!reducer) return;
    std::vector<float> memory(model.size() * 3, static_cast<float>(self.rank + 1));
    self.expect(reducer->begin(nullptr), "begin");
    for (size_t i = 0; i < model.size(); i++) {
      self.expect(reducer->ready(i, &memory[3 * i], nullptr), "ready");
    }
    self.expect(reducer->finish({}), "finish");
    self.expect(std::all_of(memory.begin(), memory.end(), [](float x) { return x == 1.5f; }), "result");
  });
  check(failures);
}

}  // namespace unit_reducer
