// The table of algorithms and the selection from it. Lanes call it when they build a schedule. Threads: any
// thread; the table is constant.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coll/algorithm.h"

namespace weft::coll {

using AlgorithmRow = const Algorithm& (*)();
std::span<const AlgorithmRow> algorithms();

// Overrides of the table's choice. Equal on all ranks.
class Forced {
 public:
  // Names an algorithm of the table for sizes (Shape::bytes) from `from` and below `end`. Returns kArg if
  // another one is named for some of them.
  Status add(const Algorithm& algorithm, uint64_t from = 0, uint64_t end = UINT64_MAX);
  // Returns the algorithm that is named for a size; null: the table decides.
  const Algorithm* named(Coll coll, uint64_t bytes) const;
  // Returns true if an algorithm is named for every size.
  bool covers(Coll coll) const;

  std::optional<uint64_t> one_shot = {};  // Shape::one_shot, as measured
  bool measure = true;                    // one_shot may be measured

 private:
  struct Range {
    const Algorithm* algorithm;
    uint64_t from, end;
  };
  std::vector<Range> ranges_;  // disjoint; those of a collective in ascending order
};

// Parses WEFT_TUNE: "all_reduce:0-4K:doubling,4K-inf:ring;broadcast:flat" or "off"; an empty text forces
// nothing. Returns kArg, listing the valid names, for anything else.
Status parse_forced(std::string_view text, Forced* forced);

// Returns "; one_shot up to 64 KiB (measured)" or the like; empty where the table decides.
std::string text(const Forced& forced);

// Returns the named algorithm, or else the first row that applies. Inputs that are folded at once ignore a
// named algorithm that folds partial results.
const Algorithm& select(Coll coll, const Shape& shape, const Forced& forced);

}  // namespace weft::coll
