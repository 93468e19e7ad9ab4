// Validates arguments with few allowed values. An error names the field, its value and the allowed values.
// Pure functions. Threads: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace weft {

// A flag or another constant of a public header, with its name there.
struct NamedValue {
  uint64_t value;
  const char* name;
};
#define WEFT_NAMED(constant)                   \
  ::weft::NamedValue {                         \
    static_cast<uint64_t>(constant), #constant \
  }

// Returns kArg if flags has a bit that none of `allowed` has.
Status check_flags(std::string_view field, uint64_t flags, std::span<const NamedValue> allowed);
// Returns kArg if the value is not one of `allowed`.
Status check_choice(std::string_view field, int64_t value, std::span<const NamedValue> allowed);
// Returns kArg for negative numbers, except WEFT_TIMEOUT_INFINITE and, if the call may poll,
// WEFT_TIMEOUT_POLL.
Status check_timeout(std::string_view field, int64_t timeout_ms, bool may_poll = false);
// Returns kArg unless least <= value <= most.
Status check_range(std::string_view field, int64_t value, int64_t least, int64_t most);
// Returns kArg unless first <= value <= last: "op is 77: allowed are WEFT_OP_SUM (1) to WEFT_OP_MAX (5)".
Status check_constants(std::string_view field, int64_t value, NamedValue first, NamedValue last);

}  // namespace weft
