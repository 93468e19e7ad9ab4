#include "base/text.h"

#include <charconv>
#include <cstdint>
#include <cstdio>

namespace weft {

std::string bytes_text(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    unit++;
  }
  char text[32];
  std::snprintf(
      text, sizeof text,
      unit == 0 || value == static_cast<double>(static_cast<uint64_t>(value)) ? "%.0f %s" : "%.1f %s", value,
      kUnits[unit]);
  return text;
}

bool parse_bytes(std::string_view text, uint64_t* bytes) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (error != std::errc() || shift < 0 || number > (UINT64_MAX >> 1 >> shift)) return false;
  *bytes = number << shift;
  return true;
}

}  // namespace weft
