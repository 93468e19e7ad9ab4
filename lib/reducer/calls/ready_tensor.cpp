#include "reducer/calls/ready_tensor.h"

#include <algorithm>

#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/ready.h"
#include "reducer/host_stream.h"

namespace weft {
namespace {

// Returns the dimensions as the program counts them: of complex numbers, not of their halves.
size_t dims_of(const Param& param) {
  return param.shape.size() - (param.pairs ? 1 : 0);
}

int32_t dtype_of(const Param& param) {
  if (!param.pairs) return static_cast<int32_t>(param.dtype);
  return param.dtype == Dtype::kF32 ? WEFT_DTYPE_C64 : WEFT_DTYPE_C128;
}

bool same_shape(const weft_tensor& tensor, const Param& param) {
  return static_cast<size_t>(tensor.ndim) == dims_of(param) &&
         std::equal(tensor.shape, tensor.shape + tensor.ndim, param.shape.begin());
}

// True if both place the elements alike; the stride of an extent of 1 has no meaning. packed: the parameter's
// layout is row-major here, whatever its strides.
bool same_layout(const weft_tensor& tensor, const Param& param, bool packed) {
  if (static_cast<size_t>(tensor.ndim) != dims_of(param)) return false;
  int64_t contiguous = 1;  // cannot overflow if the shapes are equal, because the manifest was checked
  for (size_t d = dims_of(param); d-- > 0;) {
    const int64_t extent = param.shape[d];
    if (tensor.shape[d] != extent) return false;
    const int64_t wanted = packed ? contiguous : param.strides[d] / (param.pairs ? 2 : 1);
    const int64_t stride = tensor.strides != nullptr ? tensor.strides[d] : contiguous;
    if (extent > 1 && param.count > 0 && stride != wanted) return false;
    contiguous *= std::max<int64_t>(extent, 1);
  }
  return true;
}

std::string device_text(int32_t kind, int32_t device) {
  if (kind == WEFT_DEVICE_HOST && device == 0) return {};
  return cat(" on ", kind == WEFT_DEVICE_CUDA ? "CUDA device " : "an unknown device ", device);
}

// Returns a text like "f32 [2, 3] with strides [1, 2]". The shape may be invalid.
std::string tensor_text(const weft_tensor& tensor) {
  const auto dtype = static_cast<Dtype>(tensor.dtype);
  std::string out = tensor.dtype >= 1 && tensor.dtype <= kDtypeLast && valid(dtype)
                        ? name(dtype)
                        : cat("of unknown dtype ", tensor.dtype);
  const std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.ndim);
  out += cat(" [", list_text(shape), "]");
  if (tensor.strides != nullptr && tensor.ndim > 0) {
    const std::vector<int64_t> strides(tensor.strides, tensor.strides + tensor.ndim);
    out += cat(" with strides [", list_text(strides), "]");
  }
  return out + device_text(tensor.device_kind, tensor.device);
}

// Returns this rank's index of the parameter's device.
int32_t device_of(const ReducerState& s, uint64_t param) {
  return s.manifest.params[param].on_device() ? s.manifest.device(param) : 0;
}

// Accepts a gradient that differs from the parameter only in its strides. It is copied element by element,
// and so is its result.
Status ready_restrided(ReducerData& r, uint64_t param, const weft_tensor& gradient) {
  const Param& wanted = r.state->manifest.params[param];
  std::vector<int64_t> shape(gradient.shape, gradient.shape + gradient.ndim);
  std::vector<int64_t> strides = row_major(shape);
  if (gradient.strides != nullptr) strides.assign(gradient.strides, gradient.strides + gradient.ndim);
  if (wanted.pairs) {
    for (int64_t& stride : strides) stride = stride > INT64_MAX / 2 ? INT64_MAX : stride * 2;
    strides.push_back(1);
  }
  WEFT_TRY(note(r, check_strides(param, wanted, &strides)));
  const Layout layout(wanted, strides);
  WEFT_TRY(make_ready(r, param, gradient.data, &layout, nullptr));
  if (r.statistics.count_copied() == 0) {
    r.state->comm->context().log().warn(
        cat("rank ", r.state->comm->rank(), ": the gradient of ", r.state->manifest.named(param), " is ",
            tensor_text(gradient), ", but the parameter is ", wanted.text(),
            ". It is copied element by element, which is slow. weft_reducer_stats.copied_gradients counts "
            "such gradients. WEFT_REDUCER_STRICT_STRIDES makes this an error"));
  }
  return {};
}

// Makes the error for a tensor that does not match the parameter, with both descriptions.
Status another_tensor(const ReducerState& s, uint64_t param, const weft_tensor& gradient, bool viewed) {
  Param wanted = s.manifest.params[param];
  const std::string name = cat(s.manifest.named(param), ": ");
  if (gradient.ndim < 0 || gradient.ndim > kMaxParamDims) {
    return Status::error(
        Code::kArg, cat(name, "weft_tensor.ndim is ", gradient.ndim, ": allowed are 0 to ", kMaxParamDims));
  }
  if (gradient.ndim > 0 && gradient.shape == nullptr) {
    return Status::error(Code::kArg, cat(name, "weft_tensor.shape is NULL, but its ndim is ", gradient.ndim));
  }
  if (viewed && !wanted.dense) wanted.strides = row_major(wanted.shape);
  const std::string where = device_text(wanted.device_kind, device_of(s, param));
  wanted.device_kind = WEFT_DEVICE_HOST;
  return Status::error(Code::kArg, cat(name, "its gradient is ", tensor_text(gradient), ", and must be ",
                                       wanted.text(), where));
}

}  // namespace

Status make_tensor_ready(ReducerData& r, uint64_t param, const weft_tensor& gradient,
                         const weft_stream* stream) {
  WEFT_TRY(note(r, check_param(r.state->manifest, param)));
  const Param& wanted = r.state->manifest.params[param];
  const Buckets::Place& place = r.state->buckets->place(param);
  if (place.sparse) return make_ready(r, param, gradient.data, nullptr, stream);  // which refuses it
  // The gradient is in its view, where gradients with gaps are row-major.
  const std::byte* const view = r.state->copy ? nullptr : view_of(*r.state, param);
  const bool viewed = !r.state->copy && (gradient.data == nullptr || gradient.data == view);
  const bool readable = gradient.ndim >= 0 && gradient.ndim <= kMaxParamDims &&
                        (gradient.ndim == 0 || gradient.shape != nullptr);
  const bool alike = readable && gradient.dtype == dtype_of(wanted) &&
                     gradient.device_kind == wanted.device_kind &&
                     gradient.device == device_of(*r.state, param);
  if (alike && same_layout(gradient, wanted, viewed && !wanted.dense)) [[likely]]
    return make_ready(r, param, gradient.data, nullptr, stream);
  const bool strict = r.state->has(WEFT_REDUCER_STRICT_STRIDES);
  const bool copied = !strict && !viewed && alike && gradient.data != nullptr &&
                      same_shape(gradient, wanted) && !place.on_device && on_host(stream);
  if (!copied) return note(r, another_tensor(*r.state, param, gradient, viewed));
  return ready_restrided(r, param, gradient);
}

}  // namespace weft
