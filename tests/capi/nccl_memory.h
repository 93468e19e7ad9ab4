// Values of every type, and device memory for ranks of nccl tests, on the fakes and on a real GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "capi/nccl_run.h"

namespace weft_test {

inline constexpr size_t kSizes[] = {0, 1, 1, 2, 2, 4, 4,
                                    8, 8, 2, 2, 4, 8};  // bytes, from WEFT_DTYPE_U8 to F64

// Stores a number >= 0 that the type can represent.
inline void put(char* to, int32_t dtype, double value) {
  auto bits = static_cast<uint64_t>(value);
  const auto single = static_cast<float>(value);
  uint32_t word = 0;
  std::memcpy(&word, &single, sizeof word);
  if (dtype == WEFT_DTYPE_F64) std::memcpy(&bits, &value, sizeof bits);
  if (dtype == WEFT_DTYPE_F32) bits = word;
  if (dtype == WEFT_DTYPE_BF16) bits = word >> 16;
  if (dtype == WEFT_DTYPE_F16) {
    int exponent = 0;
    const double part = std::frexp(value, &exponent);  // 0.5 to 1
    bits = part > 0
               ? static_cast<uint64_t>(exponent + 14) << 10 | static_cast<uint64_t>((part * 2 - 1) * 1024)
               : 0;
  }
  std::memcpy(to, &bits, kSizes[dtype]);
}

// Returns a value from 1 to 3. The sequence has no period, so a displaced block is noticed.
inline double value(int rank, size_t i, uint64_t seed = 0) {
  const uint64_t mixed =
      (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + (static_cast<uint64_t>(rank) * 31 + seed + 1) * 0x2545f491;
  return static_cast<double>(1 + (mixed ^ mixed >> 29) % 1021 % 3);
}

// A rank's memory on its device, and pinned memory for reading and writing it. All ranks create and free it
// together: CUDA waits for all devices, and no device may then hold an operation that waits for another rank.
class Memory {
 public:
  Memory(const Rank& rank, size_t bytes) : comm_(rank.comm), stream_(NcclRun::device(rank.rank)) {
    cudaMalloc(&device_, std::max<size_t>(bytes, 1));
    cudaHostAlloc(&pinned_, std::max<size_t>(bytes, 1), 0);
    weft_barrier(comm_, nullptr, nullptr);
  }
  ~Memory() {
    cudaStreamSynchronize(stream_.get());
    weft_barrier(comm_, nullptr, nullptr);
    cudaFree(device_);
    cudaFreeHost(pinned_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  const Stream& stream() const { return stream_; }
  char* get() const { return static_cast<char*>(device_); }
  void write(const std::vector<char>& bytes, void* to) const {
    if (bytes.empty()) return;
    cudaStreamSynchronize(stream_.get());
    std::memcpy(pinned_, bytes.data(), bytes.size());
    cudaMemcpyAsync(to, pinned_, bytes.size(), cudaMemcpyHostToDevice, stream_.get());
  }
  std::vector<char> read(size_t bytes, const void* from) const {
    if (bytes > 0) cudaMemcpyAsync(pinned_, from, bytes, cudaMemcpyDeviceToHost, stream_.get());
    cudaStreamSynchronize(stream_.get());
    const auto* const first = static_cast<const char*>(pinned_);
    return std::vector<char>(first, first + bytes);
  }

 private:
  weft_comm* const comm_;
  const Stream stream_;
  void* device_ = nullptr;
  void* pinned_ = nullptr;
};

}  // namespace weft_test
