#include "option_checks.h"

#include <charconv>
#include <cmath>
#include <cstdio>

CLI::Validator number_from(double least, double most) {
  char range[64];
  std::snprintf(range, sizeof range, "%.10g - %.10g", least, most);
  const auto check = [least, most, text = std::string(range)](const std::string& word) -> std::string {
    double number = 0;
    const char* const end = word.data() + word.size();
    const auto [parsed, error] = std::from_chars(word.data(), end, number);
    if (error == std::errc() && parsed == end && std::isfinite(number) && number >= least && number <= most)
      return {};
    return "Value " + word + " not in range [" + text + "]";
  };
  return {check, std::string("FLOAT in [") + range + "]"};
}
