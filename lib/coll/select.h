// The table of algorithms and the selection from it. Lanes call it when they build a schedule. Threads: any
// thread; the table is constant.
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

// Overrides of the table's choice. Equal on all ranks.
struct Forced {
  std::array<const char*, kCollCount + 1> names{};  // by collective, for all shapes; null: the table decides
  const char*& operator[](Coll coll) { return names[static_cast<size_t>(coll)]; }
  const char* operator[](Coll coll) const { return names[static_cast<size_t>(coll)]; }
  std::optional<uint64_t> one_shot = {};  // Shape::one_shot
  bool measured = false;                  // one_shot was measured; false: it was given
  bool measure = true;                    // one_shot may be measured
};

// Parses "all_reduce=direct,broadcast=flat", "one_shot=64K" or "off"; an empty text forces nothing. Returns
// kArg, listing the valid names, for anything else.
Status parse_forced(std::string_view text, Forced* forced);

// Returns "; one_shot up to 64 KiB (measured)" or the like; empty where the table decides.
std::string text(const Forced& forced);

// Selects the forced algorithm, or else the first row that applies. Inputs that are folded at once ignore a
// forced algorithm that folds partial results. Returns kUnsupported, naming the algorithm, when a forced one
// is unknown.
Status select(Coll coll, const Shape& shape, const Forced& forced, const Algorithm** algorithm);

}  // namespace weft::coll
