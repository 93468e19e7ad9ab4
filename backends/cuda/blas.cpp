#include "blas.h"

#include <limits>
#include <utility>

#include "base/dl.h"
#include "base/text.h"

namespace weft::cuda {
namespace {

constexpr const char* kLibraries[] = {"libcublas.so.13", "libcublas.so.12"};
constexpr int kPlain = 0, kTransposed = 1;  // CUBLAS_OP_N, CUBLAS_OP_T

template <class Function>
Status find(const std::string& file, const char* symbol, Function* function) {
  void* address = nullptr;
  WEFT_TRY(load_symbol(file, symbol, &address));
  *function = reinterpret_cast<Function>(address);
  return {};
}

}  // namespace

Blas::~Blas() {
  for (const auto& [device, handle] : handles_) (void)call_.destroy(handle);
}

// Looks first in the file that replaces the runtime, then for a cuBLAS that the process has loaded, then for
// an installed one.
Status Blas::load() {
  void* found = nullptr;
  std::string file = library_.file;
  Status missing;
  if (!load_symbol(file, "cublasSgemm_v2", &found).ok()) {
    file.clear();
    for (const char* name : kLibraries) {
      if (file.empty() && is_loaded(name)) file = name;
    }
    for (const char* name : kLibraries) {
      if (!file.empty()) break;
      Status status = load_symbol(name, "cublasSgemm_v2", &found);
      if (status.ok()) file = name;
      if (missing.ok()) missing = std::move(status);
    }
  }
  if (file.empty()) return missing.with_prefix("cuBLAS 12 or 13 (libcublas.so) was ");
  WEFT_TRY(find(file, "cublasCreate_v2", &call_.create));
  WEFT_TRY(find(file, "cublasDestroy_v2", &call_.destroy));
  WEFT_TRY(find(file, "cublasSetStream_v2", &call_.set_stream));
  WEFT_TRY(find(file, "cublasGetStatusName", &call_.status_name));
  return find(file, "cublasSgemm_v2", &call_.sgemm);
}

Status Blas::check(const char* call, int result) const {
  if (result == 0) return {};
  constexpr int kNoMemory = 3;  // CUBLAS_STATUS_ALLOC_FAILED
  return Status::error(result == kNoMemory ? Code::kNoMemory : Code::kSystem,
                       cat("cuBLAS: ", call, ": ", call_.status_name(result), " (", result, ")"));
}

Status Blas::probe() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(tried_, true)) status_ = load();
  return status_;
}

Status Blas::handle_of(int device, Handle* handle) {
  Handle& known = handles_[device];
  if (known == nullptr) WEFT_TRY(check("cublasCreate_v2", call_.create(&known)));
  *handle = known;
  return {};
}

// cuBLAS sees a row-major matrix as its transpose, with `columns` values in a column.
Status Blas::multiply(int device, DeviceStream stream, const LowRankArgs& args) {
  WEFT_TRY(probe());
  constexpr uint64_t kMost = std::numeric_limits<int>::max();
  if (args.rows > kMost || args.columns > kMost || args.rank > kMost)
    return Status::error(Code::kUnsupported, cat("cuBLAS: a matrix of ", args.rows, " x ", args.columns,
                                                 " with rank ", args.rank, ": each may be at most ", kMost));
  const std::lock_guard lock(mutex_);
  Handle handle = nullptr;
  WEFT_TRY(handle_of(device, &handle));
  WEFT_TRY(check("cublasSetStream_v2", call_.set_stream(handle, static_cast<cudaStream_t>(stream))));
  const auto rows = static_cast<int>(args.rows), columns = static_cast<int>(args.columns),
             rank = static_cast<int>(args.rank);
  constexpr float kOne = 1, kZero = 0;
  for (uint64_t i = 0; i < args.batch; i++) {
    const float* const matrix = args.matrix + (args.offsets != nullptr ? args.offsets[i] : 0);
    float* const left = args.left + i * args.rows * args.rank;
    float* const right = args.right + i * args.columns * args.rank;
    const int result = args.product == LowRank::kLeft
                           ? call_.sgemm(handle, kTransposed, kPlain, rows, rank, columns, &kOne, matrix,
                                         columns, right, columns, &kZero, left, rows)
                           : call_.sgemm(handle, kPlain, kPlain, columns, rank, rows, &kOne, matrix, columns,
                                         left, rows, &kZero, right, columns);
    WEFT_TRY(check("cublasSgemm_v2", result));
  }
  return {};
}

}  // namespace weft::cuda
