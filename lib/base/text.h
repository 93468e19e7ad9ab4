// Text for errors and logs. cat(a, b, ...) concatenates its arguments into one string. Not for hot paths.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace weft {

template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

// Returns "2.5 MiB", "640 B".
std::string bytes_text(uint64_t bytes);
// Parses "64K", "1M" or "100"; false for anything else.
bool parse_bytes(std::string_view text, uint64_t* bytes);
// Returns "0, 3, 4 and 2 more".
template <class Ints>
std::string list_text(const Ints& values, size_t most = 16) {
  std::ostringstream out;
  size_t shown = 0;
  for (const auto& value : values) {
    if (shown == most) return cat(out.str(), " and ", values.size() - most, " more");
    out << (shown++ ? ", " : "") << value;
  }
  return out.str();
}

}  // namespace weft
