#include "sync/sparse_sum.h"

#include <cstring>
#include <new>
#include <utility>

#include "base/round_up.h"
#include "base/text.h"

namespace weft {
namespace {

// Before the indices of a result.
struct alignas(kCacheLine) Owner {
  HostAllocator allocator;
  uint64_t bytes = 0;
};

}  // namespace

SparseSum::SparseSum(const Param& param, const HostAllocator& allocator, const DeviceOps& ops, int rank,
                     int size, bool mean, weft_sparse* result)
    : allocator_(allocator),
      ops_(ops),
      row_bytes_(SparseShape(param).row_bytes),
      dimensions_(param.sparse_ndim),
      result_(result),
      gradient_(param, allocator, false, &bytes_) {
  terms_.rank = rank;
  terms_.size = size;
  terms_.divisor = mean ? size : 1;
}

Status SparseSum::put(const weft_sparse& entries) {
  WEFT_TRY(gradient_.check(entries));
  WEFT_TRY(gradient_.put(entries, false));
  return gradient_.complete(ops_);
}

Status SparseSum::next(CollectiveArgs* stage, Next* what) {
  *what = Next::kMore;
  if (!std::exchange(begun_, true)) gradient_.begin(terms_);
  if (!std::exchange(entered_, true)) WEFT_TRY(gradient_.enter(stage_));
  if (!gradient_.work(ops_)) return {};
  entered_ = false;
  if (stage_ == SparseGradient::kCollectives) {
    *what = Next::kOver;
    return publish();
  }
  const uint32_t collective = stage_++;
  if (!gradient_.takes_place(collective)) return {};
  stage->coll = Coll::kAllGather;
  gradient_.fill(collective, stage);
  *what = Next::kRun;
  return {};
}

// In one block of the caller's own.
Status SparseSum::publish() {
  weft_sparse sum = WEFT_SPARSE_INIT;
  gradient_.result(&sum);
  result_->count = sum.count;
  if (sum.count == 0) return {};
  const uint64_t index_bytes = round_up(sum.count * dimensions_ * sizeof(int64_t), kCacheLine);
  const uint64_t value_bytes = sum.count * row_bytes_;
  const uint64_t size = round_up(sizeof(Owner) + index_bytes + value_bytes, kCacheLine);
  std::byte* const block = allocator_.get(size, kCacheLine);
  if (block == nullptr) {
    result_->count = 0;
    return Status::error(Code::kNoMemory, cat("cannot allocate ", bytes_text(size), " for the result"));
  }
  new (block) Owner{allocator_, size};
  std::byte* const indices = block + sizeof(Owner);
  std::memcpy(indices, sum.indices, sum.count * dimensions_ * sizeof(int64_t));
  if (value_bytes > 0) std::memcpy(indices + index_bytes, sum.values, value_bytes);
  result_->indices = reinterpret_cast<const int64_t*>(indices);
  result_->values = indices + index_bytes;
  return {};
}

void SparseSum::release(weft_sparse* result) {
  if (result->indices != nullptr) {
    const auto* const at = reinterpret_cast<const std::byte*>(result->indices) - sizeof(Owner);
    const Owner owner = *std::launder(reinterpret_cast<const Owner*>(at));
    owner.allocator.put(const_cast<std::byte*>(at), owner.bytes);
  }
  result->count = 0;
  result->indices = nullptr;
  result->values = nullptr;
}

}  // namespace weft
