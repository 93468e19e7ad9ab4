// Element types, reductions and collectives: names, sizes, and which combinations make sense.
// The values are those of weft.h (checked in lib/capi/common.cpp).
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
  // Of collectives alone, and of those that reduce nothing.
  kF8E4m3 = 15,
  kF8E5m2,
};
inline constexpr int kDtypeCount = 12;  // those that are computed with, from 1 on
inline constexpr int kDtypeLast = 16;

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
};
inline constexpr int kReduceOpCount = 9;

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

// Whether there is arithmetic on it.
inline bool computes(Dtype d) {
  return static_cast<int>(d) >= 1 && static_cast<int>(d) <= kDtypeCount;
}
inline bool valid(Dtype d) {
  return computes(d) || d == Dtype::kF8E4m3 || d == Dtype::kF8E5m2;
}
inline bool valid(ReduceOp o) {
  return static_cast<int>(o) >= 1 && static_cast<int>(o) <= kReduceOpCount;
}
inline bool valid(Coll c) {
  return static_cast<int>(c) >= 1 && static_cast<int>(c) <= kCollCount;
}

// Size of an element in bytes; 0 for an invalid value.
uint32_t dtype_size(Dtype dtype);
bool is_float(Dtype dtype);  // of those that are computed with

// "f32", "sum", "all_reduce"; "?" for an invalid value (which may have come from another process).
const char* name(Dtype dtype);
const char* name(ReduceOp op);
const char* name(Coll coll);

bool is_reduction(Coll coll);  // has an op
bool has_root(Coll coll);
bool has_blocks(Coll coll);  // of different sizes (CollectiveArgs::blocks)
Coll even(Coll coll);        // the same with blocks of one size; itself where it has none

// Ok, or kUnsupported naming op and dtype: avg and premul_sum need floats, bitwise operations integers;
// floats of a byte are not reduced.
Status check_reduction(ReduceOp op, Dtype dtype);

// Names as given in files and on command lines; false if unknown.
bool parse(const char* text, Dtype* dtype);
bool parse(const char* text, ReduceOp* op);
bool parse(const char* text, Coll* coll);

}  // namespace weft
