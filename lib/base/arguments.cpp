#include "base/arguments.h"

#include <sstream>
#include <string>

#include "base/text.h"

namespace weft {
namespace {

constexpr int64_t kInfinite = -1;  // WEFT_TIMEOUT_INFINITE
constexpr int64_t kPoll = -2;      // WEFT_TIMEOUT_POLL

std::string hex(uint64_t value) {
  std::ostringstream out;
  out << "0x" << std::hex << value;
  return std::move(out).str();
}

std::string named(NamedValue value) {
  return cat(value.name, " (", static_cast<int64_t>(value.value), ")");
}

}  // namespace

Status check_flags(std::string_view field, uint64_t flags, std::span<const NamedValue> allowed) {
  uint64_t unknown = flags;
  for (const NamedValue& flag : allowed) unknown &= ~flag.value;
  if (unknown == 0) return {};  // allocates nothing: every step runs this
  std::string list;
  for (const NamedValue& flag : allowed)
    list += cat(list.empty() ? "" : ", ", flag.name, " (", hex(flag.value), ")");
  return Status::error(Code::kArg, cat(field, " has unknown flags ", hex(unknown), ": ",
                                       list.empty() ? "it must be 0" : cat("allowed are ", list)));
}

Status check_choice(std::string_view field, int64_t value, std::span<const NamedValue> allowed) {
  for (const NamedValue& each : allowed) {
    if (static_cast<int64_t>(each.value) == value) return {};
  }
  std::string list;
  for (const NamedValue& each : allowed) list += cat(list.empty() ? "" : ", ", named(each));
  return Status::error(Code::kArg, cat(field, " is ", value, ": allowed are ", list));
}

Status check_timeout(std::string_view field, int64_t timeout_ms, bool may_poll) {
  if (timeout_ms >= (may_poll ? kPoll : kInfinite)) return {};
  return Status::error(Code::kArg, cat(field, " is ", timeout_ms,
                                       ": allowed are milliseconds above 0, 0 for the default, and "
                                       "WEFT_TIMEOUT_INFINITE (-1)",
                                       may_poll ? ", and WEFT_TIMEOUT_POLL (-2)" : ""));
}

Status check_range(std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return Status::error(Code::kArg, cat(field, " is ", value, ": allowed are ", least, " to ", most));
}

Status check_constants(std::string_view field, int64_t value, NamedValue first, NamedValue last) {
  if (value >= static_cast<int64_t>(first.value) && value <= static_cast<int64_t>(last.value)) return {};
  return Status::error(Code::kArg,
                       cat(field, " is ", value, ": allowed are ", named(first), " to ", named(last)));
}

}  // namespace weft
