// Loads elements of each type into vectors of the type used for computing, and stores them. f16 and bf16 are
// computed in f32. Compiled once for each instruction set; included only by the kernels of this folder.
// Pointers are aligned to at most one element.
//
// D is a Highway tag: the computed type and the number of lanes. A tag of one lane handles the rest at the
// end, so that the same instructions round it.
#if defined(WEFT_KERNELS_ELEMENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_ELEMENTS_INL_H
#undef WEFT_KERNELS_ELEMENTS_INL_H
#else
#define WEFT_KERNELS_ELEMENTS_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX2
inline constexpr bool kConvertsF16 = true;  // F16C rounds to nearest even and keeps denormals
#else
inline constexpr bool kConvertsF16 = false;
#endif

template <class To, class From>
HWY_INLINE const To* as(const From* bytes) {
  return reinterpret_cast<const To*>(bytes);
}
template <class To>
HWY_INLINE To* as(std::byte* bytes) {
  return reinterpret_cast<To*>(bytes);
}

// Replaces every NaN by one value. The compiler chooses which of two NaNs an addition passes on, and the
// processor chooses the default NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V canonical(D d, V v) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), kNanBits32)), v);
  } else {
    return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), kNanBits64)), v);
  }
}

// Stores the type T itself. pack converts a vector once; store may then be called for several outputs.
template <class T>
struct Plain {
  using Stored = T;
  using Math = T;
  using Single = Plain;  // for one lane

  template <class D>
  static HWY_INLINE size_t bytes(D d) {
    return hn::Lanes(d) * sizeof(T);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    return hn::LoadU(d, as<T>(from));
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V pack(D d, V v) {
    if constexpr (hwy::IsFloat<T>()) return canonical(d, v);
    return v;
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V v, std::byte* to) {
    hn::StoreU(v, d, as<T>(to));
  }
  template <class D, class V>
  static HWY_INLINE void stream(D d, V v, std::byte* to) {
    hn::Stream(v, d, as<T>(to));
  }
};

using F64 = Plain<double>;

// f32, also as source or destination of a computation in f64.
struct F32 : Plain<float> {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    if constexpr (sizeof(hn::TFromD<D>) == 8) {
      return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), as<float>(from)));
    } else {
      return hn::LoadU(d, as<float>(from));
    }
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE auto pack(D d, V v) {
    if constexpr (sizeof(hn::TFromD<D>) == 8) {
      return demote(d, canonical(d, v));
    } else {
      return canonical(d, v);
    }
  }
  template <class D, class V>
  static HWY_INLINE void store(D, V v, std::byte* to) {
    hn::StoreU(v, hn::Rebind<float, D>(), as<float>(to));
  }
  template <class D, class V>
  static HWY_INLINE void stream(D, V v, std::byte* to) {
    hn::Stream(v, hn::Rebind<float, D>(), as<float>(to));
  }

  template <class D, class V>
  static HWY_INLINE auto demote([[maybe_unused]] D d, V v) {
    const hn::Rebind<float, D> df;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
    // Highway returns the largest f32 for larger values on these targets; the processor returns Inf.
    double wide[hn::MaxLanes(d)];
    float narrow[hn::MaxLanes(d)];
    hn::StoreU(v, d, wide);
    for (size_t i = 0; i < hn::MaxLanes(d); i++) narrow[i] = static_cast<float>(wide[i]);
    return hn::LoadU(df, narrow);
#else
    return hn::DemoteTo(df, v);
#endif
  }
};

struct Bf16 {
  using Stored = uint16_t;
  using Math = float;
  using Single = Bf16;

  template <class D>
  static HWY_INLINE size_t bytes(D d) {
    return hn::Lanes(d) * sizeof(Stored);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<uint32_t, D> d32;
    const auto halves = hn::LoadU(hn::Rebind<uint16_t, D>(), as<uint16_t>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, halves)));
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE auto pack(D d, V v) {
    return narrow(d, hn::ShiftRight<16>(rounded(d, v)));
  }
  template <class D, class V>
  static HWY_INLINE void store(D, V v, std::byte* to) {
    hn::StoreU(v, hn::Rebind<uint16_t, D>(), as<uint16_t>(to));
  }
  // Highway streams at least 16 bytes, so with narrow vectors it would write behind their end.
  template <class D, class V>
  static HWY_INLINE void stream(D, V v, std::byte* to) {
    const hn::Rebind<uint16_t, D> d16;
    if constexpr (hn::MaxLanes(d16) * sizeof(Stored) < 16) {
      hn::StoreU(v, d16, as<uint16_t>(to));
    } else {
      hn::Stream(v, d16, as<uint16_t>(to));
    }
  }

  // Returns the bf16 in the upper half of each lane.
  template <class D, class V>
  static HWY_INLINE auto rounded(D d, V v) {
    const hn::Rebind<uint32_t, D> d32;
    const auto bits = hn::BitCast(d32, canonical(d, v));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    return hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu)));
  }
  // Converts 32-bit lanes of at most 65535 to 16-bit lanes.
  template <class D, class V>
  static HWY_INLINE auto narrow(D, V v) {
    return hn::TruncateTo(hn::Rebind<uint16_t, D>(), v);
  }
};

// Without F16C it uses the integer arithmetic that scalar.h explains.
struct F16 : Bf16 {
  using Single = F16;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const auto halves = hn::LoadU(hn::Rebind<uint16_t, D>(), as<uint16_t>(from));
    if constexpr (kConvertsF16) {
      return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), halves));
    } else {
      const hn::Rebind<uint32_t, D> d32;
      const hn::Rebind<int32_t, D> i32;  // some instruction sets have no unsigned comparisons
      const auto bits = hn::PromoteTo(d32, halves);
      const auto magnitude = hn::And(bits, hn::Set(d32, 0x7FFFu));
      const auto sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
      const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(d32, 112u << 23));
      const auto special = hn::Add(normal, hn::Set(d32, 112u << 23));
      const auto denormal =
          hn::Sub(hn::BitCast(d, hn::Add(normal, hn::Set(d32, 1u << 23))), hn::Set(d, 0x1p-14f));
      const auto is_special = hn::Gt(hn::BitCast(i32, magnitude), hn::Set(i32, 0x7BFF));
      const auto is_denormal = hn::Lt(hn::BitCast(i32, magnitude), hn::Set(i32, 0x0400));
      auto result = hn::IfThenElse(hn::RebindMask(d32, is_special), special, normal);
      result = hn::IfThenElse(hn::RebindMask(d32, is_denormal), hn::BitCast(d32, denormal), result);
      return hn::BitCast(d, hn::Or(result, sign));
    }
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE auto pack(D d, V value) {
    const V v = canonical(d, value);
    if constexpr (kConvertsF16) {
      return hn::BitCast(hn::Rebind<uint16_t, D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
    } else {
      const hn::Rebind<uint32_t, D> d32;
      const hn::Rebind<int32_t, D> i32;
      const auto bits = hn::BitCast(d32, v);
      const auto magnitude = hn::And(bits, hn::Set(d32, 0x7FFFFFFFu));
      const auto sign = hn::ShiftRight<16>(hn::Sub(bits, magnitude));
      const auto denormal = hn::Sub(hn::BitCast(d32, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f))),
                                    hn::Set(d32, 0x3F000000u));
      const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1u));
      const auto rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(d32, 0xFFFu)));
      const auto normal = hn::Sub(hn::ShiftRight<13>(rounded), hn::Set(d32, 112u << 10));
      const auto is_denormal = hn::Lt(hn::BitCast(i32, magnitude), hn::Set(i32, 0x38800000));
      const auto is_large = hn::Gt(hn::BitCast(i32, magnitude), hn::Set(i32, 0x477FEFFF));
      const auto is_nan = hn::Gt(hn::BitCast(i32, magnitude), hn::Set(i32, 0x7F800000));
      auto half = hn::IfThenElse(hn::RebindMask(d32, is_denormal), denormal, normal);
      half = hn::IfThenElse(hn::RebindMask(d32, is_large), hn::Set(d32, 0x7C00u), half);
      half = hn::IfThenElse(hn::RebindMask(d32, is_nan), hn::Set(d32, 0x7E00u), half);
      return narrow(d, hn::Or(half, sign));
    }
  }
};

// Loads twice as many bf16 as d has lanes: the even and the odd ones in a vector each. Nothing moves between
// lanes on load and store. Usable where the order of lanes does not matter until the store.
template <class V>
struct Pair {
  V even, odd;
};

#if HWY_TARGET == HWY_SCALAR
using Bf16Pairs = Bf16;
#else
struct Bf16Pairs {
  using Stored = uint16_t;
  using Math = float;
  using Single = Bf16;

  template <class D>
  static HWY_INLINE size_t bytes(D d) {
    return hn::Lanes(d) * 4;
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE Pair<V> load(D d, const std::byte* from) {
    const hn::Rebind<uint32_t, D> d32;
    const auto both = hn::LoadU(d32, as<uint32_t>(from));
    const auto odd = hn::And(both, hn::Set(d32, 0xFFFF0000u));
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)), hn::BitCast(d, odd)};
  }
  template <class D, class V>
  static HWY_INLINE auto pack(D d, Pair<V> v) {
    const hn::Repartition<uint16_t, D> d16;
    const auto even = hn::BitCast(d16, hn::ShiftRight<16>(Bf16::rounded(d, v.even)));
    return hn::OddEven(hn::BitCast(d16, Bf16::rounded(d, v.odd)), even);
  }
  template <class D, class V>
  static HWY_INLINE void store(D, V v, std::byte* to) {
    hn::StoreU(v, hn::Repartition<uint16_t, D>(), as<uint16_t>(to));
  }
  template <class D, class V>
  static HWY_INLINE void stream(D, V v, std::byte* to) {
    hn::Stream(v, hn::Repartition<uint16_t, D>(), as<uint16_t>(to));
  }
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif
