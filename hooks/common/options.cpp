#include "common/options.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/text.h"

namespace weft {
namespace {

constexpr std::string_view kSeparators = " ,\t\n";

// Parses the whole text as a number.
template <class Number>
bool parse(const std::string& text, Number* value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

// Returns the shortest text that parses to the same value.
std::string number_text(double value) {
  std::array<char, 32> text;
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

}  // namespace

Options::Options(std::string hook, std::string_view text) : hook_(std::move(hook)) {
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(kSeparators), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (one.empty()) continue;
    const size_t equal = one.find('=');
    if (equal == std::string_view::npos) {
      if (status_.ok()) {
        status_ = Status::error(Code::kArg,
                                cat("hook '", hook_, "': option '", one, "' has no value: write key=value"));
      }
      continue;
    }
    given_.emplace_back(one.substr(0, equal), one.substr(equal + 1));
  }
}

const std::string* Options::take(const char* key) {
  known_ += cat(known_.empty() ? "" : ", ", key);
  const auto found =
      std::find_if(given_.begin(), given_.end(), [&](const auto& g) { return g.first == key; });
  return found == given_.end() ? nullptr : &found->second;
}

void Options::bad(const char* key, const std::string& value, const std::string& wanted) {
  if (!status_.ok()) return;
  status_ = Status::error(Code::kArg,
                          cat("hook '", hook_, "': option ", key, " is '", value, "', must be ", wanted));
}

void Options::keep(const char* key, const std::string& value) {
  full_ += cat(full_.empty() ? "" : " ", key, "=", value);
}

Options& Options::integer(const char* key, int64_t* value, int64_t low, int64_t high) {
  if (const std::string* text = take(key); text != nullptr) {
    int64_t read = 0;
    if (parse(*text, &read) && read >= low && read <= high) {
      *value = read;
    } else {
      bad(key, *text, cat("an integer from ", low, " to ", high));
    }
  }
  keep(key, std::to_string(*value));
  return *this;
}

Options& Options::real(const char* key, double* value, double low, double high) {
  if (const std::string* text = take(key); text != nullptr) {
    double read = 0;
    if (parse(*text, &read) && read >= low && read <= high) {  // false for NaN
      *value = read;
    } else {
      bad(key, *text, cat("a number from ", low, " to ", high));
    }
  }
  keep(key, number_text(*value));
  return *this;
}

Options& Options::flag(const char* key, bool* value) {
  int64_t number = *value ? 1 : 0;
  integer(key, &number, 0, 1);
  *value = number != 0;
  return *this;
}

Options& Options::choice(const char* key, int* value, std::initializer_list<const char*> names) {
  if (const std::string* text = take(key); text != nullptr) {
    const auto* const found = std::find(names.begin(), names.end(), *text);
    if (found != names.end()) {
      *value = static_cast<int>(found - names.begin());
    } else {
      bad(key, *text, cat("one of ", list_text(names)));
    }
  }
  keep(key, names.begin()[*value]);
  return *this;
}

Status Options::done(std::string* name) {
  for (size_t i = 0; i < given_.size() && status_.ok(); i++) {
    const std::string& key = given_[i].first;
    const std::string padded = cat(", ", known_, ",");
    if (padded.find(cat(", ", key, ",")) == std::string::npos) {
      status_ = Status::error(Code::kArg, cat("hook '", hook_, "' has no option '", key, "'; ",
                                              known_.empty() ? "it has none" : cat("it has ", known_)));
    }
    for (size_t j = 0; j < i && status_.ok(); j++) {
      if (given_[j].first == key) {
        status_ = Status::error(Code::kArg, cat("hook '", hook_, "': option ", key, " is given twice"));
      }
    }
  }
  if (name != nullptr) *name = full_.empty() ? hook_ : cat(hook_, "(", full_, ")");
  return status_;
}

Status check_rescue(const std::string& hook, bool rescue, bool feedback) {
  if (!rescue || feedback) return {};
  return Status::error(
      Code::kArg,
      cat("hook '", hook, "': rescue=1 needs the error memory: turn error feedback on, or set rescue=0"));
}

}  // namespace weft
