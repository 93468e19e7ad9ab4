// Shared by tests of sparse gradients: entries with duplicates, and the equivalent dense gradient.
#pragma once

#include <map>

#include "reducer_rig.h"

namespace weft::test {

// Entries of a sparse parameter, as a program has them.
struct Coo {
  std::vector<int64_t> indices;  // one row for each indexed dimension
  Bytes values;
  uint64_t count = 0;

  weft_sparse c() const { return {sizeof(weft_sparse), count, indices.data(), values.data()}; }
};

inline uint64_t row_elements(const TestParam& param) {
  uint64_t elements = 1;
  for (size_t d = param.sparse_ndim; d < param.shape.size(); d++)
    elements *= static_cast<uint64_t>(param.shape[d]);
  return elements;
}

inline uint64_t row_count(const TestParam& param) {
  uint64_t rows = 1;
  for (size_t d = 0; d < param.sparse_ndim; d++) rows *= static_cast<uint64_t>(param.shape[d]);
  return rows;
}

// rows: in any order, with duplicates. value(entry, element).
template <class Value>
Coo make_coo(const TestParam& param, const std::vector<uint64_t>& rows, Value&& value) {
  Coo coo;
  coo.count = rows.size();
  coo.indices.resize(rows.size() * param.sparse_ndim);
  const uint64_t elements = row_elements(param);
  const uint32_t size = dtype_size(param.dtype);
  coo.values.resize(rows.size() * elements * size);
  for (uint64_t e = 0; e < rows.size(); e++) {
    uint64_t rest = rows[e];
    for (size_t d = param.sparse_ndim; d-- > 0;) {
      const auto extent = static_cast<uint64_t>(param.shape[d]);
      coo.indices[d * rows.size() + e] = static_cast<int64_t>(rest % extent);
      rest /= extent;
    }
    for (uint64_t k = 0; k < elements; k++) {
      store_as(param.dtype, value(e, k), coo.values.data() + (e * elements + k) * size);
    }
  }
  return coo;
}

inline double load(Dtype dtype, const std::byte* from) {
  double out = 0;
  CopyArgs args;
  args.src = from;
  args.dst = reinterpret_cast<std::byte*>(&out);
  args.count = 1;
  args.src_dtype = dtype;
  args.dst_dtype = Dtype::kF64;
  host_ops().copy(args);
  return out;
}

// Returns the row numbers of a result, which must be sorted and unique; empty if they are not.
inline std::vector<uint64_t> rows_of(const TestParam& param, const weft_sparse& result) {
  std::vector<uint64_t> rows;
  for (uint64_t e = 0; e < result.count; e++) {
    uint64_t row = 0;
    for (size_t d = 0; d < param.sparse_ndim; d++) {
      row = row * static_cast<uint64_t>(param.shape[d]) +
            static_cast<uint64_t>(result.indices[d * result.count + e]);
    }
    if (!rows.empty() && row <= rows.back()) return {};
    rows.push_back(row);
  }
  return rows;
}

}  // namespace weft::test
