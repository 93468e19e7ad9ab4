// The list of parameters that a reducer synchronises: checked, normalised, agreed across ranks. Used by
// create_state and the planner. Threads: values; one thread at a time.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/status.h"

namespace weft {

struct Param {
  std::string name;
  Dtype dtype = Dtype::kF32;
  int32_t device_kind = WEFT_DEVICE_HOST;
  // Index into Manifest::devices, because ranks number their devices differently.
  int32_t device = 0;
  uint64_t flags = 0;  // WEFT_PARAM_*
  std::vector<int64_t> shape;
  // One stride per dimension, in elements. Dimensions of at most one element, whose stride has no meaning,
  // get the row-major stride, so that equal layouts compare equal.
  std::vector<int64_t> strides;
  uint64_t count = 1;  // elements
  // True if the elements fill `count` consecutive places in any order. Such a gradient is copied as one
  // piece, and its place in a bucket has the same strides. Otherwise the place is row-major.
  bool dense = true;
  // Leading dimensions that its gradients' indices name; 0: gradients are dense.
  uint32_t sparse_ndim = 0;
  // The elements are halves of complex numbers: the last dimension is (real, imaginary).
  bool pairs = false;

  bool sparse() const { return sparse_ndim > 0; }
  bool on_device() const { return device_kind != WEFT_DEVICE_HOST; }
  uint64_t bytes() const { return count * dtype_size(dtype); }
  // True if it has gradients, and so a place in a bucket.
  bool reduced() const {
    return (flags & (WEFT_PARAM_STATE_ONLY | WEFT_PARAM_BUFFER | WEFT_PARAM_IGNORED)) == 0;
  }
  bool ignored() const { return (flags & WEFT_PARAM_IGNORED) != 0; }
  const char* kind() const;  // "a buffer without a gradient"; for parameters that are not reduced
  std::string text() const;  // "f32 [64, 3, 7, 7]", "f16 [8, 4] with strides [1, 8]", "sparse f32 [40, 6]"
  bool operator==(const Param&) const = default;
};

struct Manifest {
  std::vector<Param> params;
  // Addresses of this rank's gradients and parameters, for the program and its hooks. Empty if none is given.
  // The ranks do not compare them.
  struct Home {
    std::byte* gradient = nullptr;
    void* parameter = nullptr;
  };
  std::vector<Home> homes;
  // This rank's device indices, in order of first mention; ranks do not compare them.
  std::vector<int32_t> devices;
  std::vector<uint32_t> uses;  // per parameter; empty: each is used once
  // The communication dtype of f16, bf16 and f32 gradients, if it is not their own:
  // weft_reducer_options.reduce_dtype.
  std::optional<Dtype> reduce_dtype;

  size_t reduced() const;  // parameters with gradients
  // Returns the dtype in which a gradient of this dtype is summed.
  Dtype comm_dtype_of(Dtype gradient) const {
    return reduce_dtype.has_value() && gradient != Dtype::kF64 ? *reduce_dtype : gradient;
  }
  std::byte* gradient(uint64_t i) const { return homes.empty() ? nullptr : homes[i].gradient; }
  void* parameter(uint64_t i) const { return homes.empty() ? nullptr : homes[i].parameter; }
  bool has_devices() const;  // true if some gradient is on a device
  // Returns this rank's index of a parameter's device.
  int device(uint64_t i) const { return devices[static_cast<size_t>(params[i].device)]; }
  void write(ByteWriter* writer) const;
  // Reads bytes from another rank: sizes are bounded, and contents checked as make_manifest does. kMismatch.
  static Status read(ByteView bytes, Manifest* manifest);
  std::string named(uint64_t param) const;  // "parameter 3 ('a')", for errors
  // Returns "'a', 'b', 'c' and 5 more".
  std::string names(const std::vector<uint32_t>& indices, size_t most = 16) const;
};

inline constexpr uint64_t kMaxParams = 16u << 20;
inline constexpr uint32_t kMaxParamName = 4096;
inline constexpr int32_t kMaxParamDims = 16;

// params: an array of elements of element_size bytes, whose struct_size the C layer has checked. kArg or
// kUnsupported, naming the parameter. Linear in the number of parameters.
Status make_manifest(const weft_param* params, uint64_t count, uint64_t element_size, Manifest* manifest);

// Normalises the strides of a gradient of this parameter, one per dimension of its shape. Rejects strides
// that may address an element twice. kArg, naming the parameter, whose number is index.
Status check_strides(uint64_t index, const Param& param, std::vector<int64_t>* strides);

// Describes the first parameter that differs between two ranks' lists, with both sides; empty if none does.
std::string manifest_difference(int rank, const Manifest& mine, int other_rank, const Manifest& theirs);

// Returns the row-major strides of a shape.
std::vector<int64_t> row_major(const std::vector<int64_t>& shape);

// kArg for a parameter that does not exist or has no gradient.
Status check_param(const Manifest& manifest, uint64_t param);

}  // namespace weft
