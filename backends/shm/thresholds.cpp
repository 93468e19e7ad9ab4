#include "thresholds.h"

#include "base/text.h"

namespace weft::shm {
namespace {

Status wrong(std::string_view entry, const std::string& why) {
  return Status::error(Code::kArg, cat("WEFT_SHM_THRESHOLDS has the entry \"", entry, "\", which ", why));
}

Status parse_entry(std::string_view entry, WantedThresholds* wanted) {
  const size_t equals = entry.find('=');
  const std::string_view name = entry.substr(0, equals);
  const std::string_view value = equals == entry.npos ? "" : entry.substr(equals + 1);
  if (entry == "off") {
    wanted->measure = false;
    return {};
  }
  uint64_t bytes = 0;
  if (name == "one-shot") {
    if (!parse_bytes(value, &bytes) || bytes > kHalfBytes) {
      return wrong(entry, cat("has no size from 0 to ", kHalfBytes >> 10, "K, such as one-shot=16K"));
    }
    wanted->one_shot = bytes;
    return {};
  }
  if (name == "pull") {
    if (value != "never" && !parse_bytes(value, &bytes))
      return wrong(entry, "has no size such as 1M, and not the word never");
    wanted->pull = value == "never" ? kNever : bytes;
    return {};
  }
  return wrong(entry, "must be off, one-shot=SIZE or pull=SIZE");
}

}  // namespace

Thresholds table_thresholds(int ranks) {
  Thresholds thresholds;
  thresholds.one_shot = ranks <= 2 ? 4 << 10 : 8 << 10;
  return thresholds;
}

std::string text(const Thresholds& thresholds) {
  const char* const origin = thresholds.origin == Thresholds::Origin::kMeasured ? "measured"
                             : thresholds.origin == Thresholds::Origin::kGiven  ? "given"
                                                                                : "from the table";
  return cat(
      "one-shot up to ", bytes_text(thresholds.one_shot), ", two-shot",
      thresholds.pull == kNever ? std::string() : cat(", from ", bytes_text(thresholds.pull), " on pulled"),
      " (", origin, ")");
}

Status parse_thresholds(std::string_view text, WantedThresholds* wanted) {
  *wanted = {};
  constexpr size_t kShown = 64;  // a value may be arbitrarily long
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    WEFT_TRY(parse_entry(entry.substr(0, kShown), wanted));
  }
  return {};
}

}  // namespace weft::shm
