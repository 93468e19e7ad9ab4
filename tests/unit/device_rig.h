// A device and its memory for tests of the CUDA module's kernels: the fake CUDA, or a real GPU in tests/gpu
// (WEFT_TEST_REAL_CUDA).
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "runtime.h"
#include "support/catch.h"
#ifndef WEFT_TEST_REAL_CUDA
#include "support/fake_cuda/fake_cuda.h"
#endif

namespace weft::test {

// The accelerator and a stream. Checks at the end that the fake was not misused.
class Device {
 public:
#ifdef WEFT_TEST_REAL_CUDA
  Device() : runtime_("") { open(); }
  ~Device() { cudaStreamDestroy(stream_); }
#else
  explicit Device(uint64_t seed = 1) : runtime_(fake_path()) {
    fake_cuda_setup(1, seed, 20);
    open();
  }
  ~Device() {
    cudaStreamDestroy(stream_);
    CHECK(std::string(fake_cuda_problems()).empty());
    CHECK(std::string(fake_cuda_live()).empty());
  }
  static std::string fake_path() {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&fake_cuda_setup), &info);
    return info.dli_fname;
  }
#endif
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  cuda::Runtime& runtime() { return runtime_; }
  cudaStream_t stream() const { return stream_; }
  void synchronize() { REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess); }

 private:
  void open() {
    std::string detail;
    const Status probed = runtime_.probe(&detail);
    INFO(probed.text());
    REQUIRE(probed.ok());
    REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
  }
  cuda::Runtime runtime_;
  cudaStream_t stream_ = nullptr;
};

// Bytes in device memory, `offset` bytes after an aligned address, with guards on both sides.
class Memory {
 public:
  static constexpr size_t kGuard = 64;
  Memory(size_t size, size_t offset) : size_(size), begin_(kGuard + offset) {
    REQUIRE(cudaMalloc(&block_, begin_ + size + kGuard) == cudaSuccess);
    put(std::vector<std::byte>(begin_ + size + kGuard, std::byte{0xA5}), 0);
  }
  ~Memory() { cudaFree(block_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(block_) + begin_; }
  void write(const std::vector<std::byte>& bytes) { put(bytes, begin_); }
  std::vector<std::byte> read() {
    std::vector<std::byte> all(begin_ + size_ + kGuard);
    REQUIRE(cudaMemcpy(all.data(), block_, all.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    const auto begin = all.begin() + static_cast<ptrdiff_t>(begin_);
    const auto end = begin + static_cast<ptrdiff_t>(size_);
    const auto marked = [](std::byte b) { return b == std::byte{0xA5}; };
    CHECK(std::all_of(all.begin(), begin, marked));
    CHECK(std::all_of(end, all.end(), marked));
    return {begin, end};
  }

 private:
  void put(const std::vector<std::byte>& bytes, size_t at) {
    REQUIRE(cudaMemcpy(static_cast<std::byte*>(block_) + at, bytes.data(), bytes.size(),
                       cudaMemcpyHostToDevice) == cudaSuccess);
  }
  const size_t size_;
  const size_t begin_;
  void* block_ = nullptr;
};

// Elements in device memory, between guards, copied from the host. Allocates at least one element.
template <class T>
class Values {
 public:
  explicit Values(const std::vector<T>& values)
      : count_(values.size()), memory_(std::max<size_t>(values.size(), 1) * sizeof(T), 0) {
    std::vector<std::byte> bytes(std::max<size_t>(values.size(), 1) * sizeof(T));
    if (count_ > 0) std::memcpy(bytes.data(), values.data(), count_ * sizeof(T));
    memory_.write(bytes);
  }
  explicit Values(size_t count) : Values(std::vector<T>(count)) {}
  T* get() const { return reinterpret_cast<T*>(memory_.get()); }
  std::vector<T> read() {
    const std::vector<std::byte> bytes = memory_.read();
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), bytes.data(), count_ * sizeof(T));
    return values;
  }

 private:
  const size_t count_;
  Memory memory_;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace weft::test
