// Shrink with real processes: ranks are killed, also while the survivors shrink, and the survivors continue.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "fault/processes.h"
#include "support/catch.h"

using weft_test::Joined;
using weft_test::Processes;
using weft_test::Reporter;
using weft_test::Word;

namespace {

constexpr int kBoundMs = 10000;
constexpr int kSetupMs = 30000;

// All-reduces until the communicator fails.
void work_until_failed(weft_comm* comm, Reporter& reporter, int mark) {
  std::vector<float> data(1000, 1.0f);
  for (int i = 0;; i++) {
    if (weft_all_reduce(comm, data.data(), data.data(), data.size(), WEFT_DTYPE_F32, WEFT_OP_MAX, nullptr,
                        nullptr) != WEFT_OK) {
      return;
    }
    if (i == 20) reporter.mark(mark);
  }
}

// Sums the old rank numbers of the survivors, which identifies them.
weft_status sum_ranks(weft_comm* comm, int old_rank, int64_t* sum) {
  const int64_t mine = old_rank;
  return weft_all_reduce(comm, &mine, sum, 1, WEFT_DTYPE_I64, WEFT_OP_SUM, nullptr, nullptr);
}

// Shrinks `comm`, and destroys it. The final word reports the result.
weft_comm* shrink(weft_comm* comm, uint64_t flags, Reporter& reporter) {
  weft_shrink_options options = WEFT_SHRINK_OPTIONS_INIT;
  options.timeout_ms = 20000;
  options.flags = flags;
  weft_comm* next = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  const weft_status status = weft_comm_shrink(comm, &options, &next, &error);
  if (status != WEFT_OK) reporter.end(status, error);
  weft_comm_destroy(&comm);
  return next;
}

// Runs `size` ranks. Those in `victims` are killed one after the other, each after the others have shrunk.
// `late_victim` dies by itself in the middle of the first shrink. The survivors all-reduce.
void kill_and_go_on(const std::string& backend, int size, const std::vector<int>& victims,
                    int late_victim = -1) {
  const std::string store = weft_test::store_name();
  Processes ranks(size, [&](int rank, Reporter& reporter) {
    if (rank == late_victim) setenv("WEFT_FAILPOINTS", "forming@1=kill", 1);
    Joined joined(backend.c_str(), rank, size, store);
    if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
    weft_comm* comm = joined.comm;
    for (size_t round = 0; round < victims.size(); round++) {
      work_until_failed(comm, reporter, static_cast<int>(round) + 1);
      comm = shrink(comm, 0, reporter);
      if (comm == nullptr) return;
    }
    int64_t sum = 0;
    weft_error error = WEFT_ERROR_INIT;
    weft_status status = sum_ranks(comm, rank, &sum);
    if (status != WEFT_OK) {
      weft_comm_error(comm, &error);
    } else {
      status = static_cast<weft_status>(1000 + sum);
    }
    weft_comm_destroy(&comm);
    weft_context_destroy(&joined.context);
    reporter.end(status, error);
  });
  int64_t expected = size * (size - 1) / 2 - std::max(late_victim, 0);
  for (size_t round = 0; round < victims.size(); round++) {
    for (int r = 0; r < size; r++) {
      bool dead = false;
      for (size_t before = 0; before < round; before++) dead |= victims[before] == r;
      if (!dead) REQUIRE(ranks.wait_for_mark(r, static_cast<int>(round) + 1, kSetupMs));
    }
    ranks.kill(victims[round]);
    expected -= victims[round];
  }
  for (int r = 0; r < size; r++) {
    bool dead = r == late_victim;
    for (const int victim : victims) dead |= victim == r;
    if (dead) continue;
    Word word;
    INFO("rank " << r);
    REQUIRE(ranks.last_word(r, kBoundMs, &word));
    INFO(word.text);
    CHECK(word.status == 1000 + expected);
    CHECK(ranks.exited_cleanly(r, kBoundMs));
  }
}

}  // namespace

TEST_CASE("the survivors of a killed rank shrink and continue") {
  for (const std::string& backend : weft_test::backends()) {
    INFO(backend);
    kill_and_go_on(backend, 3, {1});
    kill_and_go_on(backend, 4, {0});
    kill_and_go_on(backend, 8, {3});
  }
}

TEST_CASE("communicators are shrunk again and again, also without the first rank") {
  for (const std::string& backend : weft_test::backends()) {
    INFO(backend);
    kill_and_go_on(backend, 5, {0, 3, 1});
  }
}

TEST_CASE("a rank that dies while the survivors shrink is left out as well") {
  for (const std::string& backend : weft_test::backends()) {
    INFO(backend);
    for (const int late : {2, 4}) kill_and_go_on(backend, 6, {0}, late);
  }
}

TEST_CASE("a survivor that cannot create its communicator is named at once, by its rank in the old one") {
  for (const std::string& backend : weft_test::backends()) {
    INFO(backend);
    const std::string store = weft_test::store_name();
    Processes ranks(4, [&](int rank, Reporter& reporter) {
      if (rank == 2) setenv("WEFT_FAILPOINTS", "forming@1=fail", 1);
      Joined joined(backend.c_str(), rank, 4, store);
      if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
      work_until_failed(joined.comm, reporter, 1);
      shrink(joined.comm, 0, reporter);
      weft_context_destroy(&joined.context);
    });
    for (int r = 0; r < 4; r++) REQUIRE(ranks.wait_for_mark(r, 1, kSetupMs));
    ranks.kill(0);
    for (const int r : {1, 2, 3}) {
      Word word;
      INFO("rank " << r);
      REQUIRE(ranks.last_word(r, kBoundMs, &word));  // half of shrink's deadline
      INFO(word.text);
      CHECK(word.status == WEFT_ERR_SYSTEM);
      const std::string text = word.text;
      CHECK(text.find("failpoint forming") != std::string::npos);
      if (r == 2) continue;
      CHECK(word.failed_rank == 2);
      CHECK(text.find("rank 2: ") != std::string::npos);
      CHECK(text.find("of the communicator that is shrunk") != std::string::npos);
      CHECK(ranks.exited_cleanly(r, kBoundMs));
    }
  }
}

TEST_CASE("survivors without a majority all get an error") {
  for (const std::string& backend : weft_test::backends()) {
    INFO(backend);
    const std::string store = weft_test::store_name();
    Processes ranks(4, [&](int rank, Reporter& reporter) {
      Joined joined(backend.c_str(), rank, 4, store);
      if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
      work_until_failed(joined.comm, reporter, 1);
      weft_error error = WEFT_ERROR_INIT;
      weft_comm* next = nullptr;
      const weft_status status = weft_comm_shrink(joined.comm, nullptr, &next, &error);
      weft_comm_destroy(&next);
      weft_comm_destroy(&joined.comm);
      weft_context_destroy(&joined.context);
      reporter.end(status, error);
    });
    for (int r = 0; r < 4; r++) REQUIRE(ranks.wait_for_mark(r, 1, kSetupMs));
    for (const int victim : {0, 3}) ranks.kill(victim);
    for (const int r : {1, 2}) {
      Word word;
      REQUIRE(ranks.last_word(r, kBoundMs, &word));
      INFO("rank " << r << ": " << word.text);
      CHECK(word.status == WEFT_ERR_MINORITY);
      CHECK(ranks.exited_cleanly(r, kBoundMs));
    }
  }
}

TEST_CASE("one of two ranks continues alone only if the program allows it") {
  for (const std::string& backend : weft_test::backends()) {
    INFO(backend);
    const std::string store = weft_test::store_name();
    Processes ranks(2, [&](int rank, Reporter& reporter) {
      Joined joined(backend.c_str(), rank, 2, store);
      if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
      work_until_failed(joined.comm, reporter, 1);
      weft_error error = WEFT_ERROR_INIT;
      weft_comm* alone = nullptr;
      const weft_status refused = weft_comm_shrink(joined.comm, nullptr, &alone, &error);
      if (refused != WEFT_ERR_MINORITY || alone != nullptr) return reporter.end(refused, error);
      alone = shrink(joined.comm, WEFT_SHRINK_LAST_OF_TWO, reporter);
      if (alone == nullptr) return;
      int64_t sum = -1;
      const weft_status status = sum_ranks(alone, rank, &sum);
      weft_comm_destroy(&alone);
      weft_context_destroy(&joined.context);
      reporter.end(status == WEFT_OK ? static_cast<weft_status>(1000 + sum) : status, error);
    });
    REQUIRE(ranks.wait_for_mark(0, 1, kSetupMs));
    REQUIRE(ranks.wait_for_mark(1, 1, kSetupMs));
    ranks.kill(0);
    Word word;
    REQUIRE(ranks.last_word(1, kBoundMs, &word));
    INFO(word.text);
    CHECK(word.status == 1001);
    CHECK(ranks.exited_cleanly(1, kBoundMs));
  }
}

TEST_CASE(
    "a working or already shrunk communicator cannot be shrunk, and all ranks of an aborted one continue") {
  for (const std::string& backend : weft_test::backends()) {
    INFO(backend);
    const std::string store = weft_test::store_name();
    Processes ranks(2, [&](int rank, Reporter& reporter) {
      Joined joined(backend.c_str(), rank, 2, store);
      if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
      weft_error error = WEFT_ERROR_INIT;
      weft_comm* next = nullptr;
      weft_status status = weft_comm_shrink(joined.comm, nullptr, &next, &error);
      if (status != WEFT_ERR_STATE) return reporter.end(status, error);
      weft_barrier(joined.comm, nullptr, nullptr);  // both shrinks were refused
      if (rank == 0) weft_comm_abort(joined.comm, "to begin anew");
      work_until_failed(joined.comm, reporter, 1);
      status = weft_comm_shrink(joined.comm, nullptr, &next, &error);
      if (status != WEFT_OK) return reporter.end(status, error);
      weft_comm* third = nullptr;
      status = weft_comm_shrink(joined.comm, nullptr, &third, &error);
      if (status != WEFT_ERR_STATE) return reporter.end(status, error);
      int64_t sum = -1;
      status = sum_ranks(next, rank, &sum);
      weft_comm_destroy(&next);
      weft_comm_destroy(&joined.comm);
      weft_context_destroy(&joined.context);
      reporter.end(status == WEFT_OK ? static_cast<weft_status>(1000 + sum) : status, error);
    });
    for (const int r : {0, 1}) {
      Word word;
      REQUIRE(ranks.last_word(r, kBoundMs, &word));
      INFO(word.text);
      CHECK(word.status == 1001);
      CHECK(ranks.exited_cleanly(r, kBoundMs));
    }
  }
}

TEST_CASE("arena memory stays at its address and belongs to the survivors") {
  for (const std::string& backend : weft_test::backends()) {
    INFO(backend);
    const std::string store = weft_test::store_name();
    constexpr uint64_t kCount = 300'000;
    Processes ranks(3, [&](int rank, Reporter& reporter) {
      Joined joined(backend.c_str(), rank, 3, store);
      if (joined.status != WEFT_OK) return reporter.end(joined.status, joined.error);
      void* memory = nullptr;
      void* other = nullptr;
      weft_comm_alloc(joined.comm, 5000, &other);
      weft_status status = weft_comm_alloc(joined.comm, kCount * sizeof(float), &memory);
      auto* const data = static_cast<float*>(memory);
      const auto value = [](uint64_t i, int base, int factor) {
        return static_cast<float>(base + factor * static_cast<int>(i % 100));
      };
      for (uint64_t i = 0; i < kCount; i++) data[i] = value(i, rank, 1);
      work_until_failed(joined.comm, reporter, 1);
      weft_comm* next = shrink(joined.comm, 0, reporter);  // its memory outlives it
      if (next == nullptr) return;
      bool right = true;
      for (uint64_t i = 0; i < kCount; i++) right &= data[i] == value(i, rank, 1);
      if (right) {
        status = weft_all_reduce(next, data, data, kCount, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr);
      }
      for (uint64_t i = 0; i < kCount; i++) right &= data[i] == value(i, 2, 2);
      right &= weft_comm_free(next, memory) == WEFT_OK && weft_comm_free(next, other) == WEFT_OK;
      right &= weft_comm_free(next, other) == WEFT_ERR_ARG;
      weft_comm_destroy(&next);
      weft_context_destroy(&joined.context);
      const weft_error none = WEFT_ERROR_INIT;
      reporter.end(right ? status : -1, none);
    });
    for (const int r : {0, 1, 2}) REQUIRE(ranks.wait_for_mark(r, 1, kSetupMs));
    ranks.kill(1);
    for (const int r : {0, 2}) {
      Word word;
      REQUIRE(ranks.last_word(r, kBoundMs, &word));
      INFO(word.text);
      CHECK(word.status == WEFT_OK);
      CHECK(ranks.exited_cleanly(r, kBoundMs));
    }
  }
}
