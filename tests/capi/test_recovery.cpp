// Shrink, rebind and retry among rank threads: the recovery that tests/fault tests with processes, here
// visible to the thread sanitizer.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_recovery {

using weft_test::Findings;
using weft_test::Rank;

namespace {

constexpr int64_t kCount = 40'000;

// buffer: may be null. Rank 2's buffer is broadcast as steps begin.
weft_reducer* make_reducer(weft_comm* comm, int64_t* buffer = nullptr) {
  const char* const names[] = {"a", "b"};
  weft_param params[3] = {};
  for (int p = 0; p < 2; p++) {
    params[p] = {sizeof(weft_param), names[p], WEFT_DTYPE_F32, 1, &kCount, nullptr, 0, 0, 0};
  }
  const uint64_t limit = 0;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params;
  options.param_count = 2;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  options.flags = WEFT_REDUCER_RETAIN;
  if (buffer != nullptr) {
    params[2] = {sizeof(weft_param), "c", WEFT_DTYPE_I64, 0, nullptr, nullptr, 0, 0, WEFT_PARAM_BUFFER};
    params[2].parameter = buffer;
    options.param_count = 3;
    options.flags |= WEFT_REDUCER_BUFFERS;
    options.buffers_root = 2;
  }
  weft_reducer* reducer = nullptr;
  weft_reducer_create(comm, &options, &reducer, nullptr);
  return reducer;
}

weft_status step(weft_reducer* reducer, std::vector<std::vector<float>>& gradients, float value,
                 std::atomic<int>* begun = nullptr) {
  const weft_status status = weft_reducer_begin(reducer, nullptr);
  if (status != WEFT_OK) return status;
  if (begun != nullptr) (*begun)++;
  for (uint64_t p = 0; p < 2; p++) {
    gradients[p].assign(kCount, value);
    weft_reducer_ready(reducer, p, gradients[p].data(), nullptr);
  }
  return weft_reducer_finish(reducer, nullptr);
}

}  // namespace

TEST_CASE(
    "threads continue without a rank that leaves in the middle of a step, and sum retained gradients again") {
  for (const char* const backend : {"shm", "loopback"}) {
    for (const int32_t progress : {WEFT_PROGRESS_THREAD, WEFT_PROGRESS_CALLER}) {
      INFO(backend << ", progress " << progress);
      Findings findings;
      std::atomic<int> begun{0};  // remaining ranks that have begun the failing step
      const std::string error = weft_test::run(backend, 3, progress, [&](Rank& r) {
        int64_t buffer = 10 + r.rank;
        weft_reducer* reducer = make_reducer(r.comm, &buffer);
        findings.expect(reducer != nullptr);
        if (reducer == nullptr) return;
        findings.expect(buffer == 10);  // create broadcasts rank 0's values
        buffer = 10 + r.rank;
        std::vector<std::vector<float>> gradients(2, std::vector<float>(kCount));
        const auto mine = static_cast<float>(1 << r.rank);  // powers of two, so means are exact
        for (int i = 0; i < 3; i++) findings.expect(step(reducer, gradients, mine * 3) == WEFT_OK);
        findings.expect(buffer == 12);
        buffer = 20 + r.rank;
        weft_barrier(r.comm, nullptr, nullptr);  // all ranks know that the third step is committed
        if (r.rank == 1) {
          weft_reducer_begin(reducer, nullptr);
          while (begun != 2) std::this_thread::yield();
          weft_reducer_ready(reducer, 0, gradients[0].data(), nullptr);
          weft_reducer_destroy(&reducer);
          return;
        }
        findings.expect(step(reducer, gradients, mine, &begun) != WEFT_OK);
        weft_comm* next = nullptr;
        weft_error details = WEFT_ERROR_INIT;
        findings.expect(weft_comm_shrink(r.comm, nullptr, &next, &details) == WEFT_OK);
        findings.expect(next != nullptr && weft_reducer_rebind(reducer, next, &details) == WEFT_OK);
        if (next == nullptr) return;
        weft_comm_destroy(&r.comm);
        r.comm = next;
        weft_verdict verdict{};
        verdict.struct_size = sizeof verdict;
        findings.expect(weft_reducer_verdict(reducer, &verdict) == WEFT_OK);
        findings.expect(verdict.last_committed_step == 2 && verdict.next_step == 3 && verdict.can_retry == 1);
        findings.expect(buffer == 22);
        buffer = 30 + r.rank;
        findings.expect(weft_reducer_retry(reducer, nullptr) == WEFT_OK);
        findings.expect(buffer == 30);  // rank 2 has left
        for (uint64_t p = 0; p < 2; p++) findings.expect(gradients[p] == std::vector<float>(kCount, 2.5f));
        for (int i = 0; i < 3; i++) findings.expect(step(reducer, gradients, mine) == WEFT_OK);
        findings.expect(gradients[1] == std::vector<float>(kCount, 2.5f));
        findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
      });
      CHECK(error.empty());
      CHECK(findings.wrong == 0);
    }
  }
}

TEST_CASE("a rank that does not call shrink is named by its rank in the communicator that is shrunk") {
  Findings findings;
  std::atomic<int> told{0};
  const std::string error = weft_test::run("loopback", 4, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const auto fail = [&] {
      if (r.rank == 1) weft_comm_abort(r.comm, nullptr);
      while (weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK) continue;
    };
    if (r.rank == 0) return;
    fail();
    weft_comm* next = nullptr;
    findings.expect(weft_comm_shrink(r.comm, nullptr, &next, nullptr) == WEFT_OK);
    if (next == nullptr) return;
    weft_comm_destroy(&r.comm);
    r.comm = next;
    fail();
    if (r.rank == 3) {
      while (told != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    weft_shrink_options options = WEFT_SHRINK_OPTIONS_INIT;
    options.timeout_ms = 3000;  // longer than the two calls can be apart
    weft_error details = WEFT_ERROR_INIT;
    findings.expect(weft_comm_shrink(r.comm, &options, &next, &details) == WEFT_ERR_TIMEOUT);
    findings.expect(details.failed_count == 1 && details.failed_ranks[0] == 2);
    findings.expect(std::string(details.text).find("rank 2 did not call it") != std::string::npos);
    told++;
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("a rebind waits until no gradient of the failed step is being copied") {
  constexpr int64_t kMany = 16 << 20;
  constexpr int64_t kFew = 10;
  Findings findings;
  const std::string error = weft_test::run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const weft_param params[2] = {{sizeof(weft_param), "many", WEFT_DTYPE_F32, 1, &kMany, nullptr, 0, 0, 0},
                                  {sizeof(weft_param), "few", WEFT_DTYPE_F32, 1, &kFew, nullptr, 0, 0, 0}};
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = 2;
    weft_reducer* reducer = nullptr;
    findings.expect(weft_reducer_create(r.comm, &options, &reducer, nullptr) == WEFT_OK);
    const std::vector<float> late(kMany, 3.0f);
    std::vector<float> many(kMany, 5.0f), few(kFew, 5.0f);
    findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
    std::atomic<bool> started{false};
    std::thread other([&] {
      started = true;
      weft_reducer_ready(reducer, 0, const_cast<float*>(late.data()), nullptr);
    });
    while (!started) std::this_thread::yield();
    findings.expect(weft_comm_abort(r.comm, nullptr) == WEFT_OK);
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_ABORTED);  // "few" never came
    weft_comm* next = nullptr;
    findings.expect(weft_comm_shrink(r.comm, nullptr, &next, nullptr) == WEFT_OK);
    other.join();
    std::atomic<bool> over{false};
    std::thread asks([&] {
      weft_reducer_stats stats{};
      stats.struct_size = sizeof stats;
      while (!over) findings.expect(weft_reducer_query(reducer, &stats) == WEFT_OK);
    });
    findings.expect(weft_reducer_rebind(reducer, next, nullptr) == WEFT_OK);
    over = true;
    asks.join();
    findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
    findings.expect(weft_reducer_ready(reducer, 0, many.data(), nullptr) == WEFT_OK);
    findings.expect(weft_reducer_ready(reducer, 1, few.data(), nullptr) == WEFT_OK);
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    findings.expect(many == std::vector<float>(kMany, 5.0f) && late == std::vector<float>(kMany, 3.0f));
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
    weft_comm_destroy(&next);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("a step that fails while a gradient is being copied keeps all of it or nothing") {
  constexpr int64_t kMany = 32 << 20;
  Findings findings;
  const std::string error = weft_test::run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const weft_param param = {sizeof(weft_param), "a", WEFT_DTYPE_F32, 1, &kMany, nullptr, 0, 0, 0};
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    options.flags = WEFT_REDUCER_RETAIN;
    weft_reducer* reducer = nullptr;
    findings.expect(weft_reducer_create(r.comm, &options, &reducer, nullptr) == WEFT_OK);
    std::vector<float> gradient(kMany, 3.0f);
    findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
    findings.expect(weft_comm_abort(r.comm, nullptr) == WEFT_OK);
    std::atomic<bool> started{false};
    std::thread other([&] {
      started = true;
      weft_reducer_ready(reducer, 0, gradient.data(), nullptr);
    });
    // Usually the copy has started by then and not ended. The expected results do not depend on that.
    while (!started) std::this_thread::yield();
    const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < soon) std::this_thread::yield();
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_ABORTED);
    weft_verdict verdict{};
    verdict.struct_size = sizeof verdict;
    findings.expect(weft_reducer_verdict(reducer, &verdict) == WEFT_OK);
    if (verdict.can_retry == 1) {
      weft_comm* next = nullptr;
      findings.expect(weft_comm_shrink(r.comm, nullptr, &next, nullptr) == WEFT_OK);
      findings.expect(weft_reducer_rebind(reducer, next, nullptr) == WEFT_OK);
      findings.expect(weft_reducer_retry(reducer, nullptr) == WEFT_OK);
      findings.expect(gradient == std::vector<float>(kMany, 3.0f));
      weft_comm_destroy(&next);
    }
    other.join();
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

}  // namespace capi_recovery
