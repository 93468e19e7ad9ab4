// CUDA buffers in tests of the C ABI: the fake CUDA, which a context loads in place of the real one; or that
// one, in tests/gpu (WEFT_TEST_REAL_CUDA).
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

// For the time of a test. At its end nothing was done wrong and nothing is left.
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

// What ranks note: Catch2's assertions are for the main thread.
class Notes {
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
  bool empty() const { return text_.empty(); }  // once ranks are gone

 private:
  std::mutex mutex_;
  std::string text_;
};

// Why a communicator failed, or refused a call.
inline std::string error_of(const weft_comm* comm) {
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_error(comm, &error);
  return error.text;
}

// A stream of the program's on a device, as Weft takes it.
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
  // Nothing behind this runs until open is 1.
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

// Elements in device memory, and pinned memory from which they are written in the order of a stream.
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
  // On the stream; the call before has run.
  template <class Make>
  void write(const Stream& stream, Make&& make) {
    for (size_t i = 0; i < count_; i++) host_[i] = make(i);
    cudaSetDevice(stream.device());
    cudaMemcpyAsync(device_, host_, count_ * sizeof(T), cudaMemcpyHostToDevice, stream.get());
  }
  // What the stream sees there once it has come to it.
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
