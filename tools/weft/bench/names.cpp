#include "names.h"

#include <weft/weft.h>

#include <charconv>
#include <stdexcept>

namespace {

struct DtypeName {
  const char* name;
  int32_t dtype;
  uint32_t size;
};
constexpr DtypeName kDtypes[] = {
    {"u8", WEFT_DTYPE_U8, 1},     {"i8", WEFT_DTYPE_I8, 1},   {"u16", WEFT_DTYPE_U16, 2},
    {"i16", WEFT_DTYPE_I16, 2},   {"u32", WEFT_DTYPE_U32, 4}, {"i32", WEFT_DTYPE_I32, 4},
    {"u64", WEFT_DTYPE_U64, 8},   {"i64", WEFT_DTYPE_I64, 8}, {"f16", WEFT_DTYPE_F16, 2},
    {"bf16", WEFT_DTYPE_BF16, 2}, {"f32", WEFT_DTYPE_F32, 4}, {"f64", WEFT_DTYPE_F64, 8}};

struct OpName {
  const char* name;
  int32_t op;
};
constexpr OpName kOps[] = {{"sum", WEFT_OP_SUM}, {"avg", WEFT_OP_AVG},   {"prod", WEFT_OP_PROD},
                           {"min", WEFT_OP_MIN}, {"max", WEFT_OP_MAX},   {"band", WEFT_OP_BAND},
                           {"bor", WEFT_OP_BOR}, {"bxor", WEFT_OP_BXOR}, {"premul_sum", WEFT_OP_PREMUL_SUM}};

template <class Table>
auto find(const Table& table, const std::string& name, const char* what) {
  std::string choices;
  for (const auto& entry : table) {
    if (name == entry.name) return entry;
    choices += std::string(choices.empty() ? "" : ", ") + entry.name;
  }
  throw std::invalid_argument("unknown " + std::string(what) + " '" + name +
                              "', expected one of: " + choices);
}

}  // namespace

uint32_t dtype_size(int32_t dtype) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.size;
  }
  return 0;
}

bool dtype_is_float(int32_t dtype) {
  return dtype >= WEFT_DTYPE_F16;
}

int32_t parse_dtype(const std::string& name) {
  return find(kDtypes, name, "dtype").dtype;
}
int32_t parse_op(const std::string& name) {
  return find(kOps, name, "operation").op;
}

uint64_t parse_bytes(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const double factor = unit.empty()                 ? 1
                        : unit == "K" || unit == "k" ? 1 << 10
                        : unit == "M" || unit == "m" ? 1 << 20
                        : unit == "G" || unit == "g" ? 1 << 30
                                                     : 0;
  if (error != std::errc() || factor == 0 || !(value >= 0) || value * factor > 1e15) {
    throw std::invalid_argument(
        "'" + text + "' is not a number of bytes; write for example 8, 64K, 4M or 1G (at most 1e15 bytes)");
  }
  return static_cast<uint64_t>(value * factor);
}

std::string bytes_text(uint64_t bytes) {
  for (const auto& [shift, unit] : {std::pair(30, "G"), std::pair(20, "M"), std::pair(10, "K")}) {
    if (bytes >> shift != 0 && (bytes & ((uint64_t{1} << shift) - 1)) == 0) {
      return std::to_string(bytes >> shift) + unit;
    }
  }
  return std::to_string(bytes);
}
