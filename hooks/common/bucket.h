// Helpers for hooks that compute in their stages: a bucket's values as f32, whatever its dtype, and its
// parameters' error memories.
#pragma once

#include <weft/weft.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/round_up.h"
#include "base/splitmix.h"
#include "base/status.h"
#include "base/text.h"
#include "common/state.h"
#include "device/device.h"

namespace weft {

inline Dtype dtype_of(const weft_bucket& bucket) {
  return static_cast<Dtype>(bucket.dtype);
}
inline std::span<const weft_bucket_param> params_of(const weft_bucket& bucket) {
  return {bucket.params, bucket.param_count};
}

// Returns the bytes of scratch for the f32 values of a bucket of another dtype; 0 for f32. A multiple of 64.
inline uint64_t values_bytes(const weft_bucket& bucket) {
  return dtype_of(bucket) == Dtype::kF32 ? 0 : round_up(bucket.count * sizeof(float), 64);
}
// Returns the address of the f32 values: the bucket itself, or the start of the scratch.
inline float* values_of(const weft_bucket& bucket) {
  return static_cast<float*>(dtype_of(bucket) == Dtype::kF32 ? bucket.buffer : bucket.scratch);
}

inline void copy(const DeviceOps& host, Dtype from, const void* src, Dtype to, void* dst, uint64_t count,
                 double scale = 1.0) {
  if (count == 0) return;
  CopyArgs args;
  args.src = static_cast<const std::byte*>(src);
  args.dst = static_cast<std::byte*>(dst);
  args.count = count;
  args.src_dtype = from;
  args.dst_dtype = to;
  args.scale = scale;
  host.copy(args);
}
// dst[i] += scale * src[i]
inline void add(const DeviceOps& host, const float* src, float* dst, uint64_t count, double scale = 1.0) {
  if (count == 0) return;
  CopyArgs args;
  args.src = reinterpret_cast<const std::byte*>(src);
  args.dst = reinterpret_cast<std::byte*>(dst);
  args.count = count;
  args.scale = scale;
  host.accumulate(args);
}

// Converts `count` of the bucket's contributions from `begin` on to f32 in `values`, which may be their own
// place.
inline void load_values(const DeviceOps& host, const weft_bucket& bucket, uint64_t begin, uint64_t count,
                        float* values) {
  const auto* const from = static_cast<const std::byte*>(bucket.buffer);
  copy(host, dtype_of(bucket), from + begin * dtype_size(dtype_of(bucket)), Dtype::kF32, values, count);
}
// Converts all contributions, in their own place.
inline float* load_values(const DeviceOps& host, const weft_bucket& bucket) {
  load_values(host, bucket, 0, bucket.count, values_of(bucket));
  return values_of(bucket);
}
// Converts the result into the bucket.
inline void store_values(const DeviceOps& host, const weft_bucket& bucket, uint64_t begin, uint64_t count,
                         const float* values) {
  auto* const to = static_cast<std::byte*>(bucket.buffer);
  copy(host, Dtype::kF32, values, dtype_of(bucket), to + begin * dtype_size(dtype_of(bucket)), count);
}
inline void store_values(const DeviceOps& host, const weft_bucket& bucket) {
  store_values(host, bucket, 0, bucket.count, values_of(bucket));
}

// Error feedback: values not sent in earlier steps are added to a bucket's values, and those not sent now are
// kept.
inline void plan_errors(HookState& state, const weft_bucket& bucket) {
  for (const weft_bucket_param& p : params_of(bucket)) state.array(HookState::kError, p.name, p.count);
}
// Calls work(error, position in the range, count) for each parameter that intersects the bucket's values
// [begin, begin + count). Parameters are sorted by offset.
template <class Work>
inline void errors_of(HookState& state, const weft_bucket& bucket, uint64_t begin, uint64_t count,
                      Work&& work) {
  const auto params = params_of(bucket);
  auto p = std::partition_point(params.begin(), params.end(), [begin](const weft_bucket_param& param) {
    return param.offset + param.count <= begin;
  });
  for (; p != params.end() && p->offset < begin + count; p++) {
    const uint64_t from = std::max(begin, p->offset), to = std::min(begin + count, p->offset + p->count);
    if (from >= to) continue;
    float* const error = state.array(HookState::kError, p->name, p->count).data();
    work(error + (from - p->offset), from - begin, to - from);
  }
}
// Returns the error memory of a range that is within one parameter; null if it is not.
inline float* error_of(HookState& state, const weft_bucket& bucket, uint64_t begin, uint64_t count) {
  float* all = nullptr;
  errors_of(state, bucket, begin, count, [&](float* error, uint64_t /*at*/, uint64_t n) {
    if (n == count) all = error;
  });
  return all;
}
// Adds the error memory of a range to the range's values. keep_errors replaces the error memory by
// `residual`: the range's values that were not sent.
inline void add_errors(const DeviceOps& host, HookState& state, const weft_bucket& bucket, uint64_t begin,
                       uint64_t count, float* values) {
  errors_of(state, bucket, begin, count,
            [&](const float* error, uint64_t at, uint64_t n) { add(host, error, values + at, n); });
}
inline void keep_errors(HookState& state, const weft_bucket& bucket, uint64_t begin, uint64_t count,
                        const float* residual) {
  errors_of(state, bucket, begin, count,
            [&](float* error, uint64_t at, uint64_t n) { std::copy_n(residual + at, n, error); });
}
// Adds scale * residual, further values that were not sent, to the error memory.
inline void keep_more_errors(const DeviceOps& host, HookState& state, const weft_bucket& bucket,
                             uint64_t begin, uint64_t count, const float* residual, double scale) {
  errors_of(state, bucket, begin, count,
            [&](float* error, uint64_t at, uint64_t n) { add(host, residual + at, error, n, scale); });
}

// True if no value is an infinity or a NaN. The inner loop has a fixed length so that the compiler vectorises
// it.
inline bool all_finite(const float* values, uint64_t count) {
  constexpr uint64_t kTogether = 256;
  const auto odd = [](float value) {  // sets the sign bit if all bits of the exponent are set
    return (std::bit_cast<uint32_t>(value) & 0x7F800000u) + 0x00800000u;
  };
  uint32_t any = 0;
  uint64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    for (uint64_t k = 0; k < kTogether; k++) any |= odd(values[i + k]);
  }
  for (; i < count; i++) any |= odd(values[i]);
  return any >> 31 == 0;
}
// Copies to[i] = from[i], with 0 for infinities and NaNs; false if there was one. from and to are disjoint or
// identical.
inline bool copy_finite(const float* from, uint64_t count, float* to) {
  constexpr uint64_t kTogether = 4096;
  bool all = true;
  for (uint64_t begin = 0; begin < count; begin += kTogether) {
    const uint64_t end = std::min(begin + kTogether, count);
    if (all_finite(from + begin, end - begin)) {
      if (from != to) std::copy(from + begin, from + end, to + begin);
      continue;
    }
    all = false;
    for (uint64_t i = begin; i < end; i++) to[i] = std::isfinite(from[i]) ? from[i] : 0;
  }
  return all;
}

inline Status check_floats(const char* hook, const weft_bucket& bucket) {
  if (is_float(dtype_of(bucket))) return {};
  return Status::error(Code::kUnsupported,
                       cat("hook '", hook, "' supports only floating-point gradients, not ",
                           name(dtype_of(bucket)), " (parameter '", bucket.params[0].name, "')"));
}

// Mixes the inputs of a seed for random numbers.
constexpr uint64_t mix(uint64_t h) {
  return scramble(h + kSplitMixStep);
}
// Mixes a parameter's name into a seed, which thus does not depend on the bucket.
inline uint64_t mix(uint64_t h, const char* text) {
  for (; *text != 0; text++) h = mix(h ^ static_cast<unsigned char>(*text));
  return h;
}

}  // namespace weft
