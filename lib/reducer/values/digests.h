// Compares the values of the ranks by digests: one for each parameter, and one for all of them. If that
// differs, a search finds the first parameter that differs, exchanging a few digests per round. Used by
// Reducer::check and as steps begin. Pure functions except for the memory that they read. Threads: any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "reducer/bucket/layout.h"

namespace weft {

// Returns the digest of a value in the order of its elements, whatever its strides. Not secure against an
// adversary.
uint64_t digest_value(const Layout& layout, const std::byte* value);
// Returns the digest of consecutive parameters' digests; for a single one, that digest itself.
uint64_t digest_range(std::span<const uint64_t> digests);

// The search: each round divides a range of parameters into at most kBranches parts, whose digests the ranks
// exchange.
class DigestSearch {
 public:
  static constexpr size_t kBranches = 16;
  using Row = std::array<uint64_t, kBranches>;

  explicit DigestSearch(std::span<const uint64_t> mine) : mine_(mine), end_(mine.size()) {}
  Row row() const;
  // rows: of all ranks, from other processes. False if they do not differ, so that there is nothing to find.
  bool descend(std::span<const Row> rows);
  bool found() const { return found_; }
  // Return the parameter's position among the digests, and each rank's digest of it. Valid once found.
  size_t at() const { return begin_; }
  const std::vector<uint64_t>& digests() const { return column_; }

 private:
  size_t width() const { return (end_ - begin_ + kBranches - 1) / kBranches; }

  std::span<const uint64_t> mine_;
  size_t begin_ = 0, end_;
  bool found_ = false;
  std::vector<uint64_t> column_;
};

// Returns the ranks whose value differs from the most common one. In a tie the value of the lowest rank
// counts as right.
std::vector<int> minority(std::span<const uint64_t> digests);

}  // namespace weft
