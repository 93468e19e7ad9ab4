// cuBLAS for products with thin factors. It is found and loaded when first needed, with one handle for each
// device. Its functions are declared here, because CUDA's headers may be installed without cuBLAS's. Threads:
// any thread.
#pragma once

#include <map>
#include <mutex>

#include "core/accelerator.h"
#include "library.h"

namespace weft::cuda {

class Blas {
 public:
  explicit Blas(const Library& library) : library_(library) {}
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Returns kUnavailable with the reason if there is no cuBLAS.
  Status probe();
  // Computes left = matrix * right, or right = transposed matrix * left, for each member of the batch.
  // `device` is the current device. offsets are read before the call returns. The first call on a device
  // takes long.
  Status multiply(int device, DeviceStream stream, const LowRankArgs& args);

 private:
  using Handle = void*;
  struct Calls {
    int (*create)(Handle* handle) = nullptr;
    int (*destroy)(Handle handle) = nullptr;
    int (*set_stream)(Handle handle, cudaStream_t stream) = nullptr;
    const char* (*status_name)(int status) = nullptr;
    // Column-major: c = alpha * op(a) * op(b) + beta * c.
    int (*sgemm)(Handle handle, int op_a, int op_b, int m, int n, int k, const float* alpha, const float* a,
                 int lda, const float* b, int ldb, const float* beta, float* c, int ldc) = nullptr;
  };
  Status load();
  Status check(const char* call, int result) const;
  Status handle_of(int device, Handle* handle);

  const Library& library_;
  std::mutex mutex_;    // held during cuBLAS calls: one thread at a time may use a handle
  bool tried_ = false;  // guarded by mutex_, like all members below
  Status status_;
  Calls call_;
  std::map<int, Handle> handles_;
};

}  // namespace weft::cuda
