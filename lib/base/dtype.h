// Element types, reductions and collectives: names, sizes, and valid combinations. The values are those of
// weft.h (checked in lib/capi/common.cpp).
#pragma once

#include <cstdint>

#include "base/status.h"

namespace weft {

enum class Dtype : uint8_t {
  kU8 = 1,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kC64,     // reduced as pairs of f32
  kC128,    // reduced as pairs of f64
  kF8E4m3,  // only for collectives that do not reduce, and kUser
  kF8E5m2,  // likewise
  kBool,    // one byte, 0 or 1; reduced as u8
};
inline constexpr int kDtypeCount = 12;  // types with kernels, from 1 on
inline constexpr int kDtypeLast = 17;

enum class ReduceOp : uint8_t {
  kNone = 0,
  kSum = 1,
  kAvg,
  kProd,
  kMin,
  kMax,
  kBand,
  kBor,
  kBxor,
  kPremulSum,
  kUser,  // a function of the program (lib/coll/user_reduction.h)
};
inline constexpr int kReduceOpCount = 9;  // with kernels, from 1 on
inline constexpr int kReduceOpLast = 10;

enum class Coll : uint8_t {
  kAllReduce = 1,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
  kAllGatherV,
  kReduceScatterV,
  kGatherV,
  kScatterV,
  kAllToAllV,
  kSparseAllReduce,
};
inline constexpr int kCollCount = 17;

// Returns true if there are kernels for the type.
inline bool computes(Dtype d) {
  return static_cast<int>(d) >= 1 && static_cast<int>(d) <= kDtypeCount;
}
inline bool valid(Dtype d) {
  return static_cast<int>(d) >= 1 && static_cast<int>(d) <= kDtypeLast;
}
inline bool is_complex(Dtype d) {
  return d == Dtype::kC64 || d == Dtype::kC128;
}
inline bool valid(ReduceOp o) {
  return static_cast<int>(o) >= 1 && static_cast<int>(o) <= kReduceOpLast;
}
inline bool valid(Coll c) {
  return static_cast<int>(c) >= 1 && static_cast<int>(c) <= kCollCount;
}

// Returns the bytes of an element; 0 for an invalid value.
uint32_t dtype_size(Dtype dtype);
uint32_t dtype_alignment(Dtype dtype);  // in bytes; 0 for an invalid value
bool is_float(Dtype dtype);             // among the types with kernels

// Return "f32", "sum", "all_reduce"; "?" for an invalid value (which may have come from another process).
const char* name(Dtype dtype);
const char* name(ReduceOp op);
const char* name(Coll coll);

bool is_reduction(Coll coll);  // has a reduction operation
bool has_root(Coll coll);
bool has_blocks(Coll coll);  // has blocks of different sizes (CollectiveArgs::blocks)
// Returns the collective with equal block sizes that corresponds to one with different sizes; other
// collectives are returned unchanged.
Coll even(Coll coll);

// Returns ok, or kUnsupported naming op and dtype: avg and premul_sum need floats or complex numbers, bitwise
// operations need integers or bool, complex numbers have sums only, and 8-bit floats cannot be reduced.
Status check_reduction(ReduceOp op, Dtype dtype);

// How a reduction that check_reduction accepts is computed: a complex number is two floats, and a bool is a
// u8 whose logical or and and are max and min.
struct Arithmetic {
  Dtype dtype;
  ReduceOp op;
  uint64_t parts;  // values of `dtype` per element
};
Arithmetic arithmetic(ReduceOp op, Dtype dtype);

// Parse names as used in files and on command lines; false if unknown.
bool parse(const char* text, Dtype* dtype);
bool parse(const char* text, ReduceOp* op);
bool parse(const char* text, Coll* coll);

}  // namespace weft
