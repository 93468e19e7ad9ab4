// CUDA buffers through the C ABI, over the backends that threads of one process can use, on the fake CUDA.
#include <atomic>
#include <cstring>
#include <string>

#include "capi/cuda.h"
#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_cuda {

using namespace weft_test;

using weft_test::kBackends;

TEST_CASE("a blocking all_reduce of CUDA buffers comes after the stream's work") {
  for (const std::string backend : kBackends) {
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{3'000'000}}) {
      INFO(backend << " x " << count);
      const FakeCuda fake(1, count);
      RankFailures failures;
      const std::string error = run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
        Stream stream;
        DeviceBuffer<float> src(count), dst(count);
        const weft_coll_options options = on(stream);
        for (int round = 0; round < 2; round++) {
          src.write(stream, [&](size_t i) { return static_cast<float>(i % 1000 + size_t(r.rank + round)); });
          const weft_status status = weft_all_reduce(r.comm, src.get(), dst.get(), count, WEFT_DTYPE_F32,
                                                     WEFT_OP_SUM, &options, nullptr);
          failures.expect(status == WEFT_OK, error_of(r.comm));
          const std::vector<float> got = dst.read(stream);
          size_t wrong = 0;
          for (size_t i = 0; i < count; i++)
            wrong += got[i] != static_cast<float>(2 * (i % 1000) + 1 + 2 * size_t(round));
          failures.expect(wrong == 0, std::to_string(wrong) + " wrong");
        }
      });
      CHECK(error == "");
      failures.check();
    }
  }
}

TEST_CASE(
    "an operation waits for its stream, later work on the stream waits for it, and the host never waits",
    "[stream_waits]") {
  for (const std::string backend : kBackends) {
    INFO(backend);
    const FakeCuda fake(1, 7);
    RankFailures failures;
    std::atomic<int> called{0};
    const std::string error = run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      constexpr size_t kCount = 70'000;
      Stream stream;
      DeviceBuffer<int32_t> buffer(kCount);
      const weft_coll_options options = on(stream);
      // The first calls make allocations, which may wait for the device: they run before the stream is held.
      weft_request* first[3] = {};
      for (weft_request*& request : first) {
        weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_I32, WEFT_OP_SUM, &options,
                        &request);
      }
      for (weft_request*& request : first) {
        failures.expect(weft_request_wait(request, 10'000) == WEFT_OK, "first calls: " + error_of(r.comm));
        weft_request_release(&request);
      }
      cudaStreamSynchronize(stream.get());
      int gate = 0;
      stream.hold(&gate);
      buffer.write(stream, [&](size_t i) { return static_cast<int32_t>(i) * (r.rank + 1); });
      weft_request* requests[3] = {};
      for (weft_request*& request : requests) {
        failures.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_I32,
                                        WEFT_OP_SUM, &options, &request) == WEFT_OK,
                        "refused: " + error_of(r.comm));
      }
      // All calls have returned although the stream is held: none of them waited.
      called++;
      uint8_t done = 1;
      weft_request_test(requests[0], &done);
      failures.expect(done == 0, "done before its stream came to it");
      while (called < 2) std::this_thread::yield();
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
}

TEST_CASE("Weft's concurrent work does not invalidate the program's stream capture") {
  for (const std::string backend : kBackends) {
    INFO(backend);
    const FakeCuda fake(1, 5);
    RankFailures failures;
    std::atomic<int> arrived[4] = {};
    const std::string error = run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      constexpr size_t kCount = 70'000;
      const auto meet = [&](std::atomic<int>& here) {
        here++;
        while (here < 2) std::this_thread::yield();
      };
      const Stream stream, captured;
      DeviceBuffer<int32_t> buffer(kCount), other(16);
      const weft_coll_options options = on(stream);
      buffer.write(stream, [&](size_t i) { return static_cast<int32_t>(i) + r.rank; });
      other.write(stream, [](size_t) { return 7; });
      cudaStreamSynchronize(stream.get());
      meet(arrived[0]);
      // Uses the capture mode that forbids all threads calls that may wait for the device.
      if (r.rank == 0) {
        cudaStreamBeginCapture(captured.get(), cudaStreamCaptureModeGlobal);
        other.write(captured, [](size_t) { return 9; });
      }
      meet(arrived[1]);
      // The first call allocates and pins memory, and creates streams and events.
      for (int round = 0; round < 2; round++) {
        const weft_status status = weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_I32,
                                                   WEFT_OP_SUM, &options, nullptr);
        failures.expect(status == WEFT_OK, error_of(r.comm));
      }
      meet(arrived[2]);
      if (r.rank == 0) {
        cudaGraph_t graph = nullptr;
        failures.expect(cudaStreamEndCapture(captured.get(), &graph) == cudaSuccess, "the capture is spoilt");
        if (graph != nullptr) cudaGraphDestroy(graph);
      }
      meet(arrived[3]);
      failures.expect(other.read(stream) == std::vector<int32_t>(16, 7), "what was captured has run");
      const std::vector<int32_t> got = buffer.read(stream);
      size_t wrong = 0;
      for (size_t i = 0; i < kCount; i++) wrong += got[i] != 2 * (2 * static_cast<int32_t>(i) + 1);
      failures.expect(wrong == 0, std::to_string(wrong) + " wrong");
    });
    CHECK(error == "");
    failures.check();
  }
}

TEST_CASE("every collective takes CUDA buffers") {
  for (const std::string backend : kBackends) {
    INFO(backend);
    const FakeCuda fake(1, 3, 20);
    RankFailures failures;
    const std::string error = run(backend.c_str(), 3, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      // The size makes two chunks where a chunk holds several ranks' blocks.
      constexpr size_t kCount = 150'000;
      constexpr size_t kAll = 3 * kCount;
      Stream stream;
      DeviceBuffer<int64_t> src(kAll), dst(kAll);
      const weft_coll_options options = on(stream);
      weft_comm* const c = r.comm;
      const auto value = [](int rank, size_t i) { return static_cast<int64_t>(i) * 10 + rank; };
      // Expects expected(i) in the first count elements of dst.
      const auto check = [&](const char* what, weft_status status, size_t count, auto&& expected) {
        failures.expect(status == WEFT_OK, std::string(what) + ": " + error_of(c));
        const std::vector<int64_t> got = dst.read(stream);
        size_t wrong = 0;
        for (size_t i = 0; i < count; i++) wrong += got[i] != expected(i);
        failures.expect(wrong == 0, std::string(what) + ": " + std::to_string(wrong) + " wrong on rank " +
                                        std::to_string(r.rank));
      };
      const auto fresh = [&] {
        src.write(stream, [&](size_t i) { return value(r.rank, i); });
        dst.write(stream, [](size_t) { return int64_t{-1}; });
      };
      constexpr int32_t kType = WEFT_DTYPE_I64;
      fresh();
      check("reduce", weft_reduce(c, src.get(), dst.get(), kAll, kType, WEFT_OP_MAX, 1, &options, nullptr),
            kAll, [&](size_t i) { return r.rank == 1 ? value(2, i) : -1; });
      fresh();
      check("all_gather", weft_all_gather(c, src.get(), dst.get(), kCount, kType, &options, nullptr), kAll,
            [&](size_t i) { return value(static_cast<int>(i / kCount), i % kCount); });
      fresh();
      check("reduce_scatter",
            weft_reduce_scatter(c, src.get(), dst.get(), kCount, kType, WEFT_OP_SUM, &options, nullptr),
            kCount, [&](size_t i) { return 3 * value(1, i + kCount * static_cast<size_t>(r.rank)); });
      fresh();
      check("gather", weft_gather(c, src.get(), dst.get(), kCount, kType, 2, &options, nullptr), kAll,
            [&](size_t i) { return r.rank == 2 ? value(static_cast<int>(i / kCount), i % kCount) : -1; });
      fresh();
      check("scatter", weft_scatter(c, src.get(), dst.get(), kCount, kType, 0, &options, nullptr), kCount,
            [&](size_t i) { return value(0, i + kCount * static_cast<size_t>(r.rank)); });
      fresh();
      check("all_to_all", weft_all_to_all(c, src.get(), dst.get(), kCount, kType, &options, nullptr), kAll,
            [&](size_t i) {
              return value(static_cast<int>(i / kCount), i % kCount + kCount * static_cast<size_t>(r.rank));
            });
      fresh();
      check("broadcast",
            weft_broadcast(c, r.rank == 2 ? src.get() : dst.get(), kAll, kType, 2, &options, nullptr), kAll,
            [&](size_t i) { return r.rank == 2 ? -1 : value(2, i); });
      fresh();
      if (r.rank == 0) {
        failures.expect(weft_send(c, src.get(), kAll, kType, 1, &options, nullptr) == WEFT_OK, "send");
      } else if (r.rank == 1) {
        check("recv", weft_recv(c, dst.get(), kAll, kType, 0, &options, nullptr), kAll,
              [&](size_t i) { return value(0, i); });
      }
      failures.expect(weft_barrier(c, &options, nullptr) == WEFT_OK, "barrier");
      // Calls with host memory, and with zero elements, between the others.
      int64_t one = 1;
      failures.expect(
          weft_all_reduce(c, &one, &one, 1, kType, WEFT_OP_SUM, nullptr, nullptr) == WEFT_OK && one == 3,
          "host memory");
      failures.expect(
          weft_all_reduce(c, nullptr, nullptr, 0, kType, WEFT_OP_SUM, &options, nullptr) == WEFT_OK,
          "nothing");
    });
    CHECK(error == "");
    failures.check();
  }
}

TEST_CASE("a context that has used no device detects device memory passed without a stream") {
  const FakeCuda fake(2);
  RankFailures failures;
  DeviceBuffer<float> device(20'000);
  void* managed = nullptr;
  cudaMallocManaged(&managed, 400, cudaMemAttachGlobal);
  std::memset(managed, 0, 400);
  const std::string error = run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    std::vector<float> host(20'000);
    const auto reduce = [&](void* src, void* dst, size_t count) {
      return weft_all_reduce(r.comm, src, dst, count, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr);
    };
    failures.expect(reduce(host.data(), host.data(), 1) == WEFT_OK, "host memory");
    for (const size_t count : {size_t{1}, size_t{20'000}}) {
      failures.expect(reduce(device.get(), host.data(), count) == WEFT_ERR_ARG, "from a device: taken");
      failures.expect(error_of(r.comm).find("src is memory of CUDA device 0, but no stream is given") !=
                          std::string::npos,
                      error_of(r.comm));
      failures.expect(reduce(host.data(), device.get(), count) == WEFT_ERR_ARG, "to a device: taken");
      failures.expect(error_of(r.comm).find("dst is memory of CUDA device 0") != std::string::npos,
                      error_of(r.comm));
    }
    const int64_t shape = 10;
    int64_t index = 3;
    weft_sparse entries = WEFT_SPARSE_INIT, result = WEFT_SPARSE_INIT;
    const auto sparse = [&](const void* indices, const void* values) {
      entries.count = 1;
      entries.indices = static_cast<const int64_t*>(indices);
      entries.values = values;
      return weft_sparse_all_reduce(r.comm, &entries, &shape, 1, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                                    &result, nullptr);
    };
    for (const bool indices : {true, false}) {
      const weft_status status = indices ? sparse(device.get(), host.data()) : sparse(&index, device.get());
      const std::string part = indices ? "src->indices is memory of CUDA device 0" : "src->values is memory";
      failures.expect(status == WEFT_ERR_ARG, "a sparse sum of a device: taken");
      failures.expect(error_of(r.comm).find(part) != std::string::npos, error_of(r.comm));
    }
    failures.expect(sparse(&index, host.data()) == WEFT_OK, "a sparse sum");
    weft_sparse_release(&result);
    failures.expect(reduce(managed, managed, 100) == WEFT_OK, "managed memory");
    failures.expect(reduce(host.data(), host.data(), 20'000) == WEFT_OK, "host memory again");
  });
  CHECK(error == "");
  failures.check();
  CHECK(cudaFree(managed) == cudaSuccess);
#ifndef WEFT_TEST_REAL_CUDA
  CHECK_FALSE(fake_cuda_has_context(1));
#endif
}

#ifndef WEFT_TEST_REAL_CUDA  // needs two devices
TEST_CASE("buffers that are not on the stream's device are refused") {
  const FakeCuda fake(2);
  RankFailures failures;
  const std::string error = run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    Stream first(0), second(1);
    DeviceBuffer<float> here(100, 0), there(100, 1);
    std::vector<float> host(100);
    const auto status = [&](void* buffer, size_t count, const weft_stream* stream) {
      weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
      options.stream = stream;
      return weft_all_reduce(r.comm, buffer, buffer, count, WEFT_DTYPE_F32, WEFT_OP_SUM, &options, nullptr);
    };
    failures.expect(status(here.get(), 100, first.view()) == WEFT_OK, "right");
    failures.expect(status(there.get(), 100, second.view()) == WEFT_OK, "right on the second");
    failures.expect(status(host.data(), 100, nullptr) == WEFT_OK, "right on the host");
    failures.expect(error_of(r.comm) == "", "nothing was refused, but: " + error_of(r.comm));
    const auto refused = [&](void* buffer, size_t count, const weft_stream* stream, const std::string& why) {
      failures.expect(status(buffer, count, stream) == WEFT_ERR_ARG, why + ": taken");
      failures.expect(error_of(r.comm).find(why) != std::string::npos,
                      "not '" + why + "': " + error_of(r.comm));
    };
    refused(host.data(), 100, first.view(),
            "all_reduce: src is host memory, or freed, but the stream is of CUDA device 0");
    refused(here.get(), 100, nullptr, "all_reduce: src is memory of CUDA device 0, but no stream is given");
    refused(there.get(), 100, first.view(),
            "all_reduce: src is memory of CUDA device 1, but the stream is of CUDA device 0");
    refused(here.get(), 101, first.view(), "all_reduce: src ends in host memory, or freed");
    refused(reinterpret_cast<char*>(here.get()) + 2, 99, first.view(),
            "all_reduce: src is not aligned to 4 bytes, as elements of f32 must be");
    void* freed = nullptr;
    cudaMalloc(&freed, 400);
    cudaFree(freed);
    refused(freed, 100, first.view(), "all_reduce: src is host memory, or freed");
    void* pinned = nullptr;
    cudaHostAlloc(&pinned, 400, 0);
    refused(pinned, 100, first.view(), "all_reduce: src is pinned host memory");
    failures.expect(status(pinned, 100, nullptr) == WEFT_OK, "pinned memory without a stream");
    cudaFreeHost(pinned);
    weft_stream wrong = *second.view();
    wrong.device = 0;
    refused(here.get(), 100, &wrong, "weft_stream.device is 0, but the stream belongs to device 1");
    wrong.device = 2;
    refused(here.get(), 100, &wrong, "weft_stream.device is 2; this process sees 2 CUDA devices");
    wrong = {sizeof wrong, 7, 0, nullptr};
    refused(here.get(), 100, &wrong, "weft_stream.kind is 7: allowed are");
    // The errors above have not harmed the communicator.
    failures.expect(status(here.get(), 100, first.view()) == WEFT_OK, "right again");
  });
  CHECK(error == "");
  failures.check();
}
#endif

TEST_CASE("a rank with CUDA buffers and one with host buffers differ by name") {
  for (const std::string backend : kBackends) {
    INFO(backend);
    const FakeCuda fake;
    RankFailures failures;
    const std::string error = run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      Stream stream;
      DeviceBuffer<float> buffer(100);
      std::vector<float> host(100);
      const weft_coll_options options = on(stream);
      const weft_status status = r.rank == 0 ? weft_all_reduce(r.comm, buffer.get(), buffer.get(), 100,
                                                               WEFT_DTYPE_F32, WEFT_OP_SUM, &options, nullptr)
                                             : weft_all_reduce(r.comm, host.data(), host.data(), 100,
                                                               WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr);
      failures.expect(status == WEFT_ERR_MISMATCH, std::to_string(status));
      failures.expect(error_of(r.comm).find("of CUDA memory") != std::string::npos, error_of(r.comm));
    });
    CHECK(error == "");
    failures.check();
  }
}

TEST_CASE("a stream continues when the operation that it waits for fails") {
  for (const std::string backend : kBackends) {
    INFO(backend);
    const FakeCuda fake;
    RankFailures failures;
    const std::string error = run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      Stream stream;
      DeviceBuffer<float> buffer(5000);
      buffer.write(stream, [](size_t) { return 1.f; });
      const weft_coll_options options = on(stream);
      if (r.rank == 1) {
        weft_comm_abort(r.comm, "enough");
        return;
      }
      weft_request* requests[2] = {};
      for (weft_request*& request : requests) {
        weft_all_reduce(r.comm, buffer.get(), buffer.get(), 5000, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                        &request);
      }
      failures.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess, "the stream hangs");
      for (weft_request*& request : requests) {
        if (request == nullptr) continue;  // the abort came first
        failures.expect(weft_request_wait(request, 10'000) == WEFT_ERR_ABORTED, "not aborted");
        weft_request_release(&request);
      }
    });
    CHECK(error == "");
    failures.check();
  }
}

#ifndef WEFT_TEST_REAL_CUDA  // needs a driver that fails on demand
TEST_CASE("a device error fails the communicator on all ranks") {
  const FakeCuda fake;
  RankFailures failures;
  const std::string error = run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    Stream stream;
    DeviceBuffer<float> buffer(5000);
    const weft_coll_options options = on(stream);
    const auto reduce = [&] {
      return weft_all_reduce(r.comm, buffer.get(), buffer.get(), 5000, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                             nullptr);
    };
    failures.expect(reduce() == WEFT_OK, "first");
    weft_barrier(r.comm, nullptr, nullptr);
    if (r.rank == 0) fake_cuda_fail("cudaMemcpyAsync", cudaErrorUnknown);
    weft_barrier(r.comm, nullptr, nullptr);
    const weft_status status = reduce();
    failures.expect(status == WEFT_ERR_SYSTEM || status == WEFT_ERR_PEER_FAILED, std::to_string(status));
    failures.expect(error_of(r.comm).find("CUDA: cuMemcpyAsync: CUDA_ERROR_UNKNOWN") != std::string::npos,
                    error_of(r.comm));
  });
  CHECK(error == "");
  failures.check();
}

TEST_CASE("an unusable CUDA runtime is reported with the reason") {
  const auto describe = [](const char* file) {
    weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
    options.cuda_runtime = file;
    weft_context* context = nullptr;
    REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
    weft_device_info info{};
    info.struct_size = sizeof info;
    CHECK(weft_device_query(context, WEFT_DEVICE_HOST, &info) == WEFT_ERR_ARG);
    REQUIRE(weft_device_query(context, WEFT_DEVICE_CUDA, &info) == WEFT_OK);
    uint8_t supported = 9;
    CHECK(weft_capability(context, "shm", WEFT_COLL_ALL_REDUCE, WEFT_DTYPE_F32, WEFT_OP_SUM, WEFT_DEVICE_CUDA,
                          &supported) == WEFT_OK);
    CHECK(supported == info.available);
    weft_context_destroy(&context);
    return info;
  };
  const FakeCuda fake(3);
  weft_device_info info = describe(nullptr);
  INFO(info.reason);
  CHECK(info.available == 1);
  CHECK(info.device_count == 3);
  CHECK(std::string(info.reason).find("CUDA runtime 13.0") != std::string::npos);
  info = describe("/nonexistent/libcudart.so");
  CHECK(info.available == 0);
  CHECK(std::string(info.reason).find("/nonexistent/libcudart.so") != std::string::npos);
  fake_cuda_versions(11'080, 0);
  CHECK(std::string(describe(nullptr).reason).find("is 11.8, and Weft needs 12.0") != std::string::npos);
  fake_cuda_versions(0, 11'040);
  CHECK(std::string(describe(nullptr).reason).find("for CUDA 11.4") != std::string::npos);
  fake_cuda_versions(0, 0);
  fake_cuda_setup(0, 1, 0);
  CHECK(std::string(describe(nullptr).reason).find("no CUDA-capable device") != std::string::npos);
}
#endif

}  // namespace capi_cuda
