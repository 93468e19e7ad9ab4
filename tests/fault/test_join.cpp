// A rank dies or stops while others are inside weft_reducer_join, or is inside join itself. Every join and
// every step of the others ends in time and names that rank, and the remaining ranks continue without it.
#include <string>
#include <utility>
#include <vector>

#include "fault/processes.h"
#include "support/catch.h"

using weft_test::Joined;
using weft_test::Processes;
using weft_test::Reporter;
using weft_test::Terms;
using weft_test::Word;

namespace {

constexpr int kBoundMs = 10000;
constexpr int kSetupMs = 30000;
constexpr int kRanks = 3;
constexpr int kVictim = 1;
constexpr int64_t kShapes[] = {40'000, 5};

enum class Place { kBetweenSteps, kInStep, kInJoin };
const char* name(Place place) {
  return place == Place::kInJoin   ? "inside join"
         : place == Place::kInStep ? "inside a step"
                                   : "between steps";
}

[[noreturn]] void stay(Reporter& reporter) {
  reporter.mark(1);
  for (;;) pause();
}

class Member {
 public:
  explicit Member(Joined& joined) : context_(joined.context), comm_(joined.comm) {
    weft_param params[2] = {};
    const char* const names[] = {"a", "b"};
    for (uint64_t i = 0; i < 2; i++) {
      params[i].struct_size = sizeof params[i];
      params[i].name = names[i];
      params[i].dtype = WEFT_DTYPE_F32;
      params[i].ndim = 1;
      params[i].shape = &kShapes[i];
      gradients_[i].resize(static_cast<size_t>(kShapes[i]), 1.0f);
    }
    const uint64_t limit = 0;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = 2;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    options.flags = WEFT_REDUCER_UNEVEN;
    created = weft_reducer_create(comm_, &options, &reducer_, &error);
  }
  ~Member() {
    weft_reducer_destroy(&reducer_);
    weft_comm_destroy(&comm_);
    weft_context_destroy(&context_);
  }

  // halts: if set, the rank stops after its first gradient and does not continue.
  weft_status step(Reporter* halts = nullptr) {
    weft_status status = weft_reducer_begin(reducer_, nullptr);
    if (status == WEFT_OK) status = weft_reducer_ready(reducer_, 1, gradients_[1].data(), nullptr);
    if (halts != nullptr) stay(*halts);
    if (status == WEFT_OK) status = weft_reducer_ready(reducer_, 0, gradients_[0].data(), nullptr);
    return status == WEFT_OK ? weft_reducer_finish(reducer_, nullptr) : status;
  }
  weft_status join() {
    result = {};
    result.struct_size = sizeof result;
    return weft_reducer_join(reducer_, nullptr, &result);
  }
  weft_status shrink() {
    weft_comm* next = nullptr;
    weft_status status = weft_comm_shrink(comm_, nullptr, &next, &error);
    if (status != WEFT_OK) return status;
    weft_comm_destroy(&comm_);
    comm_ = next;
    return weft_reducer_rebind(reducer_, comm_, &error);
  }
  void look() { weft_reducer_error(reducer_, &error); }

  weft_status created = WEFT_OK;
  weft_error error = WEFT_ERROR_INIT;
  weft_join_result result{};

 private:
  weft_context* context_;
  weft_comm* comm_;
  weft_reducer* reducer_ = nullptr;
  std::vector<float> gradients_[2];
};

// Rank 0 joins from the beginning. One of ranks 1 and 2 joins as well, and the other trains.
void run(Member& member, int rank, Place place, Reporter& reporter) {
  const int trains = place == Place::kInJoin ? 2 : kVictim;
  weft_status status = member.created;
  if (rank == kVictim && rank == trains) {
    for (int i = 0; i < 3 && status == WEFT_OK; i++) status = member.step();
    if (status == WEFT_OK && place == Place::kInStep) status = member.step(&reporter);
    if (status == WEFT_OK) stay(reporter);
  } else if (rank == trains) {
    for (int i = 0; status == WEFT_OK; i++) {
      if (i == 3) reporter.mark(1);  // all others are inside join, because they have taken part in steps
      status = member.step();
    }
  } else if (status == WEFT_OK) {
    status = member.join();
  }
  member.look();
  // The victim's result comes first; then the remaining ranks continue.
  if (rank == kVictim) return reporter.end(status, member.error);
  reporter.mark(status == WEFT_ERR_PEER_FAILED ? 2 : 1);
  const weft_error failed = member.error;
  status = member.shrink();
  if (status == WEFT_OK && rank == trains) status = member.step();
  if (status == WEFT_OK) status = member.join();
  const bool right = member.result.steps == (rank != trains && trains == 2 ? 1 : 0) &&
                     (trains != 2 || member.result.last_active == 1);
  if (status != WEFT_OK) member.look();
  reporter.end(status == WEFT_OK && !right ? WEFT_ERR_INTERNAL : status,
               status == WEFT_OK ? failed : member.error);
}

}  // namespace

TEST_CASE("a rank that dies or stops ends every join in time, by name, and the others continue") {
  for (const std::string& backend : weft_test::backends()) {
    for (const Place place : {Place::kBetweenSteps, Place::kInStep, Place::kInJoin}) {
      for (const int signal : {SIGKILL, SIGSTOP}) {
        INFO(backend << ", " << name(place) << ", signal " << signal);
        const std::string store = weft_test::store_name();
        Terms terms;
        terms.op_timeout_ms = 300'000;
        terms.heartbeat_timeout_ms = 1000;
        terms.progress = place == Place::kInStep ? WEFT_PROGRESS_CALLER : WEFT_PROGRESS_THREAD;
        Processes ranks(kRanks, [&](int rank, Reporter& reporter) {
          Joined joined(backend.c_str(), rank, kRanks, store, terms);
          if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
          Member member(joined);
          run(member, rank, place, reporter);
        });
        REQUIRE(ranks.wait_for_mark(place == Place::kInJoin ? 2 : kVictim, 1, kSetupMs));
        ranks.kill(kVictim, signal);
        Word word;
        for (const int r : {0, 2}) {
          REQUIRE(ranks.wait_for_mark(r, 2, kBoundMs));
          REQUIRE(ranks.last_word(r, kBoundMs, &word));
          INFO("rank " << r << ": " << word.text);
          CHECK(word.status == WEFT_OK);
          CHECK(word.failed_rank == kVictim);
          CHECK(std::string(word.text).find("rank " + std::to_string(kVictim)) != std::string::npos);
          CHECK(ranks.exited_cleanly(r, kBoundMs));
        }
        if (signal == SIGKILL || place != Place::kInJoin) continue;
        ranks.kill(kVictim, SIGCONT);
        REQUIRE(ranks.last_word(kVictim, kBoundMs, &word));
        INFO("the stopped rank: " << word.text);
        CHECK(word.status == WEFT_ERR_PEER_FAILED);
      }
    }
  }
}
