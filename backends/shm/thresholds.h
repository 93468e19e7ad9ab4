// The sizes at which operations change their path, and how they are chosen: given, measured
// when a group is founded, or from a table. Equal on all ranks of a group. Pure functions, for founding.cpp,
// calibration.cpp and tests. Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "layout.h"
#include "nodes.h"

namespace weft::shm {

inline constexpr uint64_t kNever = UINT64_MAX;
inline constexpr uint64_t kPullMin = 1 << 20;  // of the table

struct Thresholds {
  enum class Origin : uint8_t { kTable, kMeasured, kGiven };
  // Up to here every rank of an all_reduce folds everybody's whole input itself: at most kHalfBytes.
  uint64_t one_shot = kHalfBytes;
  // From here on private memory is pulled from where it is, by any collective; kNever: it is staged.
  uint64_t pull = kNever;
  // From here on all-reduces of arenas go in two levels, where ranks are on several NUMA nodes; kNever: in
  // one.
  uint64_t two_level = kNever;
  Origin origin = Origin::kTable;
  bool operator==(const Thresholds&) const = default;
};

// Nothing is known of the machine: one_shot while its copies cost less than a second meeting, which waits for
// more ranks, and for those that have no core; two-shot, which works everywhere.
Thresholds table_thresholds(int ranks);

// "one-shot up to 64 KiB, two-shot, from 1 MiB on pulled (measured)"
std::string text(const Thresholds& thresholds);
// What follows it: "; 2 NUMA nodes of 4 ranks: two levels from 1 MiB on", or nothing if there is one.
std::string text(const Nodes& nodes, const Thresholds& thresholds);

// What WEFT_SHM_THRESHOLDS asks for. Empty: that all are measured. "off": that nothing is; what is not given
// comes from the table.
struct WantedThresholds {
  bool measure = true;
  std::optional<uint64_t> one_shot;
  std::optional<uint64_t> pull;
  std::optional<uint64_t> two_level;
};
// Read "off", "one-shot=64K,pull=never" or "off,pull=1M,two-level=4M". kArg saying what is wrong with it.
Status parse_thresholds(std::string_view text, WantedThresholds* wanted);

}  // namespace weft::shm
