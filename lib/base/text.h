// Text for errors and logs. cat(a, b, ...) concatenates its arguments into one string. Not for hot paths.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// An argument of cat: text, a character, an address, or a number in decimal digits (six significant ones of a
// floating-point number). Refers to the text that it is made from. Conversions are implicit, so that calls of
// cat instantiate no template for their types: they are many, and compile faster.
class TextPart {
 public:
  // NOLINTBEGIN(google-explicit-constructor): implicit, see above
  TextPart(std::string_view text) : text_(text) {}
  TextPart(const std::string& text) : text_(text) {}
  TextPart(const char* text) : text_(text) {}
  TextPart(char one) : text_(digits_, 1) { digits_[0] = one; }
  template <class Number>
    requires std::signed_integral<Number> || std::unsigned_integral<Number>
  TextPart(Number number) {
    std::signed_integral<Number> ? put(static_cast<int64_t>(number)) : put(static_cast<uint64_t>(number));
  }
  TextPart(double number);
  TextPart(const void* address);
  // NOLINTEND(google-explicit-constructor)
  TextPart(const TextPart&) = delete;
  TextPart& operator=(const TextPart&) = delete;

  std::string_view text() const { return text_; }

 private:
  void put(int64_t number);
  void put(uint64_t number);

  char digits_[24];
  std::string_view text_;
};

std::string cat(const TextPart& a);
std::string cat(const TextPart& a, const TextPart& b);
std::string cat(const TextPart& a, const TextPart& b, const TextPart& c);
std::string cat(const TextPart& a, const TextPart& b, const TextPart& c, const TextPart& d);
std::string cat(const TextPart& a, const TextPart& b, const TextPart& c, const TextPart& d,
                const TextPart& e);
// Appends the parts.
void append(std::string* text, std::span<const TextPart> parts);
template <std::convertible_to<TextPart>... More>
std::string cat(const TextPart& a, const TextPart& b, const TextPart& c, const TextPart& d, const TextPart& e,
                const More&... more) {
  std::string text = cat(a, b, c, d, e);
  const TextPart rest[] = {more...};
  append(&text, rest);
  return text;
}

// Returns "2.5 MiB", "640 B".
std::string bytes_text(uint64_t bytes);
// Parses "64K", "1M" or "100"; false for anything else.
bool parse_bytes(std::string_view text, uint64_t* bytes);
// Returns "0, 3, 4 and 2 more".
template <class Ints>
std::string list_text(const Ints& values, size_t most = 16) {
  std::string text;
  size_t shown = 0;
  for (const auto& value : values) {
    if (shown == most) return cat(text, " and ", values.size() - most, " more");
    text += cat(shown++ ? ", " : "", value);
  }
  return text;
}

}  // namespace weft
