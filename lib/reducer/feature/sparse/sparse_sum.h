// weft_sparse_all_reduce: runs the exchange of a sparse gradient (sparse.h) as one composite operation. The
// caller's thread calls put, and next runs under the progress lock.
#pragma once

#include <weft/weft.h>

#include <atomic>

#include "engine/composite.h"
#include "reducer/feature/sparse/sparse_gradient.h"

namespace weft {

class SparseSum final : public Composite {
 public:
  // The last stage fills result; result and ops outlive the operation.
  SparseSum(const Param& param, const HostAllocator& allocator, const DeviceOps& ops, int rank, int size,
            bool mean, weft_sparse* result);
  ~SparseSum() override;
  // Adds this rank's entries. kArg, kNoMemory.
  Status put(const weft_sparse& entries);

  Status next(CollectiveArgs* stage, Next* what) override;
  const char* name() const override { return "sparse"; }

  // Frees the memory of a result.
  static void release(weft_sparse* result);

 private:
  Status begin_result();
  bool copy_piece();

  const HostAllocator allocator_;
  const DeviceOps& ops_;
  const uint64_t row_bytes_;
  const uint64_t dimensions_;
  weft_sparse* const result_;
  std::atomic<uint64_t> bytes_{0};
  SparseGradient gradient_;
  SparseGradient::Terms terms_;
  uint32_t stage_ = 0;
  bool begun_ = false;
  bool entered_ = false;
  weft_sparse sum_ = WEFT_SPARSE_INIT;     // the gradient's result, while it is copied
  weft_sparse copied_ = WEFT_SPARSE_INIT;  // the copy; result_ receives it when it is complete
  uint64_t index_bytes_ = 0;
  uint64_t value_bytes_ = 0;
  uint64_t done_bytes_ = 0;  // of indices and values together
};

}  // namespace weft
