// cuBLAS for products with thin factors: found and loaded when they are first asked for, a handle a device.
// Declared here, since CUDA's headers may be installed without cuBLAS's. Threads: any thread.
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

  // kUnavailable with "because ..." where there is no cuBLAS.
  Status probe();
  // left = matrix * right, or right = transposed matrix * left, of each of the batch. The device is the
  // current one. offsets are read now. The first one on a device takes long.
  Status multiply(int device, DeviceStream stream, const LowRankArgs& args);

 private:
  using Handle = void*;
  struct Calls {
    int (*create)(Handle* handle) = nullptr;
    int (*destroy)(Handle handle) = nullptr;
    int (*set_stream)(Handle handle, cudaStream_t stream) = nullptr;
    // Column-major: c = alpha * op(a) * op(b) + beta * c.
    int (*sgemm)(Handle handle, int op_a, int op_b, int m, int n, int k, const float* alpha, const float* a,
                 int lda, const float* b, int ldb, const float* beta, float* c, int ldc) = nullptr;
  };
  Status load();
  Status handle_of(int device, Handle* handle);

  const Library& library_;
  std::mutex mutex_;    // held while cuBLAS is called: a handle is one thread's at a time
  bool tried_ = false;  // guarded by mutex_, as all below
  Status status_;
  Calls call_;
  std::map<int, Handle> handles_;
};

}  // namespace weft::cuda
