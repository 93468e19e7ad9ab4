#include "pickle.h"

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace {

using nlohmann::json;

// Opcodes of protocol 2 (pickletools.py of Python documents them).
constexpr char kProtocol = '\x80', kVersion = 2, kStop = '.', kNone = 'N', kTrue = '\x88', kFalse = '\x89',
               kInteger = '\x8a', kFloat = 'G', kText = 'X', kEmptyDict = '}', kEmptyList = ']', kMark = '(',
               kSetItems = 'u', kAppends = 'e';

void put_little(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) *out += static_cast<char>(value >> (8 * i) & 0xFF);
}

void put_text(const std::string& text, std::string* out) {
  if (text.size() > UINT32_MAX) throw std::length_error("a text is too long for a pickle");
  *out += kText;
  put_little(text.size(), 4, out);
  *out += text;
}

void put_value(const json& value, std::string* out) {
  switch (value.type()) {
    case json::value_t::object:
      *out += {kEmptyDict, kMark};
      for (const auto& [key, one] : value.items()) {
        put_text(key, out);
        put_value(one, out);
      }
      *out += kSetItems;
      break;
    case json::value_t::array:
      *out += {kEmptyList, kMark};
      for (const json& one : value) put_value(one, out);
      *out += kAppends;
      break;
    case json::value_t::string:
      put_text(value.get_ref<const std::string&>(), out);
      break;
    case json::value_t::boolean:
      *out += value.get<bool>() ? kTrue : kFalse;
      break;
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      *out += {kInteger, 8};  // with its number of bytes
      put_little(static_cast<uint64_t>(value.get<int64_t>()), 8, out);
      break;
    case json::value_t::number_float: {
      const auto bits = std::bit_cast<uint64_t>(value.get<double>());
      *out += kFloat;
      for (int shift = 56; shift >= 0; shift -= 8) *out += static_cast<char>(bits >> shift & 0xFF);
      break;
    }
    default:
      *out += kNone;
  }
}

}  // namespace

std::string pickle_of(const json& value) {
  std::string out = {kProtocol, kVersion};
  put_value(value, &out);
  return out + kStop;
}
