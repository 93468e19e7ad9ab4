// Memory of a CUDA device for `weft bench --memory cuda`. It calls the CUDA runtime that Weft has loaded, so
// that weft-bench needs none to start.
#pragma once

#include <weft/weft.h>

#include <cstddef>
#include <cstdint>

#include "weft/job.h"

// The CUDA runtime, and this rank's device. Threads: the thread that made it.
class Cuda {
 public:
  // Chooses the device by the rank's number on its host. Throws std::runtime_error with the reason if there
  // is none.
  explicit Cuda(Job& job);

  const weft_stream* stream() const { return &stream_; }
  std::byte* allocate(uint64_t bytes) const;
  void free(std::byte* memory) const;
  // Copy between the host and the device, and return when it is done.
  void upload(std::byte* device, const std::byte* host, uint64_t bytes) const;
  void download(std::byte* host, const std::byte* device, uint64_t bytes) const;

 private:
  void check(int error, const char* call) const;

  struct Calls {
    int (*set_device)(int) = nullptr;
    int (*malloc)(void**, size_t) = nullptr;
    int (*free)(void*) = nullptr;
    int (*memcpy)(void*, const void*, size_t, int) = nullptr;
    int (*synchronize)() = nullptr;
    const char* (*error_text)(int) = nullptr;
  };
  Calls calls_;
  weft_stream stream_ = WEFT_STREAM_INIT;  // the default stream of the device
};

// A buffer on the device.
class CudaBuffer {
 public:
  CudaBuffer(const Cuda& cuda, uint64_t bytes) : cuda_(cuda), data_(cuda.allocate(bytes)) {}
  ~CudaBuffer() { cuda_.free(data_); }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  const Cuda& cuda_;
  std::byte* const data_;
};
