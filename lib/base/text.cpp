#include "base/text.h"

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <iterator>

namespace weft {
namespace {

std::string joined(std::initializer_list<const TextPart*> parts) {
  size_t length = 0;
  for (const TextPart* const part : parts) length += part->text().size();
  std::string text;
  text.reserve(length);
  for (const TextPart* const part : parts) text += part->text();
  return text;
}

}  // namespace

TextPart::TextPart(double number) {
  const int length = std::snprintf(digits_, sizeof digits_, "%g", number);
  text_ = std::string_view(digits_, static_cast<size_t>(length));
}

TextPart::TextPart(const void* address) {
  const int length = std::snprintf(digits_, sizeof digits_, "%p", address);
  text_ = std::string_view(digits_, static_cast<size_t>(length));
}

void TextPart::put(int64_t number) {
  const auto [end, error] = std::to_chars(digits_, std::end(digits_), number);
  text_ = std::string_view(digits_, static_cast<size_t>(end - digits_));
}

void TextPart::put(uint64_t number) {
  const auto [end, error] = std::to_chars(digits_, std::end(digits_), number);
  text_ = std::string_view(digits_, static_cast<size_t>(end - digits_));
}

std::string cat(const TextPart& a) {
  return std::string(a.text());
}

std::string cat(const TextPart& a, const TextPart& b) {
  return joined({&a, &b});
}

std::string cat(const TextPart& a, const TextPart& b, const TextPart& c) {
  return joined({&a, &b, &c});
}

std::string cat(const TextPart& a, const TextPart& b, const TextPart& c, const TextPart& d) {
  return joined({&a, &b, &c, &d});
}

std::string cat(const TextPart& a, const TextPart& b, const TextPart& c, const TextPart& d,
                const TextPart& e) {
  return joined({&a, &b, &c, &d, &e});
}

void append(std::string* text, std::span<const TextPart> parts) {
  for (const TextPart& part : parts) *text += part.text();
}

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
  const int shift = unit.empty()                 ? 0
                    : unit == "K" || unit == "k" ? 10
                    : unit == "M" || unit == "m" ? 20
                    : unit == "G" || unit == "g" ? 30
                                                 : -1;
  if (error != std::errc() || shift < 0 || number > (UINT64_MAX >> 1 >> shift)) return false;
  *bytes = number << shift;
  return true;
}

}  // namespace weft
