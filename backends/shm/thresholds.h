// The sizes at which operations change their path, and their origin: given, measured during group setup, or
// from a table. Equal on all ranks of a group. Pure functions, for group_setup.cpp, calibration.cpp and
// tests. Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "layout.h"

namespace weft::shm {

inline constexpr uint64_t kNever = UINT64_MAX;
inline constexpr uint64_t kPullMin = 1 << 20;  // value of the table

struct Thresholds {
  enum class Origin : uint8_t { kTable, kMeasured, kGiven };
  // Up to this size every rank of an all_reduce folds the whole inputs of all ranks itself: at most
  // kHalfBytes.
  uint64_t one_shot = kHalfBytes;
  // From this size on, any collective pulls private memory directly; kNever: it is staged.
  uint64_t pull = kNever;
  Origin origin = Origin::kTable;
  bool operator==(const Thresholds&) const = default;
};

// Returns the table's values, for an unknown machine. one_shot: as long as its copies cost less than a second
// synchronisation, which waits for more ranks and for those that have no core. Beyond it two-shot, which
// works everywhere.
Thresholds table_thresholds(int ranks);

// Returns "one-shot up to 64 KiB, two-shot, from 1 MiB on pulled (measured)".
std::string text(const Thresholds& thresholds);

// The parsed WEFT_SHM_THRESHOLDS. Empty: all values are measured. "off": none is measured, and the table
// supplies what is not given.
struct WantedThresholds {
  bool measure = true;
  std::optional<uint64_t> one_shot;
  std::optional<uint64_t> pull;
};
// Parses "off", "one-shot=64K,pull=never" or "off,pull=1M". Returns kArg with an explanation for anything
// else.
Status parse_thresholds(std::string_view text, WantedThresholds* wanted);

}  // namespace weft::shm
