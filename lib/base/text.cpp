#include "base/text.h"

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

}  // namespace weft
