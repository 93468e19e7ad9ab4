#include "reducer/feature/sparse/sparse_sum.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/round_up.h"
#include "base/text.h"
#include "reducer/bucket/buckets.h"

namespace weft {
namespace {

// The header in front of a result's indices.
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
      gradient_(param, allocator, &bytes_) {
  terms_.rank = rank;
  terms_.size = size;
  terms_.divisor = mean ? size : 1;
}

// Frees a result that the caller did not receive.
SparseSum::~SparseSum() {
  release(&copied_);
}

Status SparseSum::put(const weft_sparse& entries) {
  WEFT_TRY(gradient_.check(entries));
  WEFT_TRY(gradient_.put(entries, false));
  return gradient_.complete(ops_);
}

Status SparseSum::next(CollectiveArgs* stage, Next* what) {
  *what = Next::kMore;
  if (copied_.count > 0) {
    if (!copy_piece()) *what = Next::kOver;
    return {};
  }
  if (!std::exchange(begun_, true)) gradient_.begin(terms_);
  if (!std::exchange(entered_, true)) WEFT_TRY(gradient_.enter(stage_));
  if (!gradient_.work(ops_)) return {};
  entered_ = false;
  if (stage_ == SparseGradient::kCollectives) {
    WEFT_TRY(begin_result());
    if (copied_.count == 0) *what = Next::kOver;
    return {};
  }
  const uint32_t collective = stage_++;
  if (!gradient_.takes_place(collective)) return {};
  stage->coll = Coll::kAllGather;
  gradient_.fill(collective, stage);
  *what = Next::kRun;
  return {};
}

// Allocates the result as one block of the caller's own.
Status SparseSum::begin_result() {
  gradient_.result(&sum_);
  if (sum_.count == 0) return {};
  index_bytes_ = sum_.count * dimensions_ * sizeof(int64_t);
  value_bytes_ = sum_.count * row_bytes_;
  const uint64_t values_at = round_up(index_bytes_, kCacheLine);
  const uint64_t size = round_up(sizeof(Owner) + values_at + value_bytes_, kCacheLine);
  std::byte* const block = allocator_.get(size, kCacheLine);
  if (block == nullptr) {
    return Status::error(Code::kNoMemory,
                         cat("cannot allocate ", bytes_text(size), " for the sparse result"));
  }
  new (block) Owner{allocator_, size};
  copied_.count = sum_.count;
  copied_.indices = reinterpret_cast<const int64_t*>(block + sizeof(Owner));
  copied_.values = block + sizeof(Owner) + values_at;
  return {};
}

// Copies a piece of the result. True if there is more.
bool SparseSum::copy_piece() {
  const bool indices = done_bytes_ < index_bytes_;
  const uint64_t at = indices ? done_bytes_ : done_bytes_ - index_bytes_;
  const uint64_t bytes = std::min((indices ? index_bytes_ : value_bytes_) - at, kPieceBytes);
  const void* const from = indices ? sum_.indices : sum_.values;
  const void* const to = indices ? copied_.indices : copied_.values;
  if (bytes > 0) {
    std::memcpy(static_cast<std::byte*>(const_cast<void*>(to)) + at, static_cast<const std::byte*>(from) + at,
                bytes);
  }
  done_bytes_ += bytes;
  if (done_bytes_ < index_bytes_ + value_bytes_) return true;
  result_->count = copied_.count;
  result_->indices = copied_.indices;
  result_->values = copied_.values;
  copied_ = WEFT_SPARSE_INIT;
  return false;
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
