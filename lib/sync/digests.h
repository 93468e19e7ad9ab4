// Whether the ranks hold the same values: a digest of each parameter, one of all of them, and, if that
// differs, the way down to the first parameter that differs, a few digests at a time. Used by Reducer::check
// and as steps begin. Pure functions but for the memory that they read. Threads: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sync/layout.h"

namespace weft {

// Of a value in the order of its elements, whatever its strides. It protects against no adversary.
uint64_t digest_value(const Layout& layout, const std::byte* value);
// Of consecutive parameters' digests; of one alone it is that one.
uint64_t digest_range(std::span<const uint64_t> digests);

// The way down: a range of parameters is cut into at most kBranches parts, and each rank tells the others its
// digests of these.
class DigestSearch {
 public:
  static constexpr size_t kBranches = 16;
  using Row = std::array<uint64_t, kBranches>;

  explicit DigestSearch(std::span<const uint64_t> mine) : mine_(mine), end_(mine.size()) {}
  Row row() const;
  // rows: of all ranks, from other processes. False if they do not differ, so that there is nothing to find.
  bool descend(std::span<const Row> rows);
  bool found() const { return found_; }
  // Once found: the parameter's place among the digests, and each rank's digest of it.
  size_t at() const { return begin_; }
  const std::vector<uint64_t>& digests() const { return column_; }

 private:
  size_t width() const { return (end_ - begin_ + kBranches - 1) / kBranches; }

  std::span<const uint64_t> mine_;
  size_t begin_ = 0, end_;
  bool found_ = false;
  std::vector<uint64_t> column_;
};

// The ranks that do not hold the value that most do; among equally many, what the lowest rank holds counts as
// right.
std::vector<int> minority(std::span<const uint64_t> digests);

}  // namespace weft
