// The table of algorithms and the choice among them. Called by lanes when they build a schedule.
// Threads: any thread; the table is constant.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "base/status.h"
#include "coll/algorithm.h"

namespace weft::coll {

using AlgorithmRow = const Algorithm& (*)();
std::span<const AlgorithmRow> algorithms();

// Names of algorithms to use whatever the shape, by collective; null: the table's choice. Equal on all ranks.
struct Forced {
  std::array<const char*, kCollCount + 1> names{};
  const char*& operator[](Coll coll) { return names[static_cast<size_t>(coll)]; }
  const char* operator[](Coll coll) const { return names[static_cast<size_t>(coll)]; }
};

// Read "all_reduce=ring,broadcast=tree"; empty: nothing is forced. kArg naming what there is.
Status parse_forced(std::string_view text, Forced* forced);

// The first row that applies, or the forced one, unless the operation is ordered and it is not. kUnsupported,
// naming it, when a forced one is unknown.
Status select(Coll coll, const Shape& shape, const Forced& forced, const Algorithm** algorithm);

}  // namespace weft::coll
