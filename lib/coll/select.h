// The table of algorithms and the choice among them. Called by lanes when they build a schedule.
// Threads: any thread; the table is constant.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "coll/algorithm.h"

namespace weft::coll {

using AlgorithmRow = const Algorithm& (*)();
std::span<const AlgorithmRow> algorithms();

// What is used in place of the table's choice. Equal on all ranks.
struct Forced {
  std::array<const char*, kCollCount + 1> names{};  // by collective, whatever the shape; null: the table's
  const char*& operator[](Coll coll) { return names[static_cast<size_t>(coll)]; }
  const char* operator[](Coll coll) const { return names[static_cast<size_t>(coll)]; }
  std::optional<uint64_t> one_shot = {};  // Shape::one_shot
  bool measured = false;                  // it was; else it is given
  bool measure = true;                    // it may be
};

// Read "all_reduce=ring,broadcast=tree", "one_shot=64K" or "off"; empty: nothing is forced. kArg naming what
// there is.
Status parse_forced(std::string_view text, Forced* forced);

// "; one_shot up to 64 KiB (measured)", or nothing where that is the table's.
std::string text(const Forced& forced);

// The first row that applies, or the forced one, unless the operation is ordered and it is not. kUnsupported,
// naming it, when a forced one is unknown.
Status select(Coll coll, const Shape& shape, const Forced& forced, const Algorithm** algorithm);

}  // namespace weft::coll
