// CUDA buffers through the C ABI over the nccl backend, on the fake NCCL and the fake CUDA.
#include <atomic>
#include <string>

#include "capi/fake_nccl.h"

namespace capi_nccl {

using namespace weft_test;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Returns what weft_backend_query reports of nccl; file: the NCCL library to load (null: the default).
weft_backend_info describe(const char* file = nullptr) {
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  options.nccl_library = file;
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
  uint64_t count = 0;
  REQUIRE(weft_backend_count(context, &count) == WEFT_OK);
  weft_backend_info found{};
  for (uint64_t i = 0; i < count; i++) {
    weft_backend_info info{};
    info.struct_size = sizeof info;
    REQUIRE(weft_backend_query(context, i, &info) == WEFT_OK);
    if (std::string(info.name) == "nccl") found = info;
  }
  weft_context_destroy(&context);
  return found;
}

}  // namespace

TEST_CASE("nccl adds up CUDA buffers in the order of the stream") {
  for (const int size : {1, 2, 5}) {
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{300'000}}) {
      INFO(size << " ranks x " << count);
      const FakeNccl fake(count);
      RankFailures failures;
      const std::string error = run_nccl(size, [&](Rank& r) {
        Stream stream(r.rank);
        DeviceBuffer<float> src(count, r.rank), dst(count, r.rank);
        const weft_coll_options options = on(stream);
        for (int round = 0; round < 3; round++) {
          src.write(stream, [&](size_t i) { return static_cast<float>(i % 1000 + size_t(r.rank + round)); });
          const weft_status status = weft_all_reduce(r.comm, src.get(), dst.get(), count, WEFT_DTYPE_F32,
                                                     WEFT_OP_SUM, &options, nullptr);
          failures.expect(status == WEFT_OK, error_of(r.comm));
          const std::vector<float> got = dst.read(stream);
          size_t wrong = 0;
          for (size_t i = 0; i < count; i++) {
            const auto n = static_cast<size_t>(size);
            wrong += got[i] != static_cast<float>(n * (i % 1000 + size_t(round)) + n * (n - 1) / 2);
          }
          failures.expect(wrong == 0, std::to_string(wrong) + " wrong");
          failures.expect(weft_barrier(r.comm, &options, nullptr) == WEFT_OK, "barrier");
        }
      });
      CHECK(error == "");
      failures.check();
      CHECK(fake_nccl_calls("ncclAllReduce") == static_cast<uint64_t>(3 * size));
    }
  }
}

TEST_CASE("a request over nccl neither blocks the host nor makes the stream wait for it", "[stream_waits]") {
  const FakeNccl fake(7);
  RankFailures failures;
  std::atomic<int> called{0};
  const std::string error = run_nccl(2, [&](Rank& r) {
    constexpr size_t kCount = 70'000;
    Stream stream(r.rank);
    DeviceBuffer<int32_t> buffer(kCount, r.rank);
    const weft_coll_options options = on(stream);
    int gate = 0;
    stream.hold(&gate);
    buffer.write(stream, [&](size_t i) { return static_cast<int32_t>(i) * (r.rank + 1); });
    weft_request* requests[3] = {};
    for (weft_request*& request : requests) {
      failures.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_I32, WEFT_OP_SUM,
                                      &options, &request) == WEFT_OK,
                      "refused: " + error_of(r.comm));
    }
    called++;
    while (called < 2) std::this_thread::yield();
    failures.expect(fake_nccl_calls("ncclAllReduce") == 0, "begun before the streams came to it");
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    const std::vector<int32_t> got = buffer.read(stream);  // does not wait for the requests
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; i++) wrong += got[i] != static_cast<int32_t>(i) * 3 * 2 * 2;
    failures.expect(wrong == 0, std::to_string(wrong) + " wrong");
    for (weft_request*& request : requests) {
      failures.expect(weft_request_wait(request, 10'000) == WEFT_OK, "failed");
      weft_request_release(&request);
    }
  });
  CHECK(error == "");
  failures.check();
}

TEST_CASE("averages and scaled sums are Weft's own over nccl, f16 without overflow") {
  const FakeNccl fake(5);
  RankFailures failures;
  const std::string error = run_nccl(2, [&](Rank& r) {
    constexpr size_t kCount = 3000;
    Stream stream(r.rank);
    DeviceBuffer<uint16_t> src(2 * kCount, r.rank), dst(2 * kCount, r.rank);
    weft_coll_options options = on(stream);
    const auto check = [&](const char* what, weft_status status, size_t count, uint16_t expected) {
      failures.expect(status == WEFT_OK, std::string(what) + ": " + error_of(r.comm));
      const std::vector<uint16_t> got = dst.read(stream);
      size_t wrong = 0;
      for (size_t i = 0; i < count; i++) wrong += got[i] != expected;
      failures.expect(wrong == 0, std::string(what) + ": " + std::to_string(wrong) + " wrong");
    };
    constexpr uint16_t kF16Big = 0x7a00;  // 49152: twice that overflows f16
    src.write(stream, [&](size_t) { return kF16Big; });
    check("all_reduce",
          weft_all_reduce(r.comm, src.get(), dst.get(), 2 * kCount, WEFT_DTYPE_F16, WEFT_OP_AVG, &options,
                          nullptr),
          2 * kCount, kF16Big);
    check("reduce_scatter",
          weft_reduce_scatter(r.comm, src.get(), dst.get(), kCount, WEFT_DTYPE_F16, WEFT_OP_AVG, &options,
                              nullptr),
          kCount, kF16Big);
    constexpr uint16_t kBf16Three = 0x4040, kBf16Six = 0x40c0;
    src.write(stream, [&](size_t) { return kBf16Six; });
    options.factor = 0.25;
    dst.write(stream, [&](size_t) { return uint16_t{0}; });
    const weft_status status = weft_reduce(r.comm, src.get(), dst.get(), kCount, WEFT_DTYPE_BF16,
                                           WEFT_OP_PREMUL_SUM, 1, &options, nullptr);
    check("reduce", status, kCount, r.rank == 1 ? kBf16Three : uint16_t{0});
  });
  CHECK(error == "");
  failures.check();
}

TEST_CASE("operations that NCCL lacks go through host memory, and host buffers work alongside") {
  const FakeNccl fake(6, 20);
  RankFailures failures;
  const std::string error = run_nccl(3, [&](Rank& r) {
    constexpr size_t kCount = 5000;
    Stream stream(r.rank);
    DeviceBuffer<int16_t> buffer(kCount, r.rank);
    const weft_coll_options options = on(stream);
    buffer.write(stream, [&](size_t i) { return static_cast<int16_t>(i % 100 + size_t(r.rank)); });
    failures.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_I16, WEFT_OP_SUM,
                                    &options, nullptr) == WEFT_OK,
                    error_of(r.comm));
    failures.expect(buffer.read(stream)[7] == 3 * 7 + 3, "i16");
    int64_t one = 1;
    failures.expect(
        weft_all_reduce(r.comm, &one, &one, 1, WEFT_DTYPE_I64, WEFT_OP_SUM, nullptr, nullptr) == WEFT_OK &&
            one == 3,
        "host memory");
    if (r.rank == 0) {
      failures.expect(
          weft_send(r.comm, buffer.get(), kCount, WEFT_DTYPE_I16, 2, &options, nullptr) == WEFT_OK, "send");
    } else if (r.rank == 2) {
      failures.expect(
          weft_recv(r.comm, buffer.get(), kCount, WEFT_DTYPE_I16, 0, &options, nullptr) == WEFT_OK, "recv");
    }
    failures.expect(weft_barrier(r.comm, &options, nullptr) == WEFT_OK, "barrier");
  });
  CHECK(error == "");
  failures.check();
  CHECK(fake_nccl_calls("ncclAllReduce") == 0);
}

TEST_CASE("ranks that make different calls over nccl get an error, and nothing is launched") {
  const FakeNccl fake;
  RankFailures failures;
  const std::string error = run_nccl(2, [&](Rank& r) {
    Stream stream(r.rank);
    DeviceBuffer<float> buffer(100, r.rank);
    const weft_coll_options options = on(stream);
    const weft_status status = weft_all_reduce(r.comm, buffer.get(), buffer.get(), r.rank == 0 ? 100 : 50,
                                               WEFT_DTYPE_F32, WEFT_OP_SUM, &options, nullptr);
    failures.expect(status == WEFT_ERR_MISMATCH, std::to_string(status));
    failures.expect(contains(error_of(r.comm), "all_reduce sum f32 x 50 of CUDA memory"), error_of(r.comm));
  });
  CHECK(error == "");
  failures.check();
  CHECK(fake_nccl_calls("ncclAllReduce") == 0);
}

TEST_CASE("a rank that does not join an operation over nccl is named") {
  const FakeNccl fake;
  RankFailures failures;
  std::atomic<int> ready{0};
  const std::string error = run_nccl(3, [&](Rank& r) {
    Stream stream(r.rank);
    DeviceBuffer<float> buffer(100, r.rank);
    weft_coll_options options = on(stream);
    options.timeout_ms = 5000;
    if (r.rank == 2) {
      weft_error failure = WEFT_ERROR_INIT;
      while (weft_comm_error(r.comm, &failure) == WEFT_OK && failure.code == WEFT_OK)
        std::this_thread::yield();
      return;
    }
    // Together, so that neither is late where other programs keep the cores busy.
    for (ready++; ready < 2;) std::this_thread::yield();
    const weft_status status = weft_all_reduce(r.comm, buffer.get(), buffer.get(), 100, WEFT_DTYPE_F32,
                                               WEFT_OP_SUM, &options, nullptr);
    failures.expect(status == WEFT_ERR_TIMEOUT, std::to_string(status));
    failures.expect(contains(error_of(r.comm), "waiting for rank 2"), error_of(r.comm));
  });
  CHECK(error == "");
  failures.check();
}

TEST_CASE("a call that NCCL refuses on one rank ends the operation on all") {
  for (const char* call : {"ncclAllReduce", "ncclBroadcast"}) {
    const FakeNccl fake;
    fake_nccl_fail(call, ncclInternalError);
    RankFailures failures;
    const std::string error = run_nccl(3, [&](Rank& r) {
      Stream stream(r.rank);
      DeviceBuffer<float> buffer(5000, r.rank);
      buffer.write(stream, [](size_t) { return 1.f; });
      const weft_coll_options options = on(stream);
      weft_request* requests[2] = {};
      weft_all_reduce(r.comm, buffer.get(), buffer.get(), 5000, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                      &requests[0]);
      weft_broadcast(r.comm, buffer.get(), 5000, WEFT_DTYPE_F32, 0, &options, &requests[1]);
      // A stream continues when the operation that it waits for fails.
      failures.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess, "the stream hangs");
      weft_status last = WEFT_OK;
      for (weft_request*& request : requests) {
        if (request == nullptr) continue;
        last = weft_request_wait(request, 10'000);
        weft_request_release(&request);
      }
      failures.expect(last == WEFT_ERR_SYSTEM || last == WEFT_ERR_PEER_FAILED, std::to_string(last));
      failures.expect(contains(error_of(r.comm), "NCCL: ") && contains(error_of(r.comm), "internal error"),
                      error_of(r.comm));
    });
    CHECK(error == "");
    failures.check();
    CHECK(fake_nccl_calls("ncclCommAbort") >= 1);
  }
}

TEST_CASE("an asynchronous NCCL error is reported by name") {
  const FakeNccl fake;
  RankFailures failures;
  const std::string error = run_nccl(2, [&](Rank& r) {
    Stream stream(r.rank);
    DeviceBuffer<float> buffer(100, r.rank);
    const weft_coll_options options = on(stream);
    weft_barrier(r.comm, nullptr, nullptr);
    if (r.rank == 1) fake_nccl_break(1, ncclRemoteError);
    weft_barrier(r.comm, nullptr, nullptr);
    const weft_status status = weft_all_reduce(r.comm, buffer.get(), buffer.get(), 100, WEFT_DTYPE_F32,
                                               WEFT_OP_SUM, &options, nullptr);
    failures.expect(status == WEFT_ERR_PEER_FAILED, std::to_string(status));
    failures.expect(contains(error_of(r.comm), "remote process exited"), error_of(r.comm));
  });
  CHECK(error == "");
  failures.check();
}

TEST_CASE("an abort during an NCCL operation releases the program's stream") {
  const FakeNccl fake(9, 3000);
  RankFailures failures;
  const std::string error = run_nccl(2, [&](Rank& r) {
    Stream stream(r.rank);
    DeviceBuffer<float> buffer(50'000, r.rank);
    buffer.write(stream, [](size_t) { return 1.f; });
    const weft_coll_options options = on(stream);
    weft_request* request = nullptr;
    weft_all_reduce(r.comm, buffer.get(), buffer.get(), 50'000, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                    &request);
    while (r.rank == 1 && fake_nccl_calls("ncclAllReduce") == 0) std::this_thread::yield();
    if (r.rank == 1) weft_comm_abort(r.comm, "enough");
    failures.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess, "the stream hangs");
    const weft_status status = weft_request_wait(request, 10'000);
    failures.expect(status == WEFT_OK || status == WEFT_ERR_ABORTED, std::to_string(status));
    weft_request_release(&request);
  });
  CHECK(error == "");
  failures.check();
}

TEST_CASE("two ranks on one device are refused with NCCL's error text") {
  const FakeNccl fake;
  const std::string error = run_nccl(2, [](Rank&) {}, [](int) { return 3; });
  INFO(error);
  CHECK(contains(error, "backend nccl: "));
  CHECK(contains(error, "Duplicate GPU"));
}

TEST_CASE("a communicator of nccl has one device") {
  const FakeNccl fake;
  RankFailures failures;
  const std::string error = run_nccl(1, [&](Rank& r) {
    Stream stream(1);
    DeviceBuffer<float> buffer(100, 1);
    const weft_coll_options options = on(stream);
    weft_request* request = nullptr;
    const weft_status status = weft_all_reduce(r.comm, buffer.get(), buffer.get(), 100, WEFT_DTYPE_F32,
                                               WEFT_OP_SUM, &options, &request);
    failures.expect(status == WEFT_ERR_ARG, std::to_string(status));
  });
  CHECK(error == "");
  failures.check();
}

TEST_CASE("an unusable NCCL is reported with the reason") {
  const FakeNccl fake;
  weft_backend_info info = describe();
  INFO(info.reason);
  CHECK(info.available == 1);
  CHECK(contains(info.reason, "NCCL 2."));
  fake_nccl_version(2708);
  info = describe();
  CHECK(info.available == 0);
  fake_nccl_version(21212);
  info = describe();
  CHECK(info.available == 0);
  CHECK(contains(info.reason, "NCCL is version 2.12.12 ("));
  CHECK(contains(info.reason, "needs 2.14.3 or later"));
  const std::string error = run_nccl(2, [](Rank&) {});
  CHECK(contains(error, "backend nccl: NCCL is version 2.12.12"));
  fake_nccl_version(0);
  const std::string file = std::getenv("WEFT_NCCL_LIBRARY");
  setenv("WEFT_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  info = describe();
  INFO(info.reason);
  CHECK(info.available == 0);
  CHECK(contains(info.reason, "/nowhere/libnccl.so.2"));
  info = describe(file.c_str());
  INFO(info.reason);
  CHECK(info.available == 1);
  CHECK(contains(info.reason, file));
  setenv("WEFT_NCCL_LIBRARY", file.c_str(), 1);
  info = describe("/elsewhere/libnccl.so.2");
  INFO(info.reason);
  CHECK(info.available == 0);
  CHECK(contains(info.reason, "/elsewhere/libnccl.so.2"));
}

}  // namespace capi_nccl
