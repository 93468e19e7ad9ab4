// CUDA buffers in tests of the C ABI. Contexts load the fake CUDA in place of the real one; tests/gpu uses
// the real one (WEFT_TEST_REAL_CUDA).
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <weft/weft.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "support/catch.h"
#ifndef WEFT_TEST_REAL_CUDA
#include "support/fake_cuda/fake_cuda.h"
#endif

namespace weft_test {

#ifdef WEFT_TEST_REAL_CUDA
class FakeCuda {
 public:
  explicit FakeCuda(int = 1, uint64_t = 1, int = 0) {}
  ~FakeCuda() { CHECK(cudaDeviceSynchronize() == cudaSuccess); }
};
#else

// Installs the fake CUDA for a test. The destructor checks that CUDA was not misused and that nothing is left
// allocated.
class FakeCuda {
 public:
  explicit FakeCuda(int devices = 1, uint64_t seed = 1, int delay_us = 200) {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&fake_cuda_setup), &info);
    setenv("WEFT_CUDA_RUNTIME", info.dli_fname, 1);
    fake_cuda_setup(devices, seed, delay_us);
  }
  ~FakeCuda() {
    CHECK(std::string(fake_cuda_problems()) == "");
    CHECK(std::string(fake_cuda_live()) == "");
    CHECK(unsetenv("WEFT_CUDA_RUNTIME") == 0);
  }
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;
};

#endif

// Collects failures from ranks, because Catch2's assertions may only run on the main thread.
class RankFailures {
 public:
  void expect(const std::string& wrong) {
    const std::lock_guard lock(mutex_);
    if (!wrong.empty()) text_ += wrong + "\n";
  }
  void expect(bool ok, const std::string& what) { expect(ok ? std::string() : what); }
  void check() const {
    INFO(text_);
    CHECK(text_.empty());
  }
  bool empty() const { return text_.empty(); }  // only once the ranks have ended

 private:
  std::mutex mutex_;
  std::string text_;
};

// Returns the reason why a communicator failed or refused a call.
inline std::string error_of(const weft_comm* comm) {
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_error(comm, &error);
  return error.text;
}

// A CUDA stream of the program, with its weft_stream.
class Stream {
 public:
  explicit Stream(int device = 0) : device_(device) {
    cudaSetDevice(device);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    view_ = {sizeof(weft_stream), WEFT_DEVICE_CUDA, device, stream_};
  }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  const weft_stream* view() const { return &view_; }
  int device() const { return device_; }
  // Holds back all work that is queued on the stream after this call until *open is 1.
  void hold(const int* open) {
    cudaLaunchHostFunc(
        stream_,
        [](void* data) {
          while (__atomic_load_n(static_cast<const int*>(data), __ATOMIC_ACQUIRE) == 0) {
          }
        },
        const_cast<int*>(open));
  }

 private:
  const int device_;
  cudaStream_t stream_ = nullptr;
  weft_stream view_{};
};

inline weft_coll_options on(const weft_stream* stream) {
  weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
  options.stream = stream;
  return options;
}
inline weft_coll_options on(const Stream& stream) {
  return on(stream.view());
}

// Elements in device memory, and pinned memory for writing them in stream order.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count, int device = 0) : count_(count) {
    cudaSetDevice(device);
    cudaMalloc(&device_, count * sizeof(T));
    void* host = nullptr;
    cudaHostAlloc(&host, count * sizeof(T), 0);
    host_ = static_cast<T*>(host);
  }
  ~DeviceBuffer() {
    cudaFree(device_);
    cudaFreeHost(host_);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  T* get() const { return static_cast<T*>(device_); }
  // Writes the elements on the stream. The previous write must have completed.
  template <class Make>
  void write(const Stream& stream, Make&& make) {
    for (size_t i = 0; i < count_; i++) host_[i] = make(i);
    cudaSetDevice(stream.device());
    cudaMemcpyAsync(device_, host_, count_ * sizeof(T), cudaMemcpyHostToDevice, stream.get());
  }
  // Returns the contents in stream order: they include all work that is on the stream at the call.
  std::vector<T> read(const Stream& stream) {
    cudaSetDevice(stream.device());
    cudaMemcpyAsync(host_, device_, count_ * sizeof(T), cudaMemcpyDeviceToHost, stream.get());
    cudaStreamSynchronize(stream.get());
    return std::vector<T>(host_, host_ + count_);
  }

 private:
  const size_t count_;
  void* device_ = nullptr;
  T* host_ = nullptr;
};

}  // namespace weft_test
