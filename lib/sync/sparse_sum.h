// weft_sparse_all_reduce: a sparse gradient's way through a step (sparse.h) as one operation of a user's
// call. put by the caller's thread; next under the drive lock.
#pragma once

#include <weft/weft.h>

#include <atomic>

#include "core/program.h"
#include "sync/sparse.h"

namespace weft {

class SparseSum final : public Program {
 public:
  // result is filled by the last stage; it and ops outlive the operation.
  SparseSum(const Param& param, const HostAllocator& allocator, const DeviceOps& ops, int rank, int size,
            bool mean, weft_sparse* result);
  ~SparseSum() override;
  // This rank's entries. kArg, kNoMemory.
  Status put(const weft_sparse& entries);

  Status next(CollectiveArgs* stage, Next* what) override;
  const char* name() const override { return "sparse"; }

  // Free what is in a result.
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
  weft_sparse sum_ = WEFT_SPARSE_INIT;     // the gradient's, while it is copied
  weft_sparse copied_ = WEFT_SPARSE_INIT;  // the caller's own, which result_ is given when it is complete
  uint64_t index_bytes_ = 0;
  uint64_t value_bytes_ = 0;
  uint64_t done_bytes_ = 0;  // of both
};

}  // namespace weft
