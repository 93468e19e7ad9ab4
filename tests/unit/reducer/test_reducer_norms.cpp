// Norms of reduced gradients, clipping by them, and skipped steps, compared with norms of the serial
// reference.
#include <cmath>
#include <limits>

#include "reducer/feature/norms/step_norms.h"
#include "reducer_rig.h"
#include "shm/backend.h"

namespace unit_reducer_norms {

using namespace weft;
using namespace weft::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Gradients with gaps only in copy mode, because their views have another layout.
std::vector<TestParam> params(bool gaps = true) {
  std::vector<TestParam> out = mixed_params();
  out.push_back({"large", {150'000}});  // several pieces
  if (!gaps)
    std::erase_if(out, [](const TestParam& p) { return p.name == "padded" || p.name == "every_second"; });
  return out;
}

double element(const Model& model, Gradients& gradients, size_t i, uint64_t k) {
  double out = 0;
  CopyArgs args;
  args.src = gradients[i] + gradients.at(i, k);
  args.dst = reinterpret_cast<std::byte*>(&out);
  args.count = 1;
  args.src_dtype = model[i].dtype;
  args.dst_dtype = Dtype::kF64;
  host_ops().copy(args);
  return out;
}

double norm(const Model& model, Gradients& gradients, size_t i) {
  double sum = 0;
  for (uint64_t k = 0; k < model.count(i); k++) sum += std::pow(element(model, gradients, i, k), 2);
  return std::sqrt(sum);
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::abs(b);
}

// A rank's reducer, with gradients in the memory of its mode.
class Trainer {
 public:
  Trainer(Rank& self, const Model& model, RigOptions rig) : self_(self), model_(model), memory(model) {
    rig.flags |= WEFT_REDUCER_NORMS;
    view_ = rig.mode == WEFT_GRADIENT_VIEW;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
  }

  // Computes the gradient, in row-major order of elements.
  void compute(uint64_t seed) {
    memory.fill(seed, self_.rank);
    for (size_t i = 0; view_ && i < model_.size(); i++) memory.fill(i, seed, self_.rank, place(i));
  }
  std::byte* place(size_t i) {
    if (!view_) return memory[i];
    void* at = nullptr;
    self_.expect(reducer->grad_view(i, &at), "view");
    return static_cast<std::byte*>(at);
  }
  Status step(const weft_finish_options& finish, const std::vector<uint64_t>& absent = {}) {
    WEFT_TRY(reducer->begin(nullptr));
    WEFT_TRY(reducer->absent(absent.data(), absent.size()));
    for (size_t i = 0; i < model_.size(); i++) {
      if (std::find(absent.begin(), absent.end(), i) != absent.end()) continue;
      WEFT_TRY(reducer->ready(i, place(i), nullptr));
    }
    return reducer->finish(finish);
  }

  std::unique_ptr<Reducer> reducer;

 private:
  Rank& self_;
  const Model& model_;
  bool view_ = false;

 public:
  Gradients memory;
};

weft_finish_options finish_with(double clip, uint64_t flags = 0) {
  weft_finish_options options = WEFT_FINISH_OPTIONS_INIT;
  options.clip_norm = clip;
  options.flags = flags;
  return options;
}

}  // namespace

TEST_CASE("norms are those of the results, equal on all ranks, over loopback and shm") {
  const Model model(params());
  Gradients expected = reference(model, {7}, 3, 3);
  for (const bool over_shm : {false, true}) {
    RanksOptions options;
    if (over_shm) options.backend = &shm::backend();
    std::vector<std::vector<double>> all(3);
    check(run_threads(
        3,
        [&](Rank& self) {
          Trainer trainer(self, model, {});
          if (!trainer.reducer) return;
          trainer.compute(7);
          self.expect(trainer.step(finish_with(0)), "step");
          weft_norms norms{};
          std::vector<double>& each = all[static_cast<size_t>(self.rank)];
          each.resize(model.size());
          self.expect(trainer.reducer->norms(&norms, each.data()), "norms");
          double sum = 0;
          for (size_t i = 0; i < model.size(); i++) {
            const double wanted = norm(model, expected, i);
            sum += wanted * wanted;
            self.expect(near(each[i], wanted), cat("norm of ", model[i].name, " is ", each[i]));
          }
          self.expect(near(norms.total, std::sqrt(sum)), cat("total ", norms.total));
          self.expect(norms.clip_factor == 1 && norms.nonfinite_params == 0 && norms.skipped == 0, "ruling");
          self.expect(differs(model, trainer.memory.memory(), expected.memory()).empty(), "results");
          each.push_back(norms.total);
        },
        options));
    CHECK(all[0] == all[1]);
    CHECK(all[0] == all[2]);
  }
}

TEST_CASE("results are scaled to the norm that finish allows, in copy and view mode") {
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    const Model model(params(mode == WEFT_GRADIENT_COPY));
    check(run_threads(2, [&](Rank& self) {
      Trainer trainer(self, model, {.mode = mode});
      if (!trainer.reducer) return;
      Gradients expected = reference(model, {3}, 2, 2);
      double total = 0;
      for (size_t i = 0; i < model.size(); i++) total += std::pow(norm(model, expected, i), 2);
      total = std::sqrt(total);
      for (const double limit : {total / 3, total * 3}) {
        trainer.compute(3);
        self.expect(trainer.step(finish_with(limit)), "step");
        weft_norms norms{};
        self.expect(trainer.reducer->norms(&norms, nullptr), "norms");
        self.expect(near(norms.total, total), "the total is that before clipping");
        self.expect(near(norms.clip_factor, limit < total ? 1.0 / 3 : 1), cat("factor ", norms.clip_factor));
        Gradients results(model);
        for (size_t i = 0; i < model.size(); i++) {
          self.expect(trainer.reducer->result(i, results[i]), "result");
          for (uint64_t k = 0; k < model.count(i); k++) {
            double wanted = element(model, expected, i, k) * norms.clip_factor;
            std::byte stored[8];
            store_as(model[i].dtype, wanted, stored);
            const uint32_t size = dtype_size(model[i].dtype);
            // f32 is scaled in f32, and rounded once less than here.
            const double got = element(model, results, i, k);
            self.expect(std::abs(got - wanted) <= std::abs(wanted) * (size == 2 ? 1e-2 : 1e-6),
                        cat(model[i].name, "[", k, "] is ", got, ", not ", wanted));
            if (mode == WEFT_GRADIENT_COPY) {
              self.expect(element(model, trainer.memory, i, k) == got, "the gradient is the result");
            }
          }
        }
        for (size_t i = 0; mode == WEFT_GRADIENT_VIEW && i < model.size(); i++) {
          Gradients again(model);
          self.expect(trainer.reducer->result(i, again[i]), "result");
          self.expect(again.memory()[i] == results.memory()[i], "the view is scaled once");
        }
      }
    }));
  }
}

TEST_CASE("norms refer to the final gradients, also if they are communicated in another type") {
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    const Model model({{"half", {20'000}, Dtype::kF16}, {"brain", {9}, Dtype::kBf16}, {"float", {5}}});
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                               {.mode = mode, .flags = WEFT_REDUCER_NORMS, .reduce_dtype = WEFT_DTYPE_F32}),
                  "create");
      if (!reducer) return;
      Gradients gradients(model);
      const auto place = [&](size_t i) {
        void* view = gradients[i];
        if (mode == WEFT_GRADIENT_VIEW) self.expect(reducer->grad_view(i, &view), "view");
        return static_cast<std::byte*>(view);
      };
      const auto fill = [&](size_t i, double value) {
        const uint64_t bytes = dtype_size(model[i].dtype);
        for (uint64_t k = 0; k < model.count(i); k++) store_as(model[i].dtype, value, place(i) + k * bytes);
      };
      const auto step = [&](bool skip) {
        self.expect(reducer->begin(nullptr), "begin");
        for (size_t i = 0; i < model.size(); i++) self.expect(reducer->ready(i, place(i), nullptr), "ready");
        weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
        finish.flags = skip ? WEFT_FINISH_SKIP_NONFINITE : 0;
        self.expect(reducer->finish(finish), "finish");
      };
      // The mean of 1 and 1 + 2^-7 lies between two bf16 numbers; the even one is 1.
      const double high = self.rank == 0 ? 1 : 1 + 1.0 / 128;
      fill(0, 2);
      fill(1, high);
      fill(2, high);
      step(false);
      weft_norms norms{};
      std::vector<double> each(model.size());
      self.expect(reducer->norms(&norms, each.data()), "norms");
      self.expect(each[0] == std::sqrt(20'000 * 4.0), cat("norm of f16: ", each[0]));
      self.expect(each[1] == 3, cat("norm of bf16: ", each[1]));
      self.expect(each[2] == std::sqrt(5 * (1 + 1.0 / 256) * (1 + 1.0 / 256)), cat("norm of f32: ", each[2]));
      if (mode == WEFT_GRADIENT_VIEW) return;
      // A value that overflows f16 when it is converted back.
      weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
      local.flags = WEFT_BEGIN_LOCAL;
      fill(0, 40'000);
      self.expect(reducer->begin(&local), "begin a local step");
      self.expect(reducer->ready(0, place(0), nullptr), "ready");
      self.expect(reducer->finish({}), "finish it");
      const std::vector<Bytes> before = gradients.memory();
      step(true);
      self.expect(reducer->norms(&norms, nullptr), "norms");
      self.expect(norms.nonfinite_params == 1 && norms.skipped == 1, "what overflows is not finite");
      self.expect(gradients.memory() == before, "gradients as they were");
    }));
  }
}

TEST_CASE("a step that one rank asks to skip is skipped on all ranks, and gradients do not change") {
  const Model model(params());
  check(run_threads(3, [&](Rank& self) {
    Trainer trainer(self, model, {});
    if (!trainer.reducer) return;
    trainer.compute(5);
    const std::vector<Bytes> before = trainer.memory.memory();
    self.expect(trainer.step(finish_with(0.5, self.rank == 1 ? WEFT_FINISH_SKIP : 0)), "step");
    weft_norms norms{};
    self.expect(trainer.reducer->norms(&norms, nullptr), "norms");
    self.expect(norms.skipped == 1 && norms.clip_factor == 1, "skipped");
    self.expect(trainer.memory.memory() == before, "gradients");
    const Status result = trainer.reducer->result(0, trainer.memory[0]);
    self.expect(result.code() == Code::kState && has(result.text(), "skipped"), result.text());
    weft_reducer_stats stats{};
    trainer.reducer->query(&stats);
    self.expect(stats.steps == 1, "it counts");
    self.expect(trainer.step(finish_with(0)), "the next step");
    self.expect(trainer.reducer->norms(&norms, nullptr), "norms");
    self.expect(norms.skipped == 0, "not skipped");
    Gradients expected = reference(model, {5}, 3, 3);
    self.expect(differs(model, trainer.memory.memory(), expected.memory()).empty(), "results");
  }));
}

TEST_CASE("infinities and NaNs of any rank are counted by parameter, and skip the step on request") {
  const Model model(params());
  for (const uint64_t skip : {uint64_t{0}, WEFT_FINISH_SKIP_NONFINITE}) {
    check(run_threads(2, [&](Rank& self) {
      Trainer trainer(self, model, {});
      if (!trainer.reducer) return;
      trainer.compute(1);
      if (self.rank == 1) {
        store_as(model[0].dtype, kNan, trainer.memory[0] + trainer.memory.at(0, 5));
        store_as(model[7].dtype, HUGE_VAL, trainer.memory[7] + trainer.memory.at(7, 0));
        store_as(model[9].dtype, -HUGE_VAL, trainer.memory[9] + trainer.memory.at(9, 3));
      }
      const std::vector<Bytes> before = trainer.memory.memory();
      self.expect(trainer.step(finish_with(1e-3, skip)), "step");
      weft_norms norms{};
      std::vector<double> each(model.size());
      self.expect(trainer.reducer->norms(&norms, each.data()), "norms");
      self.expect(norms.nonfinite_params == 3, cat(norms.nonfinite_params, " are not finite"));
      self.expect(!std::isfinite(each[0]) && !std::isfinite(each[7]) && std::isfinite(each[1]), "which");
      self.expect(norms.clip_factor == 1, "a norm that is no number clips nothing");
      self.expect((norms.skipped != 0) == (skip != 0), "skipped");
      self.expect((trainer.memory.memory() == before) == (skip != 0), "gradients");
    }));
  }
}

TEST_CASE("a parameter's norm is finite if its result is, also if the squares overflow") {
  const Model model({{"large", {3}, Dtype::kF64}, {"broken", {3}, Dtype::kF64}, {"small", {2}}});
  check(run_threads(2, [&](Rank& self) {
    Trainer trainer(self, model, {});
    if (!trainer.reducer) return;
    trainer.compute(1);
    for (size_t k = 0; k < 3; k++) store_as(Dtype::kF64, 1e200, trainer.memory[0] + trainer.memory.at(0, k));
    if (self.rank == 1) store_as(Dtype::kF64, HUGE_VAL, trainer.memory[1] + trainer.memory.at(1, 2));
    self.expect(trainer.step(finish_with(0)), "step");
    weft_norms norms{};
    std::vector<double> each(model.size());
    self.expect(trainer.reducer->norms(&norms, each.data()), "norms");
    self.expect(norms.nonfinite_params == 1, "one of them");
    self.expect(std::isfinite(each[0]) && !std::isfinite(each[1]) && std::isfinite(each[2]), "which");
  }));
}

TEST_CASE("parameters that are absent everywhere have no norm, those of other ranks have theirs") {
  const Model model(params());
  check(run_threads(2, [&](Rank& self) {
    Trainer trainer(self, model, {.flags = WEFT_REDUCER_ABSENT});
    if (!trainer.reducer) return;
    std::vector<double> each(model.size(), -1);
    for (int round = 0; round < 2; round++) {
      trainer.compute(2);
      self.expect(trainer.step(finish_with(0),
                               self.rank == 0 ? std::vector<uint64_t>{0, 1} : std::vector<uint64_t>{1}),
                  "step");
    }
    weft_norms norms{};
    self.expect(trainer.reducer->norms(&norms, each.data()), "norms");
    Gradients mine(model);
    mine.fill(2, 1);
    self.expect(near(each[0], norm(model, mine, 0) / 2), "the sum over the step's divisor");
    self.expect(each[1] == 0, "absent everywhere");
  }));
}

TEST_CASE("a rank that has joined makes the same decisions") {
  const Model model(params());
  check(run_threads(2, [&](Rank& self) {
    Trainer trainer(self, model, {.flags = WEFT_REDUCER_UNEVEN});
    if (!trainer.reducer) return;
    weft_norms norms{};
    if (self.rank == 0) {
      trainer.compute(4);
      self.expect(trainer.step(finish_with(1)), "step");
      self.expect(trainer.step(finish_with(1, WEFT_FINISH_SKIP)), "skipped step");
    }
    weft_join_result joined{};
    self.expect(trainer.reducer->join({}, &joined), "join");
    self.expect(trainer.reducer->norms(&norms, nullptr), "norms");
    self.expect(norms.skipped == 1 && norms.total > 0, "the last step was skipped");
  }));
}

TEST_CASE("ranks that clip differently fail by name") {
  const Model model({{"a", {4}}});
  check(run_threads(2, [&](Rank& self) {
    Trainer trainer(self, model, {});
    if (!trainer.reducer) return;
    const Status status = trainer.step(finish_with(1 + self.rank));
    self.expect(
        status.code() == Code::kMismatch && has(status.text(), "rank 0 clips the norm at 1, rank 1 at 2"),
        status.text());
  }));
}

TEST_CASE("clipping and skipping are refused if unsupported, and the step continues") {
  const Model model({{"a", {4}}});
  check(run_threads(1, [&](Rank& self) {
    Trainer trainer(self, model, {});
    std::unique_ptr<Reducer> plain;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &plain), "create");
    if (!trainer.reducer || !plain) return;
    const auto refused = [&](const Status& status, Code code, const std::string& why) {
      self.expect(status.code() == code && has(status.text(), why), status.text() + ", not " + why);
    };
    weft_norms norms{};
    refused(plain->norms(&norms, nullptr), Code::kState, "WEFT_REDUCER_NORMS");
    refused(trainer.reducer->norms(&norms, nullptr), Code::kState, "no step has been reduced");
    Gradients of_plain(model), of_trainer(model);
    of_plain.fill(1, 0);
    of_trainer.fill(1, 0);
    for (Reducer* reducer : {plain.get(), trainer.reducer.get()}) {
      Gradients& gradients = reducer == plain.get() ? of_plain : of_trainer;
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
      for (const double limit : {-1.0, HUGE_VAL, kNan}) {
        refused(reducer->finish(finish_with(limit)), Code::kArg, "clip_norm is");
      }
    }
    refused(plain->finish(finish_with(1)), Code::kState, "WEFT_REDUCER_NORMS");
    refused(plain->finish(finish_with(0, WEFT_FINISH_SKIP)), Code::kState, "WEFT_REDUCER_NORMS");
    refused(trainer.reducer->norms(&norms, nullptr), Code::kState, "norms inside step 0");
    self.expect(plain->finish({}), "finish");
    self.expect(trainer.reducer->finish({}), "finish");
    weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
    local.flags = WEFT_BEGIN_LOCAL;
    self.expect(trainer.reducer->begin(&local), "begin");
    refused(trainer.reducer->finish(finish_with(1)), Code::kState, "a local step has no results");
    self.expect(trainer.reducer->finish({}), "finish");
  }));
}

TEST_CASE("invalid records of finish are refused with the rank's number") {
  FinishDecision decision;
  for (const FinishRecord& bad :
       {FinishRecord{-1, 0, 0}, FinishRecord{kNan, 0, 0}, FinishRecord{HUGE_VAL, 0, 0}, FinishRecord{0, 8, 0},
        FinishRecord{0, 0, 1}}) {
    const Status status = decide_finish({{}, bad}, 1, 0, &decision);
    CHECK(status.code() == Code::kMismatch);
    CHECK(status.info().ranks == std::vector<int>{1});
  }
  const FinishRecord skips{0, FinishRecord::kSkipNonfinite, 0};
  CHECK(has(decide_finish({{}, skips}, 1, 0, &decision).text(), "rank 1 with WEFT_FINISH_SKIP_NONFINITE"));
  // The sum of finite squares may be infinite.
  REQUIRE(decide_finish({skips, skips}, HUGE_VAL, 0, &decision).ok());
  CHECK(decision.skipped);
  // A rank that has joined does not know how the others clip.
  REQUIRE(decide_finish({{0, FinishRecord::kJoined, 0}, {2, 0, 0}}, 8, 0, &decision).ok());
  CHECK(decision.factor == 0.25);
}

}  // namespace unit_reducer_norms
