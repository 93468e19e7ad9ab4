#include "reducer/bucket/layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace weft {

Layout::Layout(const Param& param)
    : dtype_(param.dtype), element_bytes_(dtype_size(param.dtype)), count_(param.count), run_(param.count) {
  if (param.dense) return;
  // The place is row-major.
  for (size_t d = 0; d < param.shape.size(); d++)
    add_dim(static_cast<uint64_t>(param.shape[d]), static_cast<uint64_t>(param.strides[d]));
  take_run();
}

Layout::Layout(const Param& param, const std::vector<int64_t>& strides)
    : dtype_(param.dtype), element_bytes_(dtype_size(param.dtype)), count_(param.count), run_(param.count) {
  // The place has the parameter's order of dimensions if that is dense, and is row-major otherwise.
  std::vector<size_t> order(param.shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (param.dense) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return param.strides[a] > param.strides[b]; });
  }
  for (const size_t d : order)
    add_dim(static_cast<uint64_t>(param.shape[d]), static_cast<uint64_t>(strides[d]));
  take_run();
}

// Adds the next inner dimension. Merges dimensions that are contiguous in the gradient too.
void Layout::add_dim(uint64_t extent, uint64_t stride) {
  if (extent == 1) return;
  if (!dims_.empty() && dims_.back().stride == stride * extent) {
    dims_.back() = {dims_.back().extent * extent, stride};
  } else {
    dims_.push_back({extent, stride});
  }
}

void Layout::take_run() {
  if (count_ <= 1) {
    dims_.clear();
    return;
  }
  run_ = 1;
  if (dims_.back().stride == 1) {
    run_ = dims_.back().extent;
    dims_.pop_back();
  }
}

void Layout::flatten(const DeviceOps& ops, const std::byte* gradient, std::byte* place, Dtype place_dtype,
                     bool add, double scale, bool streaming) const {
  const uint64_t place_bytes = dtype_size(place_dtype);
  for_each_run(0, count_, [&](uint64_t from, uint64_t to, uint64_t count) {
    CopyArgs args;
    args.src = gradient + from * element_bytes_;
    args.dst = place + to * place_bytes;
    args.count = count;
    args.src_dtype = dtype_;
    args.dst_dtype = place_dtype;
    args.scale = scale;
    args.streaming = streaming;
    if (add) {
      ops.accumulate(args);
    } else {
      move_run(ops, args);
    }
  });
}

void Layout::unflatten(const DeviceOps& ops, const std::byte* place, Dtype place_dtype, std::byte* gradient,
                       uint64_t first, uint64_t count, double scale, bool streaming) const {
  const uint64_t place_bytes = dtype_size(place_dtype);
  for_each_run(first, count, [&](uint64_t to, uint64_t from, uint64_t n) {
    CopyArgs args;
    args.src = place + from * place_bytes;
    args.dst = gradient + to * element_bytes_;
    args.count = n;
    args.src_dtype = place_dtype;
    args.dst_dtype = dtype_;
    args.scale = scale;
    args.streaming = streaming;
    move_run(ops, args);
  });
}

void Layout::pack(const std::byte* value, std::byte* packed, uint64_t first, uint64_t count) const {
  for_each_run(first, count, [&](uint64_t from, uint64_t to, uint64_t n) {
    std::memcpy(packed + (to - first) * element_bytes_, value + from * element_bytes_, n * element_bytes_);
  });
}

void Layout::unpack(const std::byte* packed, std::byte* value, uint64_t first, uint64_t count) const {
  for_each_run(first, count, [&](uint64_t to, uint64_t from, uint64_t n) {
    std::memcpy(value + to * element_bytes_, packed + (from - first) * element_bytes_, n * element_bytes_);
  });
}

void Layout::move_run(const DeviceOps& ops, const CopyArgs& args) const {
  if (dims_.empty() || args.src_dtype != args.dst_dtype || args.scale != 1) {
    ops.copy(args);
  } else {
    // For many short runs memcpy is cheaper than one kernel call each.
    std::memcpy(args.dst, args.src, args.count * element_bytes_);
  }
}

uint64_t Layout::piece(uint64_t first, uint64_t most) const {
  const uint64_t left = count_ - first;
  if (dims_.empty()) return std::min(left, most);
  return std::min(left, std::max<uint64_t>(most / run_, 1) * run_);
}

}  // namespace weft
