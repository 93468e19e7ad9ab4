// Ranks that find the same error and exit because of it. Each of them gets that error, however fast another
// rank has exited, and no rank reports a death instead.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fault/processes.h"
#include "support/catch.h"

using weft_test::Joined;
using weft_test::Processes;
using weft_test::Reporter;
using weft_test::Terms;
using weft_test::Word;

namespace {

constexpr int kBoundMs = 20'000;
constexpr int kRanks = 4;
constexpr int kAttempts = 25;  // a rank outruns the others only with the right timing

bool has(const Word& word, const char* part) {
  return std::strstr(word.text, part) != nullptr;
}

struct Model {
  std::vector<float> value = std::vector<float>(1000), gradient = std::vector<float>(1000);
  int64_t shape = 1000;
  weft_param param{};

  explicit Model(const char* name) {
    param.struct_size = sizeof param;
    param.name = name;
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &shape;
    param.gradient = gradient.data();
    param.parameter = value.data();
  }
  weft_status create(weft_comm* comm, weft_reducer** reducer, weft_error* error, uint64_t flags = 0) {
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    options.flags = flags;
    return weft_reducer_create(comm, &options, reducer, error);
  }
};

// Waits until the communicator has failed, at most 5 s.
weft_status await_failure(weft_comm* comm, weft_error* error) {
  weft_status status = WEFT_OK;
  for (int i = 0; i < 1000 && status == WEFT_OK; i++) {
    status = weft_comm_error(comm, error);
    if (status == WEFT_OK) ::poll(nullptr, 0, 5);
  }
  return status;
}

// Rank 0 has a different parameter, so reducer_create fails on all ranks. With `check` it has a different
// value instead, and weft_reducer_check fails. All ranks but the last exit as soon as they have the error, as
// a program does that prints it. The last one waits for the failure of its communicator.
void disagree(int rank, bool check, const std::string& store, Reporter& reporter) {
  Joined joined("shm", rank, kRanks, store);
  if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
  Model model(rank == 0 && !check ? "other" : "name");
  weft_reducer* reducer = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  weft_status status = model.create(joined.comm, &reducer, &error);
  if (check && status == WEFT_OK) {
    if (rank == 0) model.value[7] = 3;
    status = weft_reducer_check(reducer, &error);
  }
  if (rank < kRanks - 1 || status != WEFT_ERR_MISMATCH) {
    reporter.end(status, error);
    _exit(0);
  }
  status = await_failure(joined.comm, &error);
  reporter.end(status, error);
  _exit(0);
}

void attempt(bool check, const char* what) {
  const std::string store = weft_test::store_name();
  Processes ranks(kRanks, [&](int rank, Reporter& reporter) { disagree(rank, check, store, reporter); });
  for (int r = 0; r < kRanks; r++) {
    INFO("rank " << r);
    Word word;
    REQUIRE(ranks.last_word(r, kBoundMs, &word));
    INFO(word.text);
    CHECK(word.status == WEFT_ERR_MISMATCH);
    CHECK(has(word, what));
    CHECK(!has(word, "is gone"));
    if (r == kRanks - 1) CHECK(has(word, "has ended because of this error"));
  }
}

}  // namespace

TEST_CASE("every rank gets the mismatch of its reducer, also when the ranks before it have exited") {
  setenv("WEFT_SHM_THRESHOLDS", "off", 1);
  for (int i = 0; i < kAttempts; i++) {
    INFO("attempt " << i);
    attempt(false, "'other'");
  }
}

TEST_CASE(
    "every rank gets the difference that a check has found, also when the ranks before it have exited") {
  setenv("WEFT_SHM_THRESHOLDS", "off", 1);
  for (int i = 0; i < kAttempts; i++) {
    INFO("attempt " << i);
    attempt(true, "do not hold the value of ranks");
  }
}

TEST_CASE(
    "a rank that continues after a mismatch and is killed later is reported as dead, and nothing else") {
  setenv("WEFT_SHM_THRESHOLDS", "off", 1);
  const std::string store = weft_test::store_name();
  Processes ranks(2, [&](int rank, Reporter& reporter) {
    Joined joined("shm", rank, 2, store);
    if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
    Model model(rank == 0 ? "other" : "name");
    weft_reducer* reducer = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    const weft_status created = model.create(joined.comm, &reducer, &error);
    if (created != WEFT_ERR_MISMATCH) return reporter.end(created, error);
    const weft_status together = weft_barrier(joined.comm, nullptr, nullptr);
    if (together != WEFT_OK) return reporter.end(together, error);
    reporter.mark(1);
    if (rank == 0) {
      for (;;) pause();
    }
    reporter.end(await_failure(joined.comm, &error), error);
  });
  REQUIRE(ranks.wait_for_mark(0, 1, kBoundMs));
  REQUIRE(ranks.wait_for_mark(1, 1, kBoundMs));
  ranks.kill(0);
  Word word;
  REQUIRE(ranks.last_word(1, kBoundMs, &word));
  INFO(word.text);
  CHECK(word.status == WEFT_ERR_PEER_FAILED);
  CHECK(word.failed_rank == 0);
  CHECK(!has(word, "'other'"));
}

TEST_CASE("a wrong size on one rank ends all ranks at once, by its number") {
  struct Wrong {
    int rank;
    int size;
  };
  for (const Wrong wrong : {Wrong{0, 4}, {1, 4}, {2, 4}, {0, 2}, {1, 2}}) {
    INFO("rank " << wrong.rank << " says " << wrong.size);
    const std::string store = weft_test::store_name();
    Terms terms;
    terms.init_timeout_ms = 60'000;
    const uint64_t begin = weft_test::now_ms();
    Processes ranks(3, [&](int rank, Reporter& reporter) {
      Joined joined("shm", rank, rank == wrong.rank ? wrong.size : 3, store, terms);
      reporter.end(joined.status, joined.error);
    });
    for (int r = 0; r < 3; r++) {
      INFO("rank " << r);
      Word word;
      REQUIRE(ranks.last_word(r, kBoundMs, &word));
      INFO(word.text);
      CHECK(word.status == WEFT_ERR_MISMATCH);
      CHECK(has(word, "says that there are"));
      CHECK(has(word, std::to_string(wrong.size).c_str()));
      CHECK(has(word, "WEFT_SIZE"));
    }
    CHECK(weft_test::now_ms() - begin < static_cast<uint64_t>(kBoundMs));
  }
}

TEST_CASE("a rank that leaves amid the others' steps leaves a hint at uneven inputs") {
  for (const uint64_t flags : {uint64_t{0}, WEFT_REDUCER_UNEVEN}) {
    INFO("flags " << flags);
    const std::string store = weft_test::store_name();
    Processes ranks(2, [&](int rank, Reporter& reporter) {
      Joined joined("shm", rank, 2, store);
      if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
      Model model("name");
      weft_reducer* reducer = nullptr;
      weft_error error = WEFT_ERROR_INIT;
      weft_status status = model.create(joined.comm, &reducer, &error, flags);
      for (int step = 0; step < (rank == 0 ? 1 : 3) && status == WEFT_OK; step++) {
        status = weft_reducer_begin(reducer, nullptr);
        if (status == WEFT_OK) status = weft_reducer_ready(reducer, 0, model.gradient.data(), nullptr);
        if (status == WEFT_OK) status = weft_reducer_finish(reducer, nullptr);
      }
      if (status != WEFT_OK) weft_reducer_error(reducer, &error);
      reporter.end(status, error);
      weft_reducer_destroy(&reducer);
      weft_comm_destroy(&joined.comm);
    });
    Word word;
    REQUIRE(ranks.last_word(0, kBoundMs, &word));
    CHECK(word.status == WEFT_OK);
    REQUIRE(ranks.last_word(1, kBoundMs, &word));
    INFO(word.text);
    CHECK(word.status == WEFT_ERR_PEER_FAILED);
    CHECK(has(word, "weft_reducer_join"));
    CHECK(has(word, "WEFT_REDUCER_UNEVEN") == (flags == 0));
  }
}
