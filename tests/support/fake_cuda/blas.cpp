// The fake's cuBLAS: handles that belong to a device, and matrix products that run in stream order.
#include <cstring>

#include "state.h"

using namespace fake;

namespace {

struct Handle {
  int device = 0;
  cudaStream_t stream = nullptr;
};

enum Result { kSuccess = 0, kNotInitialized = 1, kAllocationFailed = 3, kInvalidValue = 7 };

// Returns the host address of a column-major matrix in device memory. The caller holds the lock.
const float* place(const float* matrix, int rows, int columns, int stride) {
  const auto count =
      static_cast<size_t>(columns - 1) * static_cast<size_t>(stride) + static_cast<size_t>(rows);
  return reinterpret_cast<const float*>(reach(matrix, count * sizeof(float), "cublasSgemm"));
}

struct Product {
  bool transposed = false;  // whether a is transposed
  int m = 0, n = 0, k = 0;
  float alpha = 0, beta = 0;
  const float *a = nullptr, *b = nullptr;
  float* c = nullptr;
  int lda = 0, ldb = 0, ldc = 0;

  void run() {
    {
      const std::lock_guard lock(state().mutex);
      a = transposed ? place(a, k, m, lda) : place(a, m, k, lda);
      b = place(b, k, n, ldb);
      c = const_cast<float*>(place(c, m, n, ldc));
      if (a == nullptr || b == nullptr || c == nullptr) return;
    }
    for (int j = 0; j < n; j++) {
      for (int i = 0; i < m; i++) {
        double sum = 0;
        for (int l = 0; l < k; l++) {
          const float left = transposed ? a[l + ptrdiff_t{i} * lda] : a[i + ptrdiff_t{l} * lda];
          sum += double{left} * double{b[l + ptrdiff_t{j} * ldb]};
        }
        float& out = c[i + ptrdiff_t{j} * ldc];
        out = static_cast<float>(double{alpha} * sum + (beta == 0 ? 0 : double{beta} * double{out}));
      }
    }
  }
};

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  const std::lock_guard lock(state().mutex);
  if (failure("cublasCreate_v2") != cudaSuccess) return kAllocationFailed;
  *handle = new Handle{current_device(), nullptr};
  return kSuccess;
}
int cublasDestroy_v2(void* handle) {
  if (handle == nullptr) return kNotInitialized;
  delete static_cast<Handle*>(handle);
  return kSuccess;
}
const char* cublasGetStatusName(int status) {
  switch (status) {
    case kSuccess:
      return "CUBLAS_STATUS_SUCCESS";
    case kNotInitialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kAllocationFailed:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    default:
      return "CUBLAS_STATUS_INVALID_VALUE";
  }
}
int cublasSetStream_v2(void* handle, cudaStream_t stream) {
  const std::lock_guard lock(state().mutex);
  if (handle == nullptr) return kNotInitialized;
  const auto known = find_stream(stream, "cublasSetStream");
  if (known == nullptr) return kInvalidValue;
  if (known->device != static_cast<Handle*>(handle)->device)
    problem("cublasSetStream of a stream of another device");
  static_cast<Handle*>(handle)->stream = stream;
  return kSuccess;
}
int cublasSgemm_v2(void* given, int op_a, int op_b, int m, int n, int k, const float* alpha, const float* a,
                   int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
  const std::lock_guard lock(state().mutex);
  auto* const handle = static_cast<Handle*>(given);
  if (handle == nullptr) return kNotInitialized;
  const bool transposed = op_a == 1;
  if (op_a < 0 || op_a > 1 || op_b != 0 || m < 0 || n < 0 || k < 0 || lda < (transposed ? k : m) || ldb < k ||
      ldc < m) {
    problem("cublasSgemm with sizes that make no sense");
    return kInvalidValue;
  }
  if (handle->device != current_device()) problem("cublasSgemm while another device is current");
  const auto stream = find_stream(handle->stream, "cublasSgemm");
  if (stream == nullptr) return kInvalidValue;
  enqueue(stream, {{}, [p = Product{transposed, m, n, k, *alpha, *beta, a, b, c, lda, ldb, ldc}]() mutable {
                     p.run();
                   }});
  return kSuccess;
}

}  // extern "C"
