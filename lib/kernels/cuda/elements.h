// Elements of each type as kernels compute with them. The bodies of kernels compile with both nvcc and the
// host's compiler: the fake CUDA runs the same lines as a GPU, and tests compare them with the host's
// kernels. They round like lib/kernels/scalar.h: once, to nearest even, denormals kept, every NaN replaced by
// the positive quiet one. Compile without contraction (-fmad=false).
#pragma once

#include <cstdint>
#include <cstring>

#include "device/device_kernels.h"

#ifdef __CUDACC__
#define WEFT_KERNEL_CODE __device__ __forceinline__
#define WEFT_KERNEL_UNROLL _Pragma("unroll")
#else
#define WEFT_KERNEL_CODE inline
#define WEFT_KERNEL_UNROLL
#endif

namespace weft::cuda {

// A thread's position, and the number of threads.
struct Place {
  uint32_t block;
  uint32_t thread;
  uint32_t threads;
};

// Values of Dtype and ReduceOp (base/dtype.h), which nvcc need not see.
enum : uint8_t { kU8 = 1, kI8, kU16, kI16, kU32, kI32, kU64, kI64, kF16, kBf16, kF32, kF64 };
enum : uint8_t { kSum = 1, kAvg, kProd, kMin, kMax, kBand, kBor, kBxor, kPremulSum };

template <class To, class From>
WEFT_KERNEL_CODE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

WEFT_KERNEL_CODE float canonical(float v) {
  return v != v ? bits_as<float>(uint32_t{0x7FC00000}) : v;
}
WEFT_KERNEL_CODE double canonical(double v) {
  return v != v ? bits_as<double>(uint64_t{0x7FF8000000000000}) : v;
}

// Stores the type T itself. load returns a value of the type used for computing, Math.
template <class T>
struct Plain {
  using Stored = T;
  using Math = T;
  static constexpr bool kFloat = T(0.5) != T(0);
  static WEFT_KERNEL_CODE Math load(Stored v) { return v; }
  static WEFT_KERNEL_CODE Stored pack(Math v) {
    if constexpr (kFloat) return canonical(v);
    return v;
  }
};

struct F64 : Plain<double> {};

struct F32 : Plain<float> {
  using Plain<float>::pack;
  static WEFT_KERNEL_CODE float pack(double v) { return canonical(static_cast<float>(v)); }
};

struct Bf16 {
  using Stored = uint16_t;
  using Math = float;
  static constexpr bool kFloat = true;
  static WEFT_KERNEL_CODE float load(uint16_t half) { return bits_as<float>(uint32_t{half} << 16); }
  static WEFT_KERNEL_CODE uint16_t pack(float value) {
    const auto bits = bits_as<uint32_t>(canonical(value));
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
};

struct F16 {
  using Stored = uint16_t;
  using Math = float;
  static constexpr bool kFloat = true;
  static WEFT_KERNEL_CODE float load(uint16_t half) {
    const uint32_t magnitude = half & 0x7FFFu;
    const uint32_t sign = (uint32_t{half} & 0x8000u) << 16;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    if (magnitude >= 0x7C00) {
      bits += 112u << 23;
    } else if (magnitude < 0x0400) {
      bits = bits_as<uint32_t>(bits_as<float>(bits + (1u << 23)) - 6.103515625e-05f);  // 2^-14
    }
    return bits_as<float>(sign | bits);
  }
  static WEFT_KERNEL_CODE uint16_t pack(float value) {
    const auto bits = bits_as<uint32_t>(canonical(value));
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    uint32_t half;
    if (magnitude > 0x7F800000) {
      half = 0x7E00;
    } else if (magnitude >= 0x477FF000) {
      half = 0x7C00;
    } else if (magnitude < 0x38800000) {
      half = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3F000000u;
    } else {
      half = ((magnitude + 0xFFF + ((magnitude >> 13) & 1)) >> 13) - (112u << 10);
    }
    return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
  }
};

// Converts to f32, with the last bit set if anything was lost. Rounding the result to 16 bits then equals
// rounding once.
WEFT_KERNEL_CODE float odd_from(double value) {
  const auto nearest = static_cast<float>(value);
  if (value != value || nearest == value) return nearest;
  const auto bits = bits_as<uint32_t>(nearest);
  if (bits & 1) return nearest;
  const double a = nearest < 0 ? -static_cast<double>(nearest) : static_cast<double>(nearest);
  const double b = value < 0 ? -value : value;
  return bits_as<float>(a > b ? bits - 1 : bits + 1);
}

// Enough elements to read and write memory 16 bytes at a time, for the wider of the two types.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

}  // namespace weft::cuda
