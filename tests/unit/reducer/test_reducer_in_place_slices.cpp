// In-place slices: parts of gradients that are reduced in the program's memory, because only this rank reads
// them, over shm.
#include "reducer_rig.h"
#include "shm/backend.h"
#include "support/links.h"
#include "support/sanitized.h"

namespace unit_reducer_in_place_slices {

using namespace weft;
using namespace weft::test;

namespace {

// Parameters whose in-place slices begin and end anywhere, and others that are copied to their buckets whole.
std::vector<TestParam> large_params() {
  return {{"a", {50'003}},
          {"tiny", {3}},
          {"transposed", {120, 130}, Dtype::kF32, {1, 120}},
          {"b", {70'001}},
          {"half", {90'001}, Dtype::kF16},
          {"brain", {33'333}, Dtype::kBf16},
          {"double", {30'011}, Dtype::kF64},
          {"c", {9'999}}};
}

RanksOptions over_shm() {
  RanksOptions options;
  options.backend = &shm::backend();
  return options;
}

// Set if a sum has read a rank's gradient in place.
std::atomic<const std::byte*> watched_begin, watched_end;
std::atomic<bool> fold_held, fold_entered, seen;

void watching_fold(const FoldArgs& args) {
  for (int i = 0; i < args.input_count; i++)
    if (args.inputs[i] >= watched_begin && args.inputs[i] < watched_end) seen = true;
  while (fold_held) {
    fold_entered = true;
    std::this_thread::yield();
  }
  host_ops().fold(args);
}

// Runs two ranks, of which the first uses these operations.
template <class Body>
void run_watched(Body&& body) {
  DeviceOps ops = host_ops();
  ops.fold = watching_fold;
  SystemClock clock;
  ThreadGroup group(2, clock);
  std::vector<std::string> failures(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++) {
    threads.emplace_back([&, r] {
      try {
        ContextOptions options;
        options.host = r == 0 ? &ops : &host_ops();
        std::shared_ptr<Context> context;
        WEFT_EXPECT_OK(Context::create(options, &context));
        CommOptions comm_options;
        comm_options.init_timeout_ms = comm_options.op_timeout_ms = 60'000;
        std::shared_ptr<Comm> comm;
        WEFT_EXPECT_OK(form(group, r, context, collectives_of(shm::backend()), comm_options, &comm));
        body(r, comm);
        static_cast<void>(comm->close());
        comm.reset();
        static_cast<void>(context->close());
      } catch (const std::exception& error) {
        failures[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK(failure == "");
}

}  // namespace

TEST_CASE("gradients that are reduced in place have the sums of all ranks") {
  const Model model(large_params());
  for (const int ranks : {2, 3}) {
    for (const uint64_t limit : {uint64_t{400'000}, uint64_t{64} << 20}) {
      INFO(ranks << " ranks, limit " << limit);
      const Gradients first = reference(model, {1}, ranks, ranks);
      const Gradients with_local = reference(model, {2, 3}, ranks, ranks);
      const Gradients last = reference(model, {4}, ranks, ranks);
      const auto body = [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {limit}}),
                    "create");
        if (!reducer) return;
        Gradients gradients(model);
        const auto step = [&](uint64_t seed, uint64_t flags) {
          gradients.fill(seed, self.rank);
          weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
          begin.flags = flags;
          self.expect(reducer->begin(&begin), "begin");
          self.expect(ready_all(*reducer, pointers(gradients), seed + static_cast<uint64_t>(self.rank), 2),
                      "ready");
          self.expect(reducer->finish({}), "finish");
        };
        step(1, 0);
        self.expect(differs(model, gradients.memory(), first.memory()).empty(), "the first step");
        step(2, WEFT_BEGIN_LOCAL);
        step(3, 0);
        self.expect(differs(model, gradients.memory(), with_local.memory()).empty(), "behind a local step");
        step(4, 0);
        self.expect(differs(model, gradients.memory(), last.memory()).empty(), "the last step");
      };
      check(run_threads(ranks, body, over_shm()));
      if (!kThreadSanitizer && ranks == 2)
        check(run_processes(ranks, body, over_shm()));  // the watched operations do not see other processes
    }
  }
}

TEST_CASE("stale data of absent gradients is never reduced") {
  const Model model({{"a", {40'000}}, {"b", {40'000}}, {"c", {40'000}}});
  check(run_threads(
      2,
      [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                                 {.limits = {uint64_t{1} << 20}, .flags = WEFT_REDUCER_ABSENT}),
                    "create");
        if (!reducer) return;
        // Each parameter is absent on rank 0, on rank 1, on none or on both.
        for (uint64_t s = 0; s < 8; s++) {
          Gradients gradients(model), expected(model);
          gradients.fill(s, self.rank);
          expected.fill(s, self.rank);
          self.expect(reducer->begin(nullptr), "begin");
          for (uint64_t i = 0; i < model.size(); i++) {
            const auto absent_on = [&](int rank) { return ((s + i) >> rank & 1) != 0; };
            self.expect(
                absent_on(self.rank) ? reducer->absent(&i, 1) : reducer->ready(i, gradients[i], nullptr),
                "ready or absent");
            if (absent_on(self.rank)) continue;  // its gradient stays unset
            auto* const out = reinterpret_cast<float*>(expected[i]);
            for (uint64_t k = 0; k < model.count(i); k++) {
              double sum = 0;
              for (const int r : {0, 1}) sum += absent_on(r) ? 0 : value(s, r, i, k);
              out[k] = static_cast<float>(sum / 2);
            }
          }
          self.expect(reducer->finish({}), "finish");
          self.expect(differs(model, gradients.memory(), expected.memory()).empty(), cat("step ", s));
        }
      },
      over_shm()));
}

TEST_CASE("a rank reads its in-place slices in place, and finish waits for that only up to its deadline",
          "[of_in_place_slices]") {
  const Model model({{"last", {3}}, {"a", {100'000}}});  // the last bucket waits for finish
  for (const bool held : {false, true}) {
    std::atomic<int> arrived{0};
    seen = fold_entered = false;
    fold_held = held;
    run_watched([&](int rank, const std::shared_ptr<Comm>& comm) {
      std::unique_ptr<Reducer> reducer;
      WEFT_EXPECT_OK(make_reducer(comm, model, allreduce_hook(), &reducer,
                                  {.limits = {0}, .timeout_ms = held && rank == 0 ? 300 : 60'000}));
      Gradients gradients(model);
      gradients.fill(1, rank);
      if (rank == 0) {
        watched_begin = gradients[1];
        watched_end = gradients[1] + model.span(1);
      }
      arrived++;
      while (arrived < 2) std::this_thread::yield();
      WEFT_EXPECT_OK(reducer->begin(nullptr));
      WEFT_EXPECT_OK(reducer->ready(1, gradients[1], nullptr));
      // The fold runs on the progress thread, not on this one.
      for (int i = 0; held && rank == 0 && i < 20'000 && !fold_entered; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      WEFT_EXPECT_OK(reducer->ready(0, gradients[0], nullptr));
      const Status finished = reducer->finish({});
      const bool entered = fold_entered;
      if (rank == 0) fold_held = false;
      while (fold_held) std::this_thread::yield();
      reducer.reset();
      if (held && rank == 0) {
        WEFT_EXPECT(entered);
        WEFT_EXPECT(finished.code() == Code::kTimeout);
        WEFT_EXPECT(has(finished.text(), "Weft is still reading gradients or writing results into them"));
      }
      WEFT_EXPECT(finished.ok() != held);
    });
    CHECK(seen);
  }
}

}  // namespace unit_reducer_in_place_slices
