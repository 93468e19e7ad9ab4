// Steps that a rank fails with weft_reducer_fail: they fail on all ranks with its text, and later steps work.
// The seed decides which ranks fail which steps, and after how many gradients.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"
#include "support/sanitized.h"
#include "support/seed.h"

namespace capi_step_fail {

using weft_test::kBackends;
using weft_test::kModes;
using weft_test::Rank;

namespace {

constexpr size_t kParams = 4;
constexpr int64_t kShapes[kParams][2] = {{40, 50}, {7, 3}, {1, 1}, {60, 30}};

struct Way {
  const char* name;
  uint64_t flags = 0;
  int32_t mode = WEFT_GRADIENT_COPY;
  const char* hook = nullptr;
  const char* hook_options = nullptr;
  int32_t reduce_dtype = 0;
  uint64_t finish_flags = 0;
  double clip_norm = 0;
  uint32_t check_interval = 0;
  int local_steps = 0;
  bool exact = true;  // results are means of small whole numbers
  uint32_t uses = 1;
  weft_planner replan = WEFT_PLANNER_DEFAULT;
  weft_accumulation accumulation = WEFT_ACCUMULATION_REDUCER;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {.name = "copy"},
      {.name = "view", .mode = WEFT_GRADIENT_VIEW},
      {.name = "absent", .flags = WEFT_REDUCER_ABSENT},
      {.name = "uneven", .flags = WEFT_REDUCER_UNEVEN},
      {.name = "norms", .flags = WEFT_REDUCER_NORMS, .clip_norm = 1e9},
      {.name = "retain", .flags = WEFT_REDUCER_RETAIN},
      {.name = "commit", .finish_flags = WEFT_FINISH_COMMIT},
      {.name = "check", .flags = WEFT_REDUCER_BUFFERS, .check_interval = 1},
      {.name = "sharded", .flags = WEFT_REDUCER_SHARDED, .exact = false},
      {.name = "weights", .flags = WEFT_REDUCER_UNEVEN | WEFT_REDUCER_RETAIN, .mode = WEFT_GRADIENT_VIEW},
      {.name = "static", .flags = WEFT_REDUCER_STATIC},
      {.name = "uses", .uses = 2},
      {.name = "local steps", .local_steps = 2},
      {.name = "powersgd", .hook = "powersgd", .hook_options = "start=2", .exact = false},
      {.name = "topk", .hook = "topk", .exact = false},
      {.name = "fp16", .hook = "fp16"},
      {.name = "wider",
       .flags = WEFT_REDUCER_ACCUMULATE_F32,
       .reduce_dtype = WEFT_DTYPE_BF16,
       .exact = false},
  };
  return all;
}

// The ranks' actions in one step. All ranks draw the same.
struct Draw {
  std::vector<int> fails;       // ranks, ascending
  std::vector<size_t> readied;  // by rank: the number of gradients that become ready before it fails
  std::vector<int> pauses_us;

  // A step that no rank fails.
  explicit Draw(int size) : readied(static_cast<size_t>(size)), pauses_us(readied.size()) {}
  Draw(uint64_t seed, int size) : readied(static_cast<size_t>(size)), pauses_us(readied.size()) {
    std::mt19937_64 random(seed);
    const bool any = random() % 3 != 0;
    for (int r = 0; r < size; r++) {
      if (any && random() % 2 == 0) fails.push_back(r);
      readied[static_cast<size_t>(r)] = random() % (kParams + 1);
      pauses_us[static_cast<size_t>(r)] = random() % 2 == 0 ? 0 : static_cast<int>(random() % 2000);
    }
  }
  bool failing(int rank) const { return std::find(fails.begin(), fails.end(), rank) != fails.end(); }
};

std::string reason(int rank, uint64_t step) {
  return "ValueError: batch " + std::to_string(step) + " of " + std::to_string(rank);
}

std::string told(const Draw& draw, uint64_t step) {
  std::string text;
  for (const int r : draw.fails) {
    text += (text.empty() ? "" : "; ") + ("rank " + std::to_string(r) + ": ") + reason(r, step);
  }
  return text;
}

// One rank's part of the test.
class Trainer {
 public:
  Trainer(Rank& rank, const Way& way, weft_test::Findings* findings, std::string* problem)
      : rank_(rank), way_(way), findings_(*findings), problem_(*problem) {
    for (size_t i = 0; i < kParams; i++) {
      const auto count = static_cast<size_t>(kShapes[i][0] * kShapes[i][1]);
      gradients_.emplace_back(count);
      values_.emplace_back(count, 1.0f);
      params_[i] = weft_param WEFT_PARAM_INIT;
      params_[i].name = kNames[i];
      params_[i].dtype = WEFT_DTYPE_F32;
      params_[i].ndim = 2;
      params_[i].shape = kShapes[i];
      params_[i].parameter = values_[i].data();
      params_[i].uses = way.uses;
    }
    const uint64_t limits[] = {1024};
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params_;
    options.param_count = kParams;
    options.mode = way.mode;
    if (way.mode == WEFT_GRADIENT_COPY) options.accumulation = way.accumulation;
    options.flags = way.flags;
    options.replan = way.replan;
    options.bucket_limits = limits;
    options.bucket_limit_count = 1;
    options.reduce_dtype = way.reduce_dtype;
    options.check_interval = way.check_interval;
    weft_hook_params hook_params = WEFT_HOOK_PARAMS_INIT;
    hook_params.options = way.hook_options;
    if (way.hook != nullptr)
      expect(weft_hook_create(rank.context, way.hook, &hook_params, &hook_) == WEFT_OK, "hook");
    options.hook = hook_;
    weft_error error = WEFT_ERROR_INIT;
    expect(weft_reducer_create(rank.comm, &options, &reducer_, &error) == WEFT_OK, error.text);
  }
  ~Trainer() {
    weft_reducer_destroy(&reducer_);
    weft_hook_destroy(&hook_);
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void step(uint64_t number, const Draw& draw) {
    if (reducer_ == nullptr) return;
    for (int i = 0; i < way_.local_steps; i++) {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      begin.flags = WEFT_BEGIN_LOCAL;
      expect(weft_reducer_begin(reducer_, &begin) == WEFT_OK, "begin of a local step");
      ready_all(number, kParams);
      expect(weft_reducer_finish(reducer_, nullptr) == WEFT_OK, "finish of a local step");
    }
    expect(weft_reducer_begin(reducer_, nullptr) == WEFT_OK, "begin");
    const auto me = static_cast<size_t>(rank_.rank);
    const bool fails = draw.failing(rank_.rank);
    ready_all(number, fails ? draw.readied[me] : kParams);
    std::this_thread::sleep_for(std::chrono::microseconds(draw.pauses_us[me]));
    if (fails) {
      const weft_status failed = weft_reducer_fail(reducer_, reason(rank_.rank, number).c_str());
      expect(failed == WEFT_OK, "fail returns");
    } else {
      weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
      finish.flags = way_.finish_flags;
      finish.clip_norm = way_.clip_norm;
      const weft_status wanted = draw.fails.empty() ? WEFT_OK : WEFT_ERR_STEP_FAILED;
      expect(weft_reducer_finish(reducer_, &finish) == wanted, "finish returns");
    }
    if (draw.fails.empty()) {
      done_++;
      check_results(number);
    } else {
      check_failure(number, draw);
    }
  }

  void check_statistics(uint64_t steps) {
    weft_reducer_stats stats{};
    stats.struct_size = sizeof stats;
    expect(weft_reducer_query(reducer_, &stats) == WEFT_OK, "query");
    expect(stats.steps == done_ && stats.failed_steps == steps - done_, "statistics");
  }

  weft_reducer* reducer() { return reducer_; }
  void expect(bool ok, const std::string& what) {
    findings_.expect(ok);
    if (ok || !problem_.empty()) return;
    problem_ = "rank " + std::to_string(rank_.rank) + ": " + what;
    if (reducer_ != nullptr) problem_ += ", error " + text();
  }
  std::string text() const {
    weft_error error = WEFT_ERROR_INIT;
    const weft_status status = weft_reducer_error(reducer_, &error);
    return std::to_string(status) + ": " + error.text;
  }
  float* gradient(size_t i) {
    void* view = gradients_[i].data();
    if (way_.mode == WEFT_GRADIENT_VIEW) weft_reducer_grad_view(reducer_, i, &view);
    return static_cast<float*>(view);
  }
  void ready_all(uint64_t number, size_t count, bool must = true) {
    for (size_t i = kParams; i-- > kParams - count;) {
      std::fill_n(gradient(i), gradients_[i].size(), contribution(number, rank_.rank, i));
      for (uint32_t use = 0; use < way_.uses; use++)
        expect(weft_reducer_ready(reducer_, i, gradient(i), nullptr) == WEFT_OK || !must, "ready");
    }
  }

 private:
  static constexpr const char* kNames[kParams] = {"a", "b", "c", "d"};
  static float contribution(uint64_t number, int rank, size_t param) {
    return static_cast<float>((number * 7 + static_cast<uint64_t>(rank) * 3 + param) % 16) * 3;
  }

  void check_results(uint64_t number) {
    for (size_t i = 0; i < kParams && way_.exact; i++) {
      float sum = 0;
      for (int r = 0; r < rank_.size; r++) sum += contribution(number, r, i);
      sum *= static_cast<float>(way_.local_steps + 1);
      const std::vector<float> wanted(gradients_[i].size(), sum / static_cast<float>(rank_.size));
      const auto close = [](float a, float b) { return std::abs(a - b) <= 1e-2f; };
      expect(std::equal(wanted.begin(), wanted.end(), gradient(i), close), "results");
    }
  }
  void check_failure(uint64_t number, const Draw& draw) {
    weft_error error = WEFT_ERROR_INIT;
    expect(weft_reducer_error(reducer_, &error) == WEFT_ERR_STEP_FAILED, "error");
    // The places of the ranks follow.
    expect(std::string(error.text).rfind(told(draw, number) + " [rank ", 0) == 0,
           "text: " + std::string(error.text));
    expect(error.failed_count == draw.fails.size(), "failed_count");
    for (size_t i = 0; i < draw.fails.size(); i++) expect(error.failed_ranks[i] == draw.fails[i], "ranks");
    expect(error.step == done_, "step");
    weft_verdict verdict{};
    verdict.struct_size = sizeof verdict;
    expect(weft_reducer_verdict(reducer_, &verdict) == WEFT_OK && verdict.can_retry == 0, "verdict");
    expect(weft_reducer_finish(reducer_, nullptr) == WEFT_ERR_STATE, "no step is open");
  }

  Rank& rank_;
  const Way& way_;
  weft_test::Findings& findings_;
  std::string& problem_;
  std::vector<std::vector<float>> gradients_, values_;
  weft_param params_[kParams];
  weft_hook* hook_ = nullptr;
  weft_reducer* reducer_ = nullptr;
  uint64_t done_ = 0;
};

// Runs `body` on each rank. Returns the first failure, or "".
std::string train(const char* backend, int size, int32_t progress, const Way& way,
                  const std::function<void(Trainer&, Rank&)>& body) {
  weft_test::Findings findings;
  std::vector<std::string> problems(static_cast<size_t>(size));
  const std::string error = weft_test::run(backend, size, progress, [&](Rank& rank) {
    Trainer trainer(rank, way, &findings, &problems[static_cast<size_t>(rank.rank)]);
    body(trainer, rank);
  });
  if (!error.empty()) return error;
  for (const std::string& problem : problems) {
    if (!problem.empty()) return problem;
  }
  return findings.wrong == 0 ? "" : "wrong";
}

}  // namespace

TEST_CASE("a step that a rank fails fails on all ranks, and the next one works") {
  constexpr uint64_t kSteps = 12;
  for (const Way& way : ways()) {
    for (const char* backend : kBackends) {
      for (const int32_t progress : kModes) {
        for (const int size : {1, 3}) {
          const uint64_t base = weft::test::base_seed();
          const uint64_t seed = base + std::hash<std::string>()(std::string(way.name) + backend) +
                                static_cast<uint64_t>(progress);
          INFO(way.name << " over " << backend << ", " << size << " ranks, progress " << progress
                        << ", --rng-seed " << base);
          CHECK(train(backend, size, progress, way, [&](Trainer& trainer, Rank& rank) {
                  for (uint64_t s = 0; s < kSteps; s++) trainer.step(s, Draw(seed * 1000 + s, rank.size));
                  trainer.check_statistics(kSteps);
                }) == "");
        }
      }
    }
  }
}

TEST_CASE("a local step that fails fails the step that ends its accumulation, on all ranks") {
  const Way way = {.name = "local"};
  for (const char* backend : kBackends) {
    CHECK(train(backend, 2, WEFT_PROGRESS_THREAD, way, [&](Trainer& trainer, Rank& rank) {
            weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
            local.flags = WEFT_BEGIN_LOCAL;
            trainer.expect(weft_reducer_begin(trainer.reducer(), &local) == WEFT_OK, "begin");
            trainer.ready_all(0, rank.rank == 1 ? 1 : kParams);
            if (rank.rank == 1) {
              trainer.expect(weft_reducer_fail(trainer.reducer(), "no more memory") == WEFT_OK, "fail");
            } else {
              trainer.expect(weft_reducer_finish(trainer.reducer(), nullptr) == WEFT_OK, "finish");
            }
            trainer.expect(weft_reducer_begin(trainer.reducer(), nullptr) == WEFT_OK, "begin");
            trainer.ready_all(0, kParams);
            trainer.expect(weft_reducer_finish(trainer.reducer(), nullptr) == WEFT_ERR_STEP_FAILED, "finish");
            trainer.expect(trainer.text().find("rank 1: no more memory") != std::string::npos,
                           trainer.text());
            trainer.step(0, Draw(rank.size));
          }) == "");
  }
}

TEST_CASE("ranks that have joined take part in a step that another one fails") {
  const Way way = {.name = "join", .flags = WEFT_REDUCER_UNEVEN};
  for (const char* backend : kBackends) {
    CHECK(train(backend, 3, WEFT_PROGRESS_THREAD, way, [&](Trainer& trainer, Rank& rank) {
            if (rank.rank > 0) {
              for (int step = 0; step < 3; step++) {
                trainer.expect(weft_reducer_begin(trainer.reducer(), nullptr) == WEFT_OK, "begin");
                const bool fails = rank.rank == 1 && step == 1;
                trainer.ready_all(0, fails ? 2 : kParams);
                const weft_status ended = fails ? weft_reducer_fail(trainer.reducer(), "bad batch")
                                                : weft_reducer_finish(trainer.reducer(), nullptr);
                trainer.expect(ended == (step == 1 && !fails ? WEFT_ERR_STEP_FAILED : WEFT_OK),
                               trainer.text());
              }
            }
            weft_join_result joined{};
            joined.struct_size = sizeof joined;
            trainer.expect(weft_reducer_join(trainer.reducer(), nullptr, &joined) == WEFT_OK, "join");
            trainer.expect(joined.steps == (rank.rank == 0 ? 2u : 0u), "steps");
          }) == "");
  }
}

TEST_CASE("a step cannot be failed outside of one, or without a reducer") {
  const Way way = {.name = "state"};
  CHECK(weft_reducer_fail(nullptr, "text") == WEFT_ERR_ARG);
  CHECK(train("shm", 2, WEFT_PROGRESS_THREAD, way, [&](Trainer& trainer, Rank&) {
          trainer.expect(weft_reducer_fail(trainer.reducer(), nullptr) == WEFT_ERR_STATE, "no step");
          trainer.expect(weft_reducer_begin(trainer.reducer(), nullptr) == WEFT_OK, "begin");
          trainer.expect(weft_reducer_fail(trainer.reducer(), nullptr) == WEFT_OK, "fail");
          trainer.expect(
              trainer.text().rfind("20: rank 0: failed the step; rank 1: failed the step [", 0) == 0,
              trainer.text());
        }) == "");
}

TEST_CASE("the last bucket does not wait for a late finish on another rank") {
  const Way way = {.name = "late finish"};
  for (const char* backend : kBackends) {
    for (const bool fails : {false, true}) {
      std::atomic<bool> finished = false;
      CHECK(train(backend, 2, WEFT_PROGRESS_THREAD, way, [&](Trainer& trainer, Rank& rank) {
              trainer.expect(weft_reducer_begin(trainer.reducer(), nullptr) == WEFT_OK, "begin");
              trainer.ready_all(0, kParams);
              if (rank.rank == 1) {
                trainer.expect(weft_reducer_finish(trainer.reducer(), nullptr) == WEFT_OK, "finish");
                finished = true;
                return;
              }
              // Between its last gradient and finish, rank 0 waits for rank 1 by means of the program.
              const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
              while (!finished && std::chrono::steady_clock::now() < end)
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
              trainer.expect(finished, "rank 1's finish waits for rank 0's");
              if (fails) {
                trainer.expect(weft_reducer_fail(trainer.reducer(), "late") == WEFT_ERR_ABORTED, "fail");
              } else {
                trainer.expect(weft_reducer_finish(trainer.reducer(), nullptr) == WEFT_OK, "finish");
              }
            }) == "");
    }
  }
}

TEST_CASE("ranks that finish two reducers in different orders do not delay each other") {
  const Way way = {.name = "two reducers", .replan = WEFT_PLANNER_NONE};
  for (const char* backend : kBackends) {
    for (const int32_t progress : kModes) {
      weft_test::Findings findings;
      std::string problems[2][2];
      const std::string error = weft_test::run(backend, 2, progress, [&](Rank& rank) {
        Trainer trainers[2] = {{rank, way, &findings, &problems[rank.rank][0]},
                               {rank, way, &findings, &problems[rank.rank][1]}};
        auto fastest = std::chrono::steady_clock::duration::max();
        for (int step = 0; step < 6; step++) {
          const auto begin = std::chrono::steady_clock::now();
          for (Trainer& trainer : trainers) {
            trainer.expect(weft_reducer_begin(trainer.reducer(), nullptr) == WEFT_OK, "begin");
            trainer.ready_all(0, kParams);
          }
          for (const int i : {rank.rank, 1 - rank.rank})
            trainers[i].expect(weft_reducer_finish(trainers[i].reducer(), nullptr) == WEFT_OK, "finish");
          fastest = std::min(fastest, std::chrono::steady_clock::now() - begin);
        }
        if (!weft::test::kSlow) {
          trainers[0].expect(fastest < std::chrono::milliseconds(125), "each step waits");
        }
      });
      INFO(backend << ", progress " << progress);
      CHECK(error == "");
      for (const auto& of_rank : problems) {
        for (const std::string& problem : of_rank) CHECK(problem == "");
      }
    }
  }
}

TEST_CASE("a long text is truncated between UTF-8 characters") {
  const Way way = {.name = "text"};
  std::string text = "x";
  while (text.size() < 600) text += "\u00e4\u20ac";
  CHECK(train("shm", 2, WEFT_PROGRESS_THREAD, way, [&](Trainer& trainer, Rank& rank) {
          trainer.expect(weft_reducer_begin(trainer.reducer(), nullptr) == WEFT_OK, "begin");
          if (rank.rank == 0) {
            trainer.expect(weft_reducer_fail(trainer.reducer(), text.c_str()) == WEFT_OK, "fail");
          } else {
            trainer.ready_all(0, kParams);
            trainer.expect(weft_reducer_finish(trainer.reducer(), nullptr) == WEFT_ERR_STEP_FAILED, "finish");
          }
          weft_error error = WEFT_ERROR_INIT;
          weft_reducer_error(trainer.reducer(), &error);
          trainer.expect(
              std::string(error.text).rfind("rank 0: " + text.substr(0, 511) + " [rank 0 is ", 0) == 0,
              error.text);
        }) == "");
}

TEST_CASE("a rank that the others may have left behind fails the communicator instead of the step") {
  const Way way = {.name = "late"};
  CHECK(train("shm", 2, WEFT_PROGRESS_THREAD, way, [&](Trainer& trainer, Rank& rank) {
          trainer.step(0, Draw(rank.size));
          trainer.expect(weft_reducer_begin(trainer.reducer(), nullptr) == WEFT_OK, "begin");
          trainer.ready_all(0, kParams);
          for (uint64_t i = 0; i < kParams; i++) {
            // Rank 0 may have failed the communicator before rank 1 receives a result.
            const weft_status waited = weft_reducer_wait_param(trainer.reducer(), i, 0);
            trainer.expect(waited == WEFT_OK || rank.rank == 1, "wait_param");
          }
          if (rank.rank == 0) {
            trainer.expect(weft_reducer_fail(trainer.reducer(), "bad batch") == WEFT_ERR_ABORTED, "status");
            trainer.expect(trainer.text().find("rank 0: bad batch") != std::string::npos, trainer.text());
          } else {
            // The results have arrived, and the failure may have arrived as well.
            const weft_status ended = weft_reducer_finish(trainer.reducer(), nullptr);
            trainer.expect(ended == WEFT_OK || ended == WEFT_ERR_ABORTED, "status");
          }
          weft_status next = WEFT_OK;
          for (int step = 0; step < 2 && next == WEFT_OK; step++) {
            next = weft_reducer_begin(trainer.reducer(), nullptr);
            if (next != WEFT_OK) break;
            trainer.ready_all(0, kParams, false);
            next = weft_reducer_finish(trainer.reducer(), nullptr);
          }
          // A program that skips failed steps (WEFT_ERR_STEP_FAILED) must not go on with a failed
          // communicator.
          trainer.expect(next == WEFT_ERR_ABORTED, "status");
        }) == "");
}

TEST_CASE(
    "a fixed step fails alone if the rank has declared what is absent, otherwise the communicator fails") {
  const Way way = {.name = "fixed"};
  for (const bool knows : {true, false}) {
    std::barrier together(2);
    CHECK(train("shm", 2, WEFT_PROGRESS_THREAD, way, [&](Trainer& trainer, Rank& rank) {
            weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
            begin.flags = WEFT_BEGIN_FIXED;
            const uint64_t absent[] = {1, 2, 3};  // all of the first bucket
            trainer.step(0, Draw(rank.size));
            trainer.expect(weft_reducer_begin(trainer.reducer(), &begin) == WEFT_OK, "begin");
            trainer.expect(weft_reducer_absent(trainer.reducer(), absent, 3) == WEFT_OK, "absent");
            together.arrive_and_wait();
            // Rank 1's call is refused once rank 0 has failed the communicator.
            if (knows || rank.rank == 1)
              weft_reducer_ready(trainer.reducer(), 0, trainer.gradient(0), nullptr);
            if (rank.rank == 0) {
              const weft_status failed = weft_reducer_fail(trainer.reducer(), "bad batch");
              trainer.expect(failed == (knows ? WEFT_OK : WEFT_ERR_ABORTED), "fail");
            } else {
              const weft_status ended = weft_reducer_finish(trainer.reducer(), nullptr);
              trainer.expect(ended == (knows ? WEFT_ERR_STEP_FAILED : WEFT_ERR_ABORTED) ||
                                 (!knows && ended == WEFT_ERR_STATE),
                             "finish");
            }
            const weft_status next = weft_reducer_begin(trainer.reducer(), nullptr);
            trainer.expect(next == (knows ? WEFT_OK : WEFT_ERR_ABORTED), "begin");
            if (next != WEFT_OK) return;
            trainer.ready_all(0, kParams);
            trainer.expect(weft_reducer_finish(trainer.reducer(), nullptr) == WEFT_OK, "finish");
          }) == "");
  }
}

TEST_CASE("a rank that dies while another rank fails the step fails the communicator") {
  const Way way = {.name = "abort"};
  std::barrier together(3);
  CHECK(train("shm", 3, WEFT_PROGRESS_THREAD, way, [&](Trainer& trainer, Rank& rank) {
          trainer.step(0, Draw(rank.size));
          together.arrive_and_wait();
          const weft_status begun = weft_reducer_begin(trainer.reducer(), nullptr);
          if (rank.rank == 2) weft_comm_abort(rank.comm, "test");
          trainer.expect(begun == WEFT_OK || begun == WEFT_ERR_ABORTED, "begin");
          if (rank.rank == 2 || begun != WEFT_OK) return;
          trainer.ready_all(0, 2, false);
          trainer.expect(weft_reducer_fail(trainer.reducer(), "bad batch") == WEFT_ERR_ABORTED, "fail");
        }) == "");
}

}  // namespace capi_step_fail
