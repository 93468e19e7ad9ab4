// The end of C ABI objects: destroyed in any order, by any thread, with outstanding work.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_lifetime {

using weft_test::Findings;
using weft_test::kBackends;
using weft_test::kModes;
using weft_test::Rank;

namespace {

bool is_end(weft_status status) {
  return status == WEFT_ERR_CANCELLED || status == WEFT_ERR_PEER_FAILED;
}

}  // namespace

TEST_CASE("every call on a communicator whose context is destroyed returns an error") {
  for (const char* backend : kBackends) {
    for (const int32_t mode : kModes) {
      Findings findings;
      const std::string error = weft_test::run(backend, 2, mode, [&](Rank& r) {
        findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);
        findings.expect(weft_context_destroy(&r.context) == WEFT_OK);
        int32_t value = 1;
        findings.expect(is_end(weft_barrier(r.comm, nullptr, nullptr)));
        findings.expect(is_end(weft_recv(r.comm, &value, 1, WEFT_DTYPE_I32, 1 - r.rank, nullptr, nullptr)));
        weft_request* request = nullptr;
        findings.expect(is_end(
            weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, &request)));
        findings.expect(request == nullptr);
        weft_comm* part = nullptr;
        findings.expect(weft_comm_split(r.comm, 0, 0, &part, nullptr) != WEFT_OK);
        const int64_t shape = 4;
        const weft_param param = {sizeof param, "p", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0};
        weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
        options.params = &param;
        options.param_count = 1;
        weft_reducer* reducer = nullptr;
        findings.expect(weft_reducer_create(r.comm, &options, &reducer, nullptr) != WEFT_OK);
        int32_t rank = -1;
        findings.expect(weft_comm_rank(r.comm, &rank) == WEFT_OK && rank == r.rank);
        findings.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
      });
      INFO(backend << " mode " << mode);
      CHECK(error.empty());
      CHECK(findings.wrong == 0);
    }
  }
}

TEST_CASE("a context may be destroyed while threads call its communicators") {
  for (const char* backend : kBackends) {
    for (int round = 0; round < 20; round++) {
      Findings findings;
      const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
        std::atomic<int> calls{0};
        std::thread caller([&] {
          weft_status status = WEFT_OK;
          for (int i = 0; status == WEFT_OK; i++) {
            int64_t value = 1;
            status =
                weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_I64, WEFT_OP_SUM, nullptr, nullptr);
            calls++;
          }
          findings.expect(is_end(status));
        });
        while (calls < 10 + round) std::this_thread::yield();
        findings.expect(weft_context_destroy(&r.context) == WEFT_OK);
        caller.join();
        findings.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
      });
      CHECK(error.empty());
      CHECK(findings.wrong == 0);
    }
  }
}

TEST_CASE("abort by another thread ends a call that blocks") {
  for (const char* backend : kBackends) {
    Findings findings;
    std::atomic<bool> over{false};
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      if (r.rank == 1) {
        while (!over) std::this_thread::yield();  // it never joins the barrier
        return;
      }
      std::thread aborter([&] { findings.expect(weft_comm_abort(r.comm, "enough") == WEFT_OK); });
      findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_ERR_ABORTED);
      aborter.join();
      over = true;
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("the deadline of an operation holds also while it waits behind another one") {
  for (const char* backend : kBackends) {
    Findings findings;
    std::atomic<bool> over{false};
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      if (r.rank == 1) {
        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // does not join the barrier
        return;
      }
      weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
      options.timeout_ms = WEFT_TIMEOUT_INFINITE;
      weft_request* first = nullptr;
      findings.expect(weft_barrier(r.comm, &options, &first) == WEFT_OK);
      options.timeout_ms = 50;
      int32_t value = 1;
      findings.expect(weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, &options,
                                      nullptr) == WEFT_ERR_TIMEOUT);
      weft_error details = WEFT_ERROR_INIT;
      findings.expect(weft_comm_error(r.comm, &details) == WEFT_ERR_TIMEOUT);
      const std::string text = details.text;
      findings.expect(text.find("all_reduce") != std::string::npos &&
                      text.find("barrier") != std::string::npos);
      findings.expect(details.failed_count == 1 && details.failed_ranks[0] == 1);
      weft_request_release(&first);
      over = true;
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("a communicator counts its operations, also those of a destroyed reducer") {
  Findings findings;
  const std::string error = weft_test::run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const auto operations = [&] {
      weft_comm_info info{};
      info.struct_size = sizeof info;
      findings.expect(weft_comm_query(r.comm, &info) == WEFT_OK);
      return info.operations;
    };
    const int64_t shape = 4;
    float gradient[4] = {1, 2, 3, 4};
    const weft_param param = {sizeof param, "p", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0};
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    weft_reducer* reducer = nullptr;
    findings.expect(weft_reducer_create(r.comm, &options, &reducer, nullptr) == WEFT_OK);
    const uint64_t before = operations();
    findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
    findings.expect(weft_reducer_ready(reducer, 0, gradient, nullptr) == WEFT_OK);
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
    findings.expect(operations() == before + 1);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("the program's allocator, log and thread-start callback are used") {
  struct Seen {
    std::atomic<int> allocated{0}, freed{0}, threads{0}, lines{0};
  } seen;
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  options.host_alloc = [](void* data, uint64_t size, uint64_t alignment, int32_t) -> void* {
    static_cast<Seen*>(data)->allocated++;
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  };
  options.host_free = [](void* data, void* memory, uint64_t, int32_t) {
    static_cast<Seen*>(data)->freed++;
    std::free(memory);
  };
  options.host_alloc_user_data = &seen;
  options.thread_start = [](void* data, const char* name) {
    if (std::strncmp(name, "weft-", 5) == 0) static_cast<Seen*>(data)->threads++;
  };
  options.thread_start_user_data = &seen;
  options.log = [](void* data, int32_t, const char* line) {
    if (std::strlen(line) > 0) static_cast<Seen*>(data)->lines++;
  };
  options.log_user_data = &seen;
  options.log_level = WEFT_LOG_DEBUG;
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
  weft_test::Gathering gathering(1);
  weft_test::Member member{&gathering, 0};
  weft_comm_options comm_options = WEFT_COMM_OPTIONS_INIT;
  comm_options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
  comm_options.size = 1;
  comm_options.all_gather = weft_test::gather;
  comm_options.all_gather_user_data = &member;
  comm_options.backend = "loopback";  // its arena is allocated from the context
  weft_comm* comm = nullptr;
  REQUIRE(weft_comm_create(context, &comm_options, &comm, nullptr) == WEFT_OK);
  void* memory = nullptr;
  REQUIRE(weft_comm_alloc(comm, 4096, &memory) == WEFT_OK);
  REQUIRE(weft_comm_free(comm, memory) == WEFT_OK);
  CHECK(weft_comm_destroy(&comm) == WEFT_OK);
  CHECK(weft_context_destroy(&context) == WEFT_OK);
  CHECK(seen.allocated > 0);
  CHECK(seen.freed == seen.allocated);
  CHECK(seen.threads > 0);
  CHECK(seen.lines > 0);
}

}  // namespace capi_lifetime
