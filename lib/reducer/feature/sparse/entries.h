// Entries of a sparse gradient: rows of a parameter, each with the values of its dense dimensions. Used by
// SparseGradient. Threads: values; one thread at a time.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "device/allocator.h"
#include "device/device.h"
#include "reducer/manifest/manifest.h"

namespace weft {

// A memory block that grows as needed and never shrinks, so that stable counts cause no allocations.
class Grown {
 public:
  // total: bytes of all Grown blocks of a reducer; outlives this.
  Grown(const HostAllocator& allocator, std::atomic<uint64_t>* total)
      : allocator_(allocator), total_(total) {}
  ~Grown();
  Grown(const Grown&) = delete;
  Grown& operator=(const Grown&) = delete;
  void swap(Grown& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
  }

  // Ensures room for `bytes` bytes and keeps the first `keep` of them. kNoMemory.
  Status reserve(uint64_t bytes, uint64_t keep = 0);
  std::byte* data() const { return block_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(block_);
  }

 private:
  const HostAllocator allocator_;
  std::atomic<uint64_t>* const total_;
  std::byte* block_ = nullptr;
  uint64_t size_ = 0;
};

// A sparse parameter as rows: the leading dimensions, which indices name, are flattened to one. The others
// make up a row.
struct SparseShape {
  explicit SparseShape(const Param& param);

  Dtype dtype;
  std::vector<uint64_t> extents;  // of the dimensions that indices name
  uint64_t rows = 1;
  uint64_t row_elements = 1;
  uint64_t row_bytes = 0;

  // kArg for entries that are malformed or outside the shape.
  Status check(const weft_sparse& entries) const;
  // Converts the indices of checked entries to row numbers.
  void to_rows(const weft_sparse& entries, int64_t* rows) const;
  // Converts row numbers to one line of `count` indices for each dimension.
  void to_indices(const int64_t* rows, uint64_t count, int64_t* indices) const;
};

class Entries {
 public:
  Entries(const HostAllocator& allocator, std::atomic<uint64_t>* total)
      : rows_(allocator, total),
        values_(allocator, total),
        spare_rows_(allocator, total),
        spare_values_(allocator, total),
        keys_(allocator, total),
        inputs_(allocator, total) {}

  uint64_t count() const { return count_; }
  const int64_t* rows() const { return rows_.as<int64_t>(); }
  const std::byte* values() const { return values_.data(); }
  void truncate(uint64_t count) { count_ = count; }
  // Appends checked entries. kNoMemory.
  Status append(const SparseShape& shape, const weft_sparse& entries);
  // Sorts the entries by row and makes rows unique: entries of the same row are summed in their order.
  // kNoMemory.
  Status coalesce(const SparseShape& shape, const DeviceOps& ops);

 private:
  Grown rows_;
  Grown values_;
  // Used by coalesce.
  Grown spare_rows_;
  Grown spare_values_;
  Grown keys_;
  Grown inputs_;
  uint64_t count_ = 0;
};

// True if the rows are strictly ascending and below the limit.
bool are_rows(const int64_t* rows, uint64_t count, uint64_t limit);

}  // namespace weft
