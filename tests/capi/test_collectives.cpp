// The C ABI as a program uses it: collectives, requests, callbacks, errors. Ranks are threads.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_collectives {

using weft_test::Findings;
using weft_test::kBackends;
using weft_test::kModes;
using weft_test::Rank;

TEST_CASE("a blocking all_reduce gives the sum on every rank, in both progress modes") {
  for (const char* backend : kBackends) {
    for (const int32_t mode : kModes) {
      for (const int size : {1, 2, 3}) {
        Findings findings;
        const std::string error = weft_test::run(backend, size, mode, [&](Rank& r) {
          for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{300001}}) {
            std::vector<float> src(count, static_cast<float>(r.rank + 1)), dst(count, -1.0f);
            findings.expect(weft_all_reduce(r.comm, src.data(), dst.data(), count, WEFT_DTYPE_F32,
                                            WEFT_OP_SUM, nullptr, nullptr) == WEFT_OK);
            for (const float value : dst)
              findings.expect(value == static_cast<float>(r.size * (r.size + 1) / 2));
          }
        });
        INFO(backend << " ranks " << size);
        CHECK(error.empty());
        CHECK(findings.wrong == 0);
      }
    }
  }
}

TEST_CASE("requests complete once, report their result, and outlive their communicator") {
  for (const char* backend : kBackends) {
    Findings findings;
    std::atomic<int> completions{0};
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      int32_t value = r.rank + 1;
      weft_request* request = nullptr;
      findings.expect(weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr,
                                      &request) == WEFT_OK);
      findings.expect(weft_request_on_complete(
                          request,
                          [](void* data, weft_status status) {
                            if (status == WEFT_OK) (*static_cast<std::atomic<int>*>(data))++;
                          },
                          &completions) == WEFT_OK);
      findings.expect(
          weft_request_on_complete(request, [](void*, weft_status) {}, nullptr) == WEFT_ERR_STATE);
      findings.expect(weft_request_wait(request, 0) == WEFT_OK);
      findings.expect(value == 3);
      uint8_t done = 0;
      findings.expect(weft_request_test(request, &done) == WEFT_OK && done == 1);
      findings.expect(weft_comm_destroy(&r.comm) == WEFT_OK && r.comm == nullptr);
      weft_error details = WEFT_ERROR_INIT;
      findings.expect(weft_request_error(request, &details) == WEFT_OK);
      findings.expect(weft_request_release(&request) == WEFT_OK && request == nullptr);
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
    CHECK(completions == 2);
  }
}

TEST_CASE("a wait's timeout only stops waiting") {
  for (const char* backend : kBackends) {
    Findings findings;
    std::atomic<bool> polled{false};
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      if (r.rank == 0) {
        weft_request* request = nullptr;
        findings.expect(weft_barrier(r.comm, nullptr, &request) == WEFT_OK);
        findings.expect(weft_request_wait(request, WEFT_TIMEOUT_POLL) == WEFT_ERR_NOT_DONE);
        findings.expect(weft_request_wait(request, 1) == WEFT_ERR_NOT_DONE);
        weft_error details = WEFT_ERROR_INIT;
        findings.expect(weft_request_error(request, &details) == WEFT_ERR_NOT_DONE);
        polled = true;
        findings.expect(weft_request_wait(request, 0) == WEFT_OK);
        weft_request_release(&request);
      } else {
        while (!polled) std::this_thread::yield();
        findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);
      }
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("an operation's deadline fails the communicator and names the absent rank") {
  for (const char* backend : kBackends) {
    Findings findings;
    std::atomic<bool> over{false};
    const std::string error = weft_test::run(backend, 3, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      if (r.rank == 2) {
        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return;
      }
      weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
      options.timeout_ms = 3000;  // longer than the two others can be apart
      findings.expect(weft_barrier(r.comm, &options, nullptr) == WEFT_ERR_TIMEOUT);
      weft_error details = WEFT_ERROR_INIT;
      findings.expect(weft_comm_error(r.comm, &details) == WEFT_ERR_TIMEOUT);
      findings.expect(details.failed_count == 1 && details.failed_ranks[0] == 2);
      findings.expect(std::string(details.text).find("rank 2") != std::string::npos);
      findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_ERR_TIMEOUT);  // final
      if (r.rank == 0) over = true;
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("abort reaches every rank with its reason") {
  for (const char* backend : kBackends) {
    Findings findings;
    const std::string error = weft_test::run(backend, 3, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      if (r.rank == 1) {
        findings.expect(weft_comm_abort(r.comm, "loss is not finite") == WEFT_OK);
        findings.expect(weft_comm_abort(r.comm, nullptr) == WEFT_OK);
      }
      findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_ERR_ABORTED);
      weft_error details = WEFT_ERROR_INIT;
      findings.expect(weft_comm_error(r.comm, &details) == WEFT_ERR_ABORTED);
      findings.expect(std::string(details.text).find("loss is not finite") != std::string::npos);
      findings.expect(details.failed_ranks[0] == 1);
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("a rank that leaves is named to the ranks that still need it") {
  for (const char* backend : kBackends) {
    Findings findings;
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);
      if (r.rank == 1) return;  // destroys its communicator
      findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_ERR_PEER_FAILED);
      weft_error details = WEFT_ERROR_INIT;
      findings.expect(weft_comm_error(r.comm, &details) == WEFT_ERR_PEER_FAILED);
      findings.expect(details.failed_count == 1 && details.failed_ranks[0] == 1);
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("ranks that make different calls all get an error that names rank and call") {
  for (const char* backend : kBackends) {
    Findings findings;
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      std::vector<float> data(100);
      const uint64_t count = r.rank == 0 ? 100 : 99;
      findings.expect(weft_all_reduce(r.comm, data.data(), data.data(), count, WEFT_DTYPE_F32, WEFT_OP_SUM,
                                      nullptr, nullptr) == WEFT_ERR_MISMATCH);
      weft_error details = WEFT_ERROR_INIT;
      findings.expect(weft_comm_error(r.comm, &details) == WEFT_ERR_MISMATCH);
      const std::string text = details.text;
      findings.expect(text.find("f32 x 100") != std::string::npos &&
                      text.find("f32 x 99") != std::string::npos);
      findings.expect(details.slot == 0);
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("destroying a communicator completes what is outstanding") {
  for (const char* backend : kBackends) {
    Findings findings;
    std::atomic<bool> left{false};
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      if (r.rank == 1) {
        while (!left) std::this_thread::yield();
        return;
      }
      weft_request* request = nullptr;
      findings.expect(weft_barrier(r.comm, nullptr, &request) == WEFT_OK);
      findings.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
      findings.expect(weft_request_wait(request, 0) == WEFT_ERR_CANCELLED);
      weft_request_release(&request);
      findings.expect(weft_context_destroy(&r.context) == WEFT_OK);
      left = true;
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("send and receive, and a split by parity") {
  for (const char* backend : kBackends) {
    Findings findings;
    const std::string error = weft_test::run(backend, 4, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      const int next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
      std::vector<double> mine(5000, r.rank), theirs(5000, -1);
      weft_request* request = nullptr;
      findings.expect(weft_send(r.comm, mine.data(), mine.size(), WEFT_DTYPE_F64, next, nullptr, &request) ==
                      WEFT_OK);
      findings.expect(weft_recv(r.comm, theirs.data(), theirs.size(), WEFT_DTYPE_F64, before, nullptr,
                                nullptr) == WEFT_OK);
      findings.expect(weft_request_wait(request, 0) == WEFT_OK);
      weft_request_release(&request);
      findings.expect(theirs == std::vector<double>(5000, before));

      weft_comm* part = nullptr;
      weft_error details = WEFT_ERROR_INIT;
      findings.expect(weft_comm_split(r.comm, r.rank % 2, -r.rank, &part, &details) == WEFT_OK);
      int32_t rank = -1, size = -1;
      findings.expect(weft_comm_rank(part, &rank) == WEFT_OK && weft_comm_size(part, &size) == WEFT_OK);
      findings.expect(size == 2 && rank == (r.rank < 2 ? 1 : 0));  // ordered by descending old rank
      int32_t sum = r.rank;
      findings.expect(weft_all_reduce(part, &sum, &sum, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, nullptr) ==
                      WEFT_OK);
      findings.expect(sum == (r.rank % 2 == 0 ? 2 : 4));
      findings.expect(weft_comm_destroy(&part) == WEFT_OK);
      findings.expect(weft_comm_split(r.comm, WEFT_COLOR_NONE, 0, &part, nullptr) == WEFT_OK &&
                      part == nullptr);
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

namespace {

// Chains requests: the first request's callback computes and starts the second request, and sets its
// callback.
struct Chain {
  float first = 0, second = 0;  // buffers of the two requests
  weft_request* next = nullptr;
  std::atomic<int> steps{0};
};

void end_chain(void* data, weft_status status) {
  auto* const chain = static_cast<Chain*>(data);
  if (status == WEFT_OK) chain->second += chain->first;
  chain->steps++;
}

void go_on(void* data, weft_status status) {
  auto* const chain = static_cast<Chain*>(data);
  if (status == WEFT_OK) chain->first *= 10.0f;
  chain->steps++;
  weft_request_on_complete(chain->next, end_chain, chain);
}

}  // namespace

TEST_CASE("work and requests can be chained to a request's callback") {
  for (const char* backend : kBackends) {
    for (const int32_t mode : kModes) {
      Findings findings;
      const std::string error = weft_test::run(backend, 3, mode, [&](Rank& r) {
        Chain chain;
        chain.first = static_cast<float>(r.rank + 1);
        chain.second = 0.5f;
        weft_request* request = nullptr;
        findings.expect(weft_all_reduce(r.comm, &chain.first, &chain.first, 1, WEFT_DTYPE_F32, WEFT_OP_SUM,
                                        nullptr, &request) == WEFT_OK);
        findings.expect(weft_all_reduce(r.comm, &chain.second, &chain.second, 1, WEFT_DTYPE_F32, WEFT_OP_SUM,
                                        nullptr, &chain.next) == WEFT_OK);
        findings.expect(weft_request_on_complete(request, go_on, &chain) == WEFT_OK);
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        uint8_t done = 0;
        while (chain.steps < 2 && std::chrono::steady_clock::now() < until)
          weft_request_test(chain.next, &done);
        findings.expect(chain.steps == 2 && chain.second == 61.5f);
        findings.expect(weft_request_release(&request) == WEFT_OK &&
                        weft_request_release(&chain.next) == WEFT_OK);
      });
      INFO(backend);
      CHECK(error.empty());
      CHECK(findings.wrong == 0);
    }
  }
}

}  // namespace capi_collectives
