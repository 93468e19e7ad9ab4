// A training loop that loses ranks at exact places and continues: shrink, rebind, and the step again,
// retained or recomputed. Every rank records how many ranks each committed step was averaged over. All
// survivors have the same history, and every gradient of it was correct.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fault/processes.h"
#include "support/catch.h"

using weft_test::Joined;
using weft_test::Processes;
using weft_test::Reporter;
using weft_test::Word;

namespace {

constexpr int kBoundMs = 20000;
constexpr uint64_t kSteps = 12;
constexpr int64_t kShapes[] = {30'000, 7, 5'000};
constexpr uint64_t kParams = 3;

struct Variant {
  const char* name;
  int32_t mode;
  uint64_t reducer_flags;
  uint64_t finish_flags;
  int32_t reduce_dtype = 0;
  weft_planner replan = WEFT_PLANNER_NONE;  // failpoints count operations

  bool retains() const { return (reducer_flags & WEFT_REDUCER_RETAIN) != 0; }
  bool replans() const { return replan != WEFT_PLANNER_NONE; }
};
constexpr Variant kVariants[] = {
    {"copy, retained", WEFT_GRADIENT_COPY, WEFT_REDUCER_RETAIN, 0},
    {"view, retained", WEFT_GRADIENT_VIEW, WEFT_REDUCER_RETAIN, 0},
    {"copy, committed", WEFT_GRADIENT_COPY, 0, WEFT_FINISH_COMMIT},
    {"view", WEFT_GRADIENT_VIEW, 0, 0},
    {"view, retained, in bf16", WEFT_GRADIENT_VIEW, WEFT_REDUCER_RETAIN, 0, WEFT_DTYPE_BF16},
};
constexpr Variant kReplanning[] = {
    {"copy, retained, re-planned", WEFT_GRADIENT_COPY, WEFT_REDUCER_RETAIN, 0, 0, WEFT_PLANNER_LIMITS},
    {"view, re-planned", WEFT_GRADIENT_VIEW, 0, 0, 0, WEFT_PLANNER_LIMITS},
};

class Trainer {
 public:
  Trainer(Joined& joined, int rank, int size, const Variant& variant)
      : context_(joined.context), comm_(joined.comm), rank_(rank), variant_(variant) {
    for (int r = 0; r < size; r++) members_.push_back(r);
    weft_param params[kParams] = {};
    const char* const names[] = {"a", "b", "c"};
    for (uint64_t i = 0; i < kParams; i++) {
      params[i] = {sizeof(weft_param), names[i], WEFT_DTYPE_F32, 1, &kShapes[i], nullptr, 0, 0, 0};
    }
    const uint64_t limit = 0;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = kParams;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    options.mode = variant.mode;
    options.flags = variant.reducer_flags | WEFT_REDUCER_KEEP_VALUES;
    options.replan = variant.replan;
    options.reduce_dtype = variant.reduce_dtype;
    expect(weft_reducer_create(comm_, &options, &reducer_, &error_) == WEFT_OK, "create");
    if (!failures_.empty()) return;
    for (uint64_t i = 0; i < kParams; i++) {
      own_.emplace_back(static_cast<size_t>(kShapes[i]));
      gradients_.push_back(own_.back().data());
    }
    look();
  }
  ~Trainer() {
    weft_reducer_destroy(&reducer_);
    weft_comm_destroy(&comm_);
    weft_context_destroy(&context_);
  }

  // Runs all steps. Returns their history, or the failures.
  std::string run() {
    for (uint64_t step = 0; step < kSteps && failures_.empty();) {
      if (compute(step) == WEFT_OK) {
        note(step++);
      } else if (recover(&step) && again_) {
        again_ = false;
        note(step++);
      }
    }
    return failures_.empty() ? history_ : failures_;
  }

 private:
  // Looks up the views.
  void look() {
    for (uint64_t i = 0; variant_.mode == WEFT_GRADIENT_VIEW && i < kParams; i++) {
      void* view = nullptr;
      expect(weft_reducer_grad_view(reducer_, i, &view) == WEFT_OK, "grad_view");
      gradients_[i] = static_cast<float*>(view);
    }
  }

  float value(int rank, uint64_t step, uint64_t i) const {
    return static_cast<float>((rank + 1) * static_cast<int>(step + 1) + static_cast<int>(i % 7));
  }
  void expect(bool ok, const std::string& what) {
    if (!ok && failures_.empty())
      failures_ = "rank " + std::to_string(rank_) + ": " + what + ": " + error_.text;
  }

  weft_status compute(uint64_t step) {
    weft_status status = weft_reducer_begin(reducer_, nullptr);
    if (status != WEFT_OK) return status;
    look();
    for (uint64_t p = kParams; p-- > 0;) {
      for (int64_t i = 0; i < kShapes[p]; i++)
        gradients_[p][i] = value(rank_, step, static_cast<uint64_t>(i));
      weft_reducer_ready(reducer_, p, gradients_[p], nullptr);  // finish reports a failure
    }
    weft_finish_options options = WEFT_FINISH_OPTIONS_INIT;
    options.flags = variant_.finish_flags;
    return weft_reducer_finish(reducer_, &options);
  }

  // Checks a completed step: every gradient is the mean over the members.
  void note(uint64_t step) {
    for (uint64_t p = 0; p < kParams; p++) {
      for (int64_t i = 0; i < kShapes[p]; i++) {
        float sum = 0;
        for (const int m : members_) sum += value(m, step, static_cast<uint64_t>(i));
        // Weft averages by multiplying with the inverse of the size.
        const float mean = sum * (1.0f / static_cast<float>(members_.size()));
        // In bf16 the hosts' sums are rounded, and so is their sum.
        const float bound = variant_.reduce_dtype == WEFT_DTYPE_BF16 ? mean * 0x1p-7f : 0.0f;
        if (std::abs(gradients_[p][i] - mean) > bound) {
          return expect(false, "step " + std::to_string(step) + " has a wrong gradient " + std::to_string(p));
        }
      }
    }
    history_.resize(step);
    history_ += static_cast<char>('0' + members_.size());
  }

  // Shrinks until a communicator works and the reducer is bound to it. again_: a retry has repeated the
  // retained step.
  bool recover(uint64_t* step) {
    for (int attempt = 0; attempt < 10; attempt++) {
      weft_comm* next = nullptr;
      weft_status status = weft_comm_shrink(comm_, nullptr, &next, &error_);
      expect(status == WEFT_OK, "shrink");
      if (status != WEFT_OK) return false;
      weft_comm_destroy(&comm_);
      comm_ = next;
      if (weft_reducer_rebind(reducer_, comm_, &error_) != WEFT_OK) continue;
      if (!gather_members()) continue;
      weft_verdict verdict{};
      verdict.struct_size = sizeof verdict;
      expect(weft_reducer_verdict(reducer_, &verdict) == WEFT_OK, "verdict");
      // A step that finish has committed, or whose gradients are retained, stays committed. Otherwise the
      // last step may be undone.
      const bool commits = (variant_.finish_flags & WEFT_FINISH_COMMIT) != 0 || variant_.retains();
      expect(verdict.next_step == *step || verdict.next_step == *step + 1 ||
                 (!commits && verdict.next_step + 1 == *step),
             "the verdict is of another step");
      expect(verdict.last_committed_step + 1 == verdict.next_step, "committed and next step");
      const float* const before = gradients_[0];
      look();
      expect(gradients_[0] == before || variant_.replans(), "the view has moved");
      if (verdict.next_step > *step) note_committed(*step);
      *step = verdict.next_step;
      if (verdict.can_retry == 0) return true;
      expect(variant_.retains(), "nothing was to be retained");
      again_ = weft_reducer_retry(reducer_, nullptr) == WEFT_OK;
      if (again_) return true;
    }
    expect(false, "ten attempts");
    return false;
  }

  // The commit failed on this rank, but the step was committed, averaged over the members of that time.
  void note_committed(uint64_t step) {
    history_.resize(step);
    history_ += static_cast<char>('0' + members_before_.size());
  }

  bool gather_members() {
    weft_comm_info info{};
    info.struct_size = sizeof info;
    weft_comm_query(comm_, &info);
    std::vector<int32_t> ranks(static_cast<size_t>(info.size));
    const int32_t mine = rank_;
    if (weft_all_gather(comm_, &mine, ranks.data(), 1, WEFT_DTYPE_I32, nullptr, nullptr) != WEFT_OK)
      return false;
    members_before_ = std::exchange(members_, std::vector<int>(ranks.begin(), ranks.end()));
    return true;
  }

  weft_context* context_;
  weft_comm* comm_;
  const int rank_;
  const Variant& variant_;
  std::vector<int> members_, members_before_;
  weft_reducer* reducer_ = nullptr;
  weft_error error_ = WEFT_ERROR_INIT;
  std::vector<std::vector<float>> own_;
  std::vector<float*> gradients_;
  bool again_ = false;
  std::string history_, failures_;
};

// Trains with ranks of which some have failpoints. The ranks without failpoints end with the same history,
// which is returned.
std::string train(const std::string& backend, int size, const Variant& variant,
                  const std::vector<std::pair<int, std::string>>& failpoints) {
  const std::string store = weft_test::store_name();
  Processes ranks(size, [&](int rank, Reporter& reporter) {
    for (const auto& [victim, points] : failpoints) {
      if (victim == rank) setenv("WEFT_FAILPOINTS", points.c_str(), 1);
    }
    Joined joined(backend.c_str(), rank, size, store);
    if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
    weft_error error = WEFT_ERROR_INIT;
    {
      Trainer trainer(joined, rank, size, variant);
      std::snprintf(error.text, sizeof error.text, "%s", trainer.run().c_str());
    }
    reporter.end(WEFT_OK, error);
  });
  std::string history;
  for (int r = 0; r < size; r++) {
    if (std::any_of(failpoints.begin(), failpoints.end(), [&](const auto& f) { return f.first == r; }))
      continue;
    Word word;
    INFO("rank " << r);
    REQUIRE(ranks.last_word(r, kBoundMs, &word));
    if (history.empty()) history = word.text;
    INFO(word.text);
    CHECK(history == word.text);
    CHECK(std::strlen(word.text) == kSteps);
    CHECK(ranks.exited_cleanly(r, kBoundMs));
  }
  return history;
}

}  // namespace

TEST_CASE("training continues without a rank that dies at any place of a step") {
  for (const std::string& backend : weft_test::backends()) {
    for (const Variant& variant : kVariants) {
      // Places in a step of three collectives (and a commit), early and late.
      for (const char* const place : {"operation@8=kill", "operation@9=kill", "operation@10=kill",
                                      "operation@11=kill", "stage@1.1=kill"}) {
        INFO(backend << ", " << variant.name << ", " << place);
        const std::string history = train(backend, 3, variant, {{1, place}});
        CHECK(history.back() == '2');
        CHECK(std::is_sorted(history.rbegin(), history.rend()));
      }
    }
  }
}

TEST_CASE("training continues without a rank that dies in the re-plan at the second step's beginning") {
  for (const std::string& backend : weft_test::backends()) {
    for (const Variant& variant : kReplanning) {
      // The votes and the plan of the re-plan, the agreement of the ranks after it, and the second step's
      // collectives.
      for (const char* const place :
           {"operation@4=kill", "operation@5=kill", "operation@6=kill", "operation@7=kill"}) {
        INFO(backend << ", " << variant.name << ", " << place);
        const std::string history = train(backend, 3, variant, {{0, place}});
        CHECK(history.back() == '2');
      }
    }
  }
}

TEST_CASE("training survives a second death, also in the middle of the recovery from the first") {
  for (const std::string& backend : weft_test::backends()) {
    for (const Variant& variant : kVariants) {
      for (const char* const second : {"forming@1=kill", "operation@12=kill"}) {
        INFO(backend << ", " << variant.name << ", " << second);
        const std::string history = train(backend, 5, variant, {{0, "operation@9=kill"}, {3, second}});
        CHECK(history.back() == '3');
        CHECK(std::is_sorted(history.rbegin(), history.rend()));
      }
    }
  }
}
