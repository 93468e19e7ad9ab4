#include "reducer/feature/sparse/entries.h"

#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "base/text.h"

namespace weft {
namespace {

constexpr uint64_t kEntryAlignment = 64;
constexpr uint64_t kMostBytes = uint64_t{1} << 47;  // no machine has more, and sums of it do not overflow

struct Key {
  int64_t row;
  const std::byte* values;  // ascending in the order of the entries
};

// Sums the entries of one row, in their order.
void add_up(const SparseShape& shape, const DeviceOps& ops, const std::byte** inputs, uint64_t count,
            std::byte* sum) {
  constexpr uint64_t kMost = 1u << 16;
  FoldArgs fold;
  fold.dtype = shape.dtype;
  fold.outputs = &sum;
  fold.output_count = 1;
  fold.count = shape.row_elements;
  for (uint64_t done = 0; done < count;) {
    // The partial sum replaces the last input that it contains.
    if (done > 0) inputs[--done] = sum;
    const uint64_t now = std::min(count - done, kMost);
    fold.inputs = inputs + done;
    fold.input_count = static_cast<int>(now);
    ops.fold(fold);
    done += now;
  }
}

}  // namespace

Grown::~Grown() {
  if (block_ == nullptr) return;
  allocator_.put(block_, size_);
  total_->fetch_sub(size_, std::memory_order_relaxed);
}

Status Grown::reserve(uint64_t bytes, uint64_t keep) {
  if (bytes <= size_) return {};
  const auto refused = [&] {
    return Status::error(Code::kNoMemory,
                         cat("cannot allocate ", bytes_text(bytes), " for a sparse gradient"));
  };
  if (bytes > kMostBytes) return refused();
  // Reserves a little more, because counts vary.
  const uint64_t size = round_up(bytes + bytes / 8, kEntryAlignment);
  std::byte* const block = allocator_.get(size, kEntryAlignment);
  if (block == nullptr) return refused();
  if (keep > 0) std::memcpy(block, block_, keep);
  if (block_ != nullptr) allocator_.put(block_, size_);
  total_->fetch_add(size - size_, std::memory_order_relaxed);
  block_ = block;
  size_ = size;
  return {};
}

SparseShape::SparseShape(const Param& param) : dtype(param.dtype) {
  for (size_t d = 0; d < param.shape.size(); d++) {
    const auto extent = static_cast<uint64_t>(param.shape[d]);
    if (d < param.sparse_ndim) {
      extents.push_back(extent);
      rows *= extent;
    } else {
      row_elements *= extent;
    }
  }
  row_bytes = row_elements * dtype_size(dtype);
}

Status SparseShape::check(const weft_sparse& entries) const {
  if (entries.count == 0) return {};
  const auto bad = [](const std::string& what) { return Status::error(Code::kArg, what); };
  const uint64_t most = kMostBytes / (sizeof(int64_t) * extents.size() + row_bytes);
  if (entries.count > most) {
    return bad(cat("weft_sparse.count is ", entries.count, "; at most ", most, " entries are allowed"));
  }
  if (entries.indices == nullptr) return bad(cat("indices is NULL, but count is ", entries.count));
  if (entries.values == nullptr && row_bytes > 0)
    return bad(cat("values is NULL, but count is ", entries.count));
  if (reinterpret_cast<uintptr_t>(entries.indices) % sizeof(int64_t) != 0 ||
      reinterpret_cast<uintptr_t>(entries.values) % dtype_size(dtype) != 0) {
    return bad(cat("indices or values are not aligned to their elements of ", sizeof(int64_t), " and ",
                   dtype_size(dtype), " bytes"));
  }
  for (size_t d = 0; d < extents.size(); d++) {
    const int64_t* const indices = entries.indices + d * entries.count;
    const auto beyond = [&](int64_t index) { return static_cast<uint64_t>(index) >= extents[d]; };
    const int64_t* const found = std::find_if(indices, indices + entries.count, beyond);
    if (found == indices + entries.count) continue;
    return bad(cat("entry ", found - indices, " has index ", *found, " in dimension ", d, ", which has ",
                   extents[d], " elements"));
  }
  return {};
}

void SparseShape::to_rows(const weft_sparse& entries, int64_t* out) const {
  std::copy_n(entries.indices, entries.count, out);
  for (size_t d = 1; d < extents.size(); d++) {
    const int64_t* const indices = entries.indices + d * entries.count;
    for (uint64_t i = 0; i < entries.count; i++)
      out[i] = out[i] * static_cast<int64_t>(extents[d]) + indices[i];
  }
}

void SparseShape::to_indices(const int64_t* from, uint64_t count, int64_t* indices) const {
  for (uint64_t i = 0; i < count; i++) {
    auto rest = static_cast<uint64_t>(from[i]);
    for (size_t d = extents.size(); d-- > 0;) {
      indices[d * count + i] = static_cast<int64_t>(rest % extents[d]);
      rest /= extents[d];
    }
  }
}

Status Entries::append(const SparseShape& shape, const weft_sparse& entries) {
  const uint64_t count = count_ + entries.count;
  WEFT_TRY(rows_.reserve(count * sizeof(int64_t), count_ * sizeof(int64_t)));
  WEFT_TRY(values_.reserve(count * shape.row_bytes, count_ * shape.row_bytes));
  if (entries.count == 0) return {};
  shape.to_rows(entries, rows_.as<int64_t>() + count_);
  if (shape.row_bytes > 0) {
    std::memcpy(values_.data() + count_ * shape.row_bytes, entries.values, entries.count * shape.row_bytes);
  }
  count_ = count;
  return {};
}

Status Entries::coalesce(const SparseShape& shape, const DeviceOps& ops) {
  if (are_rows(rows(), count_, shape.rows)) return {};
  WEFT_TRY(keys_.reserve(count_ * sizeof(Key)));
  WEFT_TRY(inputs_.reserve(count_ * sizeof(std::byte*)));
  WEFT_TRY(spare_rows_.reserve(count_ * sizeof(int64_t)));
  WEFT_TRY(spare_values_.reserve(count_ * shape.row_bytes));
  Key* const keys = keys_.as<Key>();
  const auto** const inputs = inputs_.as<const std::byte*>();
  // If rows have no bytes, all pointers are equal, and their order does not matter.
  for (uint64_t i = 0; i < count_; i++) keys[i] = {rows()[i], values() + i * shape.row_bytes};
  std::sort(keys, keys + count_,
            [](const Key& a, const Key& b) { return a.row != b.row ? a.row < b.row : a.values < b.values; });
  uint64_t sums = 0;
  for (uint64_t first = 0, next = 0; first < count_; first = next) {
    for (next = first; next < count_ && keys[next].row == keys[first].row; next++)
      inputs[next - first] = keys[next].values;
    spare_rows_.as<int64_t>()[sums] = keys[first].row;
    if (shape.row_bytes > 0) {
      add_up(shape, ops, inputs, next - first, spare_values_.data() + sums * shape.row_bytes);
    }
    sums++;
  }
  rows_.swap(spare_rows_);
  values_.swap(spare_values_);
  count_ = sums;
  return {};
}

bool are_rows(const int64_t* rows, uint64_t count, uint64_t limit) {
  for (uint64_t i = 0; i < count; i++) {
    if (static_cast<uint64_t>(rows[i]) >= limit || (i > 0 && rows[i] <= rows[i - 1])) return false;
  }
  return true;
}

}  // namespace weft
