// Misuse of CUDA buffers and streams by the program, and broken CUDA installations. Each is refused by name,
// and correct calls work as before. Runs on the fake CUDA, which can be made to fail.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "capi/cuda.h"
#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_cuda_misuse {

using namespace weft_test;

namespace {

// Returns the context's description of the CUDA runtime in this file; null: the default file.
std::string reason_of(const char* file, const char* modules = nullptr) {
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  options.cuda_runtime = file;
  options.module_path = modules;
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
  weft_device_info info{};
  info.struct_size = sizeof info;
  REQUIRE(weft_device_query(context, WEFT_DEVICE_CUDA, &info) == WEFT_OK);
  weft_context_destroy(&context);
  return info.available != 0 ? "available" : info.reason;
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every kind of collective refuses buffers that are not on the stream's device") {
  const FakeCuda fake(2);
  Findings f;
  const std::string error = run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream(0);
    const weft_coll_options options = on(stream.view());
    DeviceBuffer<float> here(100, 0), also_here(100, 0), there(100, 1);
    std::vector<float> host(100);
    void *freed = nullptr, *pinned = nullptr;
    cudaSetDevice(0);
    cudaMalloc(&freed, 400);
    cudaFree(freed);
    cudaHostAlloc(&pinned, 400, 0);
    const uint64_t counts[] = {100};
    constexpr int32_t kType = WEFT_DTYPE_F32;
    const std::vector<std::function<weft_status(void*, void*)>> calls = {
        [&](void* src, void* dst) {
          return weft_all_gather(r.comm, src, dst, 100, kType, &options, nullptr);
        },
        [&](void* src, void* dst) {
          return weft_reduce_scatter(r.comm, src, dst, 100, kType, WEFT_OP_SUM, &options, nullptr);
        },
        [&](void* src, void* dst) {
          return weft_all_to_all(r.comm, src, dst, 100, kType, &options, nullptr);
        },
        [&](void* src, void* dst) {
          return weft_all_gather_v(r.comm, src, dst, counts, nullptr, kType, &options, nullptr);
        },
        [&](void* src, void* dst) {
          return weft_reduce_scatter_v(r.comm, src, dst, counts, nullptr, kType, WEFT_OP_MAX, &options,
                                       nullptr);
        },
        [&](void* src, void* dst) {
          return weft_scatter_v(r.comm, src, dst, counts, nullptr, kType, 0, &options, nullptr);
        },
        [&](void* src, void* dst) {
          return weft_all_to_all_v(r.comm, src, counts, nullptr, dst, counts, nullptr, kType, &options,
                                   nullptr);
        },
    };
    void* const misaligned = reinterpret_cast<char*>(here.get()) + 2;
    for (const bool grouped : {false, true}) {
      if (grouped) f.expect(weft_group_begin(r.comm) == WEFT_OK);
      for (const auto& call : calls) {
        f.expect(call(here.get(), also_here.get()) == WEFT_OK);
        for (void* wrong : {static_cast<void*>(host.data()), static_cast<void*>(there.get()), freed, pinned,
                            misaligned, static_cast<void*>(here.get() + 1)}) {
          f.expect(call(wrong, also_here.get()) == WEFT_ERR_ARG);
          f.expect(error_of(r.comm).find(": src ") != std::string::npos);
          f.expect(call(also_here.get(), wrong) == WEFT_ERR_ARG);
          f.expect(error_of(r.comm).find(": dst ") != std::string::npos);
        }
      }
      if (grouped) f.expect(weft_group_end(r.comm, nullptr) == WEFT_OK);
    }
    cudaFreeHost(pinned);
  });
  CHECK(error == "");
  CHECK(f.wrong == 0);
}

TEST_CASE("managed memory counts as memory of every device and of the host, pinned memory as the host's") {
  const FakeCuda fake(2);
  Findings f;
  const std::string error = run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream first(0), second(1);
    void *managed = nullptr, *pinned = nullptr;
    cudaMallocManaged(&managed, 400, cudaMemAttachGlobal);
    cudaHostAlloc(&pinned, 400, 0);
    for (const weft_stream* stream :
         {first.view(), second.view(), static_cast<const weft_stream*>(nullptr)}) {
      auto* const values = static_cast<int32_t*>(managed);
      for (int i = 0; i < 100; i++) values[i] = i + r.rank;
      const weft_coll_options options = on(stream);
      f.expect(weft_all_reduce(r.comm, values, values, 100, WEFT_DTYPE_I32, WEFT_OP_SUM, &options, nullptr) ==
               WEFT_OK);
      for (int i = 0; i < 100; i++) f.expect(values[i] == 2 * i + 1);
      const bool host = stream == nullptr;
      std::memset(pinned, 0, 400);
      if (host) {
        f.expect(weft_all_reduce(r.comm, pinned, pinned, 100, WEFT_DTYPE_I32, WEFT_OP_SUM, &options,
                                 nullptr) == WEFT_OK);
      } else {
        f.expect(weft_all_reduce(r.comm, pinned, pinned, 100, WEFT_DTYPE_I32, WEFT_OP_SUM, &options,
                                 nullptr) == WEFT_ERR_ARG);
        f.expect(error_of(r.comm).find("src is pinned host memory") != std::string::npos);
      }
    }
    cudaFree(managed);
    cudaFreeHost(pinned);
  });
  CHECK(error == "");
  CHECK(f.wrong == 0);
}

TEST_CASE("sparse sums of device memory are refused by name, as weft_capability reports") {
  const FakeCuda fake;
  Findings f;
  const std::string error = run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    for (const int32_t kind : {WEFT_DEVICE_HOST, WEFT_DEVICE_CUDA}) {
      uint8_t supported = 9;
      f.expect(weft_capability(r.context, "loopback", WEFT_COLL_SPARSE_ALL_REDUCE, WEFT_DTYPE_F32,
                               WEFT_OP_SUM, kind, &supported) == WEFT_OK);
      f.expect(supported == (kind == WEFT_DEVICE_HOST ? 1 : 0));
    }
    const Stream stream;
    const weft_coll_options options = on(stream);
    const int64_t shape = 100;
    weft_sparse entries{}, result{};
    entries.struct_size = result.struct_size = sizeof entries;
    f.expect(weft_sparse_all_reduce(r.comm, &entries, &shape, 1, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                                    &result, nullptr) == WEFT_ERR_UNSUPPORTED);
    f.expect(error_of(r.comm) == "sparse_all_reduce does not support device memory: pass host memory");
    f.expect(weft_sparse_all_reduce(r.comm, &entries, &shape, 1, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                                    &result, nullptr) == WEFT_OK);
    weft_sparse_release(&result);
  });
  CHECK(error == "");
  CHECK(f.wrong == 0);
}

TEST_CASE("a device that the program does not use is left alone, and its threads keep their device") {
  const FakeCuda fake(2);
  Findings f;
  const std::string error = run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream(1);
    DeviceBuffer<float> buffer(1000, 1);
    const weft_coll_options options = on(stream);
    for (int round = 0; round < 3; round++) {
      weft_request* request = nullptr;
      f.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), 1000, WEFT_DTYPE_F32, WEFT_OP_SUM,
                               &options, &request) == WEFT_OK);
      f.expect(weft_request_wait(request, 10'000) == WEFT_OK);
      weft_request_release(&request);
    }
    int device = -1;
    f.expect(cudaGetDevice(&device) == cudaSuccess && device == 1);
    std::thread([&] {  // a thread that has not chosen a device
      f.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), 1000, WEFT_DTYPE_F32, WEFT_OP_SUM,
                               &options, nullptr) == WEFT_OK);
      f.expect(cudaGetDevice(&device) == cudaSuccess && device == 0);
    })
        .join();
  });
  CHECK(error == "");
  CHECK(f.wrong == 0);
  CHECK(fake_cuda_has_context(1));
  CHECK_FALSE(fake_cuda_has_context(0));
}

TEST_CASE("streams that are captured, or of a device that is not theirs, are refused") {
  const FakeCuda fake(2);
  Findings f;
  const std::string error = run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream(1);
    DeviceBuffer<float> buffer(10, 1);
    const auto reduce = [&](const weft_stream* given) {
      const weft_coll_options options = on(given);
      return weft_all_reduce(r.comm, buffer.get(), buffer.get(), 10, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                             nullptr);
    };
    f.expect(reduce(stream.view()) == WEFT_OK);
    cudaGraph_t graph = nullptr;
    cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal);
    f.expect(reduce(stream.view()) == WEFT_ERR_UNSUPPORTED);
    f.expect(error_of(r.comm).find("is being captured into a graph") != std::string::npos);
    f.expect(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
    cudaGraphDestroy(graph);
    f.expect(reduce(stream.view()) == WEFT_OK);
    for (const int32_t device : {-1, 0, 2}) {
      weft_stream wrong = *stream.view();
      wrong.device = device;
      f.expect(reduce(&wrong) == WEFT_ERR_ARG);
    }
    // The default stream of the buffer's device.
    const weft_stream usual = {sizeof usual, WEFT_DEVICE_CUDA, 1, nullptr};
    f.expect(reduce(&usual) == WEFT_OK);
  });
  CHECK(error == "");
  CHECK(f.wrong == 0);
}

TEST_CASE("an operation on a device without enough memory is refused, leaks nothing, and later ones work") {
  const char* const calls[] = {"cudaHostAlloc", "cudaHostRegister", "cudaStreamCreate",
                               "cudaEventCreateWithFlags", "cudaEventRecord"};
  for (const char* call : calls) {
    INFO(call);
    const FakeCuda fake;
    Findings f;
    const std::string error = run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      const Stream stream;
      DeviceBuffer<float> buffer(10);
      const weft_coll_options options = on(stream.view());
      const auto reduce = [&](weft_request** request) {
        return weft_all_reduce(r.comm, buffer.get(), buffer.get(), 10, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                               request);
      };
      fake_cuda_fail(call, cudaErrorMemoryAllocation);
      weft_request* request = nullptr;
      f.expect(reduce(&request) == WEFT_ERR_NOMEM);
      f.expect(request == nullptr);
      f.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess);
      f.expect(reduce(nullptr) == WEFT_OK);
      // In a group, the failed allocation refuses only the part or the call that needed it.
      fake_cuda_fail(call, cudaErrorMemoryAllocation);
      f.expect(weft_group_begin(r.comm) == WEFT_OK);
      (void)reduce(nullptr);
      (void)weft_group_end(r.comm, nullptr);
      fake_cuda_fail(call, 0);
      f.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess);
      f.expect(reduce(nullptr) == WEFT_OK);
    });
    CHECK(error == "");
    CHECK(f.wrong == 0);
  }
}

TEST_CASE("a driver that is missing, too old or not one is named, and a stream is refused for it") {
  {
    const FakeCuda fake;
    fake_cuda_versions(0, -1);
    contains(reason_of(nullptr), "there is no NVIDIA driver");
    fake_cuda_versions(0, 11'080);
    contains(reason_of(nullptr), "driver is for CUDA 11.8, and Weft needs one for 12.0");
    fake_cuda_versions(-1, 0);
    contains(reason_of(nullptr), "Weft needs 12.0");
    fake_cuda_versions(0, 0);
    contains(reason_of("libm.so.6"), "cudaRuntimeGetVersion");
    CHECK(reason_of(nullptr) == "available");
    fake_cuda_versions(0, -1);
    Findings f;
    const std::string error = run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      const weft_stream stream = {sizeof stream, WEFT_DEVICE_CUDA, 0, nullptr};
      const weft_coll_options options = on(&stream);
      f.expect(weft_barrier(r.comm, &options, nullptr) == WEFT_ERR_UNAVAILABLE);
      f.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);
    });
    CHECK(error == "");
    CHECK(f.wrong == 0);
    fake_cuda_versions(0, 0);
  }
  // A folder without the module.
  char folder[] = "/tmp/weft_no_modules_XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  contains(reason_of(nullptr, folder), "libweft-cuda.so");
  std::filesystem::remove(folder);
}

}  // namespace capi_cuda_misuse
