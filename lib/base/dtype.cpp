#include "base/dtype.h"

#include <cstring>
#include <iterator>

#include "base/text.h"

namespace weft {
namespace {

constexpr const char* kDtypeNames[] = {"?",   "u8",  "i8",   "u16",     "i16",     "u32",
                                       "i32", "u64", "i64",  "f16",     "bf16",    "f32",
                                       "f64", "c64", "c128", "f8_e4m3", "f8_e5m2", "bool"};
constexpr uint32_t kDtypeSizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1, 1};
constexpr const char* kOpNames[] = {"?",    "sum", "avg",  "prod",       "min", "max",
                                    "band", "bor", "bxor", "premul_sum", "user"};
constexpr const char* kCollNames[] = {"?",
                                      "all_reduce",
                                      "reduce",
                                      "broadcast",
                                      "all_gather",
                                      "reduce_scatter",
                                      "gather",
                                      "scatter",
                                      "all_to_all",
                                      "barrier",
                                      "send",
                                      "recv",
                                      "all_gather_v",
                                      "reduce_scatter_v",
                                      "gather_v",
                                      "scatter_v",
                                      "all_to_all_v",
                                      "sparse_all_reduce"};
static_assert(std::size(kDtypeNames) == kDtypeLast + 1 && std::size(kDtypeSizes) == kDtypeLast + 1);
static_assert(std::size(kOpNames) == kReduceOpLast + 1);
static_assert(std::size(kCollNames) == kCollCount + 1);

template <class Enum, size_t N>
bool parse_name(const char* text, const char* const (&names)[N], Enum* value) {
  for (size_t i = 1; i < N; i++) {
    if (names[i][0] != '?' && std::strcmp(text, names[i]) == 0) {
      *value = static_cast<Enum>(i);
      return true;
    }
  }
  return false;
}

}  // namespace

uint32_t dtype_size(Dtype dtype) {
  return valid(dtype) ? kDtypeSizes[static_cast<int>(dtype)] : 0;
}
uint32_t dtype_alignment(Dtype dtype) {
  return is_complex(dtype) ? dtype_size(dtype) / 2 : dtype_size(dtype);
}
bool is_float(Dtype dtype) {
  return computes(dtype) && dtype >= Dtype::kF16;
}

const char* name(Dtype dtype) {
  return kDtypeNames[valid(dtype) ? static_cast<int>(dtype) : 0];
}
const char* name(ReduceOp op) {
  return kOpNames[valid(op) ? static_cast<int>(op) : 0];
}
const char* name(Coll coll) {
  return kCollNames[valid(coll) ? static_cast<int>(coll) : 0];
}

bool is_reduction(Coll coll) {
  return coll == Coll::kAllReduce || coll == Coll::kReduce || coll == Coll::kReduceScatter ||
         coll == Coll::kReduceScatterV || coll == Coll::kSparseAllReduce;
}

bool has_root(Coll coll) {
  return coll == Coll::kReduce || coll == Coll::kBroadcast || coll == Coll::kGather ||
         coll == Coll::kScatter || coll == Coll::kGatherV || coll == Coll::kScatterV;
}

bool has_blocks(Coll coll) {
  return coll >= Coll::kAllGatherV && coll <= Coll::kAllToAllV;
}

Coll even(Coll coll) {
  switch (coll) {
    case Coll::kAllGatherV:
      return Coll::kAllGather;
    case Coll::kReduceScatterV:
      return Coll::kReduceScatter;
    case Coll::kGatherV:
      return Coll::kGather;
    case Coll::kScatterV:
      return Coll::kScatter;
    case Coll::kAllToAllV:
      return Coll::kAllToAll;
    default:
      return coll;
  }
}

Status check_reduction(ReduceOp op, Dtype dtype) {
  if (op == ReduceOp::kUser) return {};
  if (is_complex(dtype)) {
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum) return {};
    return Status::error(Code::kUnsupported,
                         cat("op ", name(op), " does not support complex numbers (dtype ", name(dtype),
                             "): allowed are sum, avg and premul_sum, and a reduction of the program"));
  }
  if (!computes(dtype) && dtype != Dtype::kBool) {
    return Status::error(
        Code::kUnsupported,
        cat("dtype ", name(dtype), " is not supported by reductions: convert it to f16, bf16 or f32"));
  }
  const bool needs_float = op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  const bool needs_integer = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  if (needs_float && !is_float(dtype)) {
    return Status::error(
        Code::kUnsupported,
        cat("op ", name(op),
            " requires a floating-point dtype (f16, bf16, f32, f64, c64 or c128), but the dtype is ",
            name(dtype)));
  }
  if (needs_integer && is_float(dtype)) {
    return Status::error(Code::kUnsupported,
                         cat("op ", name(op), " requires an integer dtype, but the dtype is ", name(dtype)));
  }
  return {};
}

Arithmetic arithmetic(ReduceOp op, Dtype dtype) {
  if (is_complex(dtype)) return {dtype == Dtype::kC64 ? Dtype::kF32 : Dtype::kF64, op, 2};
  if (dtype != Dtype::kBool) return {dtype, op, 1};
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBor;
  const bool all = op == ReduceOp::kProd || op == ReduceOp::kMin || op == ReduceOp::kBand;
  return {Dtype::kU8, any ? ReduceOp::kMax : all ? ReduceOp::kMin : op, 1};
}

bool parse(const char* text, Dtype* dtype) {
  return parse_name(text, kDtypeNames, dtype);
}
bool parse(const char* text, ReduceOp* op) {
  return parse_name(text, kOpNames, op);
}
bool parse(const char* text, Coll* coll) {
  return parse_name(text, kCollNames, coll);
}

}  // namespace weft
