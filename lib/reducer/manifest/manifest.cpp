#include "reducer/manifest/manifest.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "base/arguments.h"
#include "base/text.h"
#include "reducer/bucket/layout.h"

namespace weft {
namespace {

constexpr NamedValue kNamedFlags[] = {WEFT_NAMED(WEFT_PARAM_SPARSE), WEFT_NAMED(WEFT_PARAM_STATE_ONLY),
                                      WEFT_NAMED(WEFT_PARAM_BUFFER), WEFT_NAMED(WEFT_PARAM_IGNORED)};
constexpr uint64_t kParamFlags =
    WEFT_PARAM_SPARSE | WEFT_PARAM_STATE_ONLY | WEFT_PARAM_BUFFER | WEFT_PARAM_IGNORED;
constexpr uint64_t kMaxTotalBytes = uint64_t{1} << 47;

Status wrong(uint64_t index, const std::string& name, const std::string& what, Code code = Code::kArg) {
  return Status::error(code, cat("parameter ", index, " ('", name, "'): ", what));
}

// Counts the elements of a shape, and checks that their bytes and offsets fit in 63 bits.
Status count_elements(uint64_t index, Param* param) {
  uint64_t count = 1;
  bool overflow = false;
  for (const int64_t extent : param->shape) {
    if (extent < 0)
      return wrong(index, param->name, cat("shape [", list_text(param->shape), "] has a negative extent"));
    // A zero extent counts as 1 here: row-major strides treat it as 1, and must fit too.
    overflow |= __builtin_mul_overflow(count, static_cast<uint64_t>(std::max<int64_t>(extent, 1)), &count);
  }
  uint64_t bytes = 0;
  overflow |= __builtin_mul_overflow(count, dtype_size(param->dtype), &bytes);
  if (overflow || bytes > INT64_MAX) {
    return wrong(
        index, param->name,
        cat("shape [", list_text(param->shape), "] has too many elements: their bytes exceed 63 bits"));
  }
  const bool empty = std::find(param->shape.begin(), param->shape.end(), 0) != param->shape.end();
  param->count = empty ? 0 : count;
  return {};
}

// Returns the dimensions with more than one element, by ascending stride.
std::vector<size_t> dims_by_stride(const Param& param) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < param.shape.size(); d++) {
    if (param.shape[d] > 1) dims.push_back(d);
  }
  std::sort(dims.begin(), dims.end(),
            [&](size_t a, size_t b) { return param.strides[a] < param.strides[b]; });
  return dims;
}

// Normalises the strides, rejects those that may address an element twice, and sets `dense`.
Status check_strides(uint64_t index, Param* param) {
  const std::vector<int64_t> contiguous = row_major(param->shape);
  for (size_t d = 0; d < param->shape.size(); d++) {
    if (param->shape[d] <= 1 || param->count == 0) param->strides[d] = contiguous[d];
  }
  if (param->count == 0) return {};
  uint64_t furthest = 0;  // the largest offset of the dimensions so far
  uint64_t packed = 1;    // the stride that the next dimension has if the layout is dense
  param->dense = true;
  for (const size_t d : dims_by_stride(*param)) {
    const int64_t stride = param->strides[d];
    const auto extent = static_cast<uint64_t>(param->shape[d]);
    if (stride < 0)
      return wrong(index, param->name, cat("strides [", list_text(param->strides), "] must not be negative"));
    if (static_cast<uint64_t>(stride) <= furthest) {
      return wrong(index, param->name,
                   cat("strides [", list_text(param->strides), "] of shape [", list_text(param->shape),
                       "] address an element more than once"));
    }
    param->dense &= static_cast<uint64_t>(stride) == packed;
    packed *= extent;
    uint64_t reach = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(stride), extent - 1, &reach) ||
        __builtin_add_overflow(furthest, reach, &furthest) ||
        furthest >= INT64_MAX / dtype_size(param->dtype)) {
      return wrong(
          index, param->name,
          cat("strides [", list_text(param->strides), "] reach too far: byte offsets exceed 63 bits"));
    }
  }
  return {};
}

Status check_sparse(uint64_t index, const Param& param) {
  if (param.sparse() != ((param.flags & WEFT_PARAM_SPARSE) != 0)) {
    return wrong(index, param.name,
                 cat("sparse_ndim is ", param.sparse_ndim, ", but WEFT_PARAM_SPARSE is ",
                     param.sparse() ? "not set" : "set"));
  }
  if (!param.sparse()) return {};
  const size_t dims = param.shape.size() - (param.pairs ? 1 : 0);
  if (param.sparse_ndim > dims) {
    return wrong(index, param.name,
                 cat("sparse_ndim is ", param.sparse_ndim, ", but the parameter has ", dims, " dimensions"));
  }
  if (param.strides != row_major(param.shape)) {
    return wrong(index, param.name, "strides are set, but a sparse gradient has none: pass NULL");
  }
  return {};
}

Status check_device(uint64_t index, const Param& param) {
  if (param.device_kind != WEFT_DEVICE_HOST && param.device_kind != WEFT_DEVICE_CUDA)
    return wrong(
        index, param.name,
        cat("device_kind is ", param.device_kind, ", must be WEFT_DEVICE_HOST (0) or WEFT_DEVICE_CUDA (1)"));
  if (!param.on_device()) return {};
  if (param.device < 0)
    return wrong(index, param.name,
                 cat("device is ", param.device, ", but CUDA devices are numbered from 0"));
  if (!param.reduced() || param.sparse()) {
    return wrong(index, param.name,
                 cat("it is ", param.sparse() ? "sparse (WEFT_PARAM_SPARSE)" : param.kind(),
                     ", and must be in host memory (WEFT_DEVICE_HOST) in this version"),
                 Code::kUnsupported);
  }
  return {};
}

Status check_param(uint64_t index, Param* param) {
  const std::string& name = param->name;
  if (name.empty())
    return Status::error(Code::kArg, cat("parameter ", index, " has no name (weft_param.name)"));
  if (param->ignored()) return {};
  if (!computes(param->dtype) && param->dtype != Dtype::kBool)
    return wrong(
        index, name,
        cat("unknown dtype ", static_cast<int>(param->dtype), ": allowed are WEFT_DTYPE_U8 (", WEFT_DTYPE_U8,
            ") to WEFT_DTYPE_F64 (", WEFT_DTYPE_F64, ") and WEFT_DTYPE_BOOL (", WEFT_DTYPE_BOOL, ")"));
  if (param->reduced() && !is_float(param->dtype)) {
    return wrong(
        index, name,
        cat("a gradient must be f16, bf16, f32 or f64, or complex, not ", weft::name(param->dtype), " (",
            static_cast<int>(param->dtype), "); set weft_param.dtype, or flags if it has no gradient"));
  }
  WEFT_TRY(check_device(index, *param));
  WEFT_TRY(count_elements(index, param));
  WEFT_TRY(check_strides(index, param));
  return check_sparse(index, *param);
}

// Limits the total size: no machine has this much, and sums of offsets below it cannot overflow.
Status check_total(const std::vector<Param>& params) {
  uint64_t total = 0;
  for (size_t i = 0; i < params.size(); i++) {
    const uint64_t bytes = params[i].bytes();
    if (bytes > kMaxTotalBytes - total) {
      return wrong(i, params[i].name,
                   cat("with it the parameters of the list exceed ", bytes_text(kMaxTotalBytes),
                       " in total, the maximum"));
    }
    total += bytes;
  }
  return {};
}

Status check_names(const std::vector<Param>& params) {
  std::unordered_map<std::string_view, size_t> seen;
  seen.reserve(params.size());
  for (size_t i = 0; i < params.size(); i++) {
    if (params[i].ignored()) continue;
    const auto [it, fresh] = seen.emplace(params[i].name, i);
    if (!fresh) return wrong(i, params[i].name, cat("parameter ", it->second, " has the same name"));
  }
  return {};
}

// Rejects gradients that share memory: each would contribute to both, and the result written last would win.
Status check_gradients(const Manifest& manifest) {
  struct Run {
    uintptr_t begin, end;
    uint32_t param;
  };
  std::vector<Run> runs;
  for (uint32_t i = 0; i < manifest.homes.size(); i++) {
    const auto at = reinterpret_cast<uintptr_t>(manifest.gradient(i));
    const Param& p = manifest.params[i];
    if (at == 0 || p.count == 0 || !p.reduced()) continue;
    // Gradients with gaps may be interleaved.
    const uint64_t size = dtype_size(p.dtype);
    Layout(p).for_each_run(0, p.count, [&](uint64_t offset, uint64_t, uint64_t count) {
      runs.push_back({at + offset * size, at + (offset + count) * size, i});
    });
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  for (size_t r = 1; r < runs.size(); r++) {
    if (runs[r].begin >= runs[r - 1].end) continue;
    const uint32_t first = std::min(runs[r].param, runs[r - 1].param);
    const uint32_t second = std::max(runs[r].param, runs[r - 1].param);
    return wrong(second, manifest.params[second].name,
                 cat("its gradient overlaps that of ", manifest.named(first)));
  }
  return {};
}

Status check_param_flags(uint64_t index, const weft_param& in, const Param& param) {
  if ((in.flags & ~kParamFlags) != 0) {
    return check_flags(cat("parameter ", index, " ('", param.name, "'): weft_param.flags"), in.flags,
                       kNamedFlags);
  }
  if ((in.flags & (in.flags - 1)) != 0) {
    return wrong(
        index, param.name,
        "weft_param.flags must have one of WEFT_PARAM_SPARSE, STATE_ONLY, BUFFER and IGNORED, not several");
  }
  if (param.reduced() || param.ignored()) return {};
  if (in.gradient != nullptr)
    return wrong(
        index, param.name,
        cat("weft_param.gradient is set, but must be NULL, because the parameter is ", param.kind()));
  if (in.uses > 1)
    return wrong(
        index, param.name,
        cat("weft_param.uses is ", in.uses, ", but must be 0 or 1, because the parameter is ", param.kind()));
  return {};
}

// Stores an ignored parameter: only its name is used, for errors.
void ignore(const weft_param& in, Param* out) {
  out->name = in.name == nullptr ? "" : std::string(in.name, strnlen(in.name, kMaxParamName));
  out->flags = WEFT_PARAM_IGNORED;
  out->count = 0;
}

// Splits complex numbers into pairs of floats, as they are in memory, with one more dimension.
Status split_pairs(uint64_t index, Param* param) {
  if (param->shape.size() == kMaxParamDims) {
    return wrong(index, param->name,
                 cat("ndim is ", kMaxParamDims, "; complex parameters have at most ", kMaxParamDims - 1,
                     " dimensions"));
  }
  for (int64_t& stride : param->strides) {
    if (__builtin_mul_overflow(stride, int64_t{2}, &stride)) {
      return wrong(
          index, param->name,
          cat("strides [", list_text(param->strides), "] reach too far: byte offsets exceed 63 bits"));
    }
  }
  param->shape.push_back(2);
  param->strides.push_back(1);
  return {};
}

Status from_struct(uint64_t index, const weft_param& in, Param* out) {
  if (in.flags == WEFT_PARAM_IGNORED) {
    ignore(in, out);
    return {};
  }
  if (in.name == nullptr || in.name[0] == 0) {
    return Status::error(Code::kArg, cat("parameter ", index, " has no name (weft_param.name)"));
  }
  const size_t length = strnlen(in.name, kMaxParamName + 1);
  if (length > kMaxParamName) {
    return Status::error(Code::kArg,
                         cat("parameter ", index, ": the name is longer than ", kMaxParamName, " bytes"));
  }
  out->name.assign(in.name, length);
  out->flags = in.flags;
  WEFT_TRY(check_param_flags(index, in, *out));
  if (in.sparse_ndim != 0 && (in.flags & WEFT_PARAM_SPARSE) == 0) {
    return wrong(index, out->name,
                 cat("sparse_ndim is ", in.sparse_ndim, ", but WEFT_PARAM_SPARSE is not set"));
  }
  if ((in.flags & WEFT_PARAM_SPARSE) != 0) {
    if (in.gradient != nullptr)
      return wrong(index, out->name,
                   "weft_param.gradient is set, but must be NULL for a sparse gradient: pass its entries to "
                   "weft_reducer_ready_sparse");
    out->sparse_ndim = std::max<uint32_t>(in.sparse_ndim, 1);
  }
  if (in.ndim < 0 || in.ndim > kMaxParamDims) {
    return wrong(index, out->name, cat("ndim is ", in.ndim, ": allowed are 0 to ", kMaxParamDims));
  }
  if (in.ndim > 0 && in.shape == nullptr)
    return wrong(index, out->name, cat("shape is NULL, but ndim is ", in.ndim));
  // Checked before the conversion, which could turn an unknown dtype into a known one.
  out->pairs = in.dtype == WEFT_DTYPE_C64 || in.dtype == WEFT_DTYPE_C128;
  const bool known = out->pairs || (in.dtype >= 1 && in.dtype <= kDtypeCount) || in.dtype == WEFT_DTYPE_BOOL;
  if (!known) {
    return wrong(
        index, out->name,
        cat("unknown dtype ", in.dtype, ": allowed are WEFT_DTYPE_U8 (", WEFT_DTYPE_U8,
            ") to WEFT_DTYPE_C128 (", WEFT_DTYPE_C128, ") and WEFT_DTYPE_BOOL (", WEFT_DTYPE_BOOL, ")"));
  }
  out->dtype = !out->pairs                  ? static_cast<Dtype>(in.dtype)
               : in.dtype == WEFT_DTYPE_C64 ? Dtype::kF32
                                            : Dtype::kF64;
  if (reinterpret_cast<uintptr_t>(in.gradient) % dtype_size(out->dtype) != 0) {
    return wrong(
        index, out->name,
        cat("weft_param.gradient is not aligned to its elements of ", dtype_size(out->dtype), " bytes"));
  }
  out->device_kind = in.device_kind;
  out->device = in.device;
  if (in.device_kind == WEFT_DEVICE_HOST && in.device != 0) {
    return wrong(index, out->name, cat("device is ", in.device, ", but must be 0 with WEFT_DEVICE_HOST"));
  }
  if (in.ndim > 0) out->shape.assign(in.shape, in.shape + in.ndim);
  // The count is checked before row-major strides are computed: they overflow where it does.
  WEFT_TRY(count_elements(index, out));
  if (in.strides != nullptr && in.ndim > 0) {
    out->strides.assign(in.strides, in.strides + in.ndim);
  } else {
    out->strides = row_major(out->shape);
  }
  if (out->pairs) WEFT_TRY(split_pairs(index, out));
  WEFT_TRY(check_param(index, out));
  if (!out->reduced() && in.parameter == nullptr && out->count > 0) {
    return wrong(
        index, out->name,
        cat("weft_param.parameter is NULL, but must be set, because the parameter is ", out->kind()));
  }
  return {};
}

// Replaces this rank's device index by the number that ranks compare.
void number_device(Param* param, std::vector<int32_t>* devices) {
  if (!param->on_device()) return;
  const auto known = std::find(devices->begin(), devices->end(), param->device);
  const auto number = static_cast<int32_t>(known - devices->begin());
  if (known == devices->end()) devices->push_back(param->device);
  param->device = number;
}

}  // namespace

Status check_strides(uint64_t index, const Param& param, std::vector<int64_t>* strides) {
  Param gradient = param;
  gradient.strides = *strides;
  WEFT_TRY(check_strides(index, &gradient));
  *strides = std::move(gradient.strides);
  return {};
}

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

const char* Param::kind() const {
  if (ignored()) return "ignored (WEFT_PARAM_IGNORED)";
  if ((flags & WEFT_PARAM_BUFFER) != 0) return "a buffer without a gradient (WEFT_PARAM_BUFFER)";
  return "state without a gradient (WEFT_PARAM_STATE_ONLY)";
}

size_t Manifest::reduced() const {
  return static_cast<size_t>(
      std::count_if(params.begin(), params.end(), [](const Param& p) { return p.reduced(); }));
}

std::string Param::text() const {
  if (ignored()) return "ignored";
  std::vector<int64_t> extents = shape, steps = strides;
  if (pairs) {
    extents.pop_back();
    steps.pop_back();
    for (int64_t& step : steps) step /= 2;
  }
  const char* const type = !pairs ? weft::name(dtype) : dtype == Dtype::kF32 ? "c64" : "c128";
  std::string out = cat(sparse() ? "sparse " : "", type, " [", list_text(extents), "]");
  if (sparse_ndim > 1) out += cat(" by ", sparse_ndim, " dimensions");
  if (steps != row_major(extents)) out += cat(" with strides [", list_text(steps), "]");
  if (on_device()) out += cat(" on CUDA device number ", device, " of the list");
  if ((flags & WEFT_PARAM_BUFFER) != 0) out += ", a buffer";
  if ((flags & WEFT_PARAM_STATE_ONLY) != 0) out += ", state without a gradient";
  return out;
}

bool Manifest::has_devices() const {
  return std::any_of(params.begin(), params.end(), [](const Param& p) { return p.on_device(); });
}

Status make_manifest(const weft_param* params, uint64_t count, uint64_t element_size, Manifest* manifest) {
  if (params == nullptr || count == 0) {
    return Status::error(Code::kArg, "the list of parameters is empty: at least one parameter is needed");
  }
  if (count > kMaxParams) {
    return Status::error(Code::kArg, cat("the list has ", count, " parameters; at most ", kMaxParams,
                                         " are supported (param_count)"));
  }
  manifest->params.resize(count);
  const auto* element = reinterpret_cast<const std::byte*>(params);
  for (uint64_t i = 0; i < count; i++, element += element_size) {
    weft_param param{};
    std::memcpy(&param, element, std::min<uint64_t>(element_size, sizeof param));
    WEFT_TRY(from_struct(i, param, &manifest->params[i]));
    if (manifest->params[i].ignored()) continue;
    number_device(&manifest->params[i], &manifest->devices);
    if (param.gradient != nullptr || param.parameter != nullptr) {
      manifest->homes.resize(count);
      manifest->homes[i] = {static_cast<std::byte*>(param.gradient), param.parameter};
    }
    if (param.uses > 1) {
      if (manifest->uses.empty()) manifest->uses.assign(count, 1);
      manifest->uses[i] = param.uses;
    }
  }
  if (manifest->reduced() == 0)
    return Status::error(
        Code::kArg,
        "no parameter of the list has a gradient: all are WEFT_PARAM_STATE_ONLY, BUFFER or IGNORED");
  WEFT_TRY(check_total(manifest->params));
  WEFT_TRY(check_names(manifest->params));
  return check_gradients(*manifest);
}

void Manifest::write(ByteWriter* writer) const {
  writer->put(static_cast<uint32_t>(params.size()));
  for (const Param& p : params) {
    writer->put(p.flags);
    if (p.ignored()) continue;
    writer->put_string(p.name).put(p.dtype).put(p.pairs).put(p.device_kind).put(p.device);
    writer->put(static_cast<uint8_t>(p.sparse_ndim)).put(static_cast<uint8_t>(p.shape.size()));
    for (const int64_t extent : p.shape) writer->put(extent);
    for (const int64_t stride : p.strides) writer->put(stride);
  }
}

Status Manifest::read(ByteView bytes, Manifest* manifest) {
  const auto bad = [](const std::string& why) {
    return Status::error(Code::kMismatch, cat("the list of parameters that it sent is invalid: ", why));
  };
  ByteReader reader(bytes);
  const auto count = reader.get<uint32_t>();
  manifest->params.clear();
  // Parameters are added one by one, because the count is not trusted: the bytes may end earlier.
  for (uint32_t i = 0; i < count && reader.ok(); i++) {
    Param p;
    p.flags = reader.get<uint64_t>();
    if ((p.flags & ~kParamFlags) != 0 || (p.flags & (p.flags - 1)) != 0) {
      return bad(cat("parameter ", i, " has flags ", p.flags, ", expected at most one of WEFT_PARAM_*"));
    }
    if (p.ignored()) {
      ignore({}, &p);
      manifest->params.push_back(std::move(p));
      continue;
    }
    p.name = reader.get_string(kMaxParamName);
    p.dtype = reader.get<Dtype>();
    p.pairs = reader.get<uint8_t>() != 0;
    p.device_kind = reader.get<int32_t>();
    p.device = reader.get<int32_t>();
    p.sparse_ndim = reader.get<uint8_t>();
    const auto dims = reader.get<uint8_t>();
    if (dims > kMaxParamDims)
      return bad(
          cat("parameter ", i, " has ", int{dims}, " dimensions; at most ", kMaxParamDims, " are allowed"));
    p.shape.resize(dims);
    p.strides.resize(dims);
    for (int64_t& extent : p.shape) extent = reader.get<int64_t>();
    for (int64_t& stride : p.strides) stride = reader.get<int64_t>();
    if (!reader.ok()) break;
    if (p.pairs && (p.shape.empty() || p.shape.back() != 2))
      return bad(cat("parameter ", i, " is complex, but its last dimension is not 2"));
    if (const Status checked = check_param(i, &p); !checked.ok()) return bad(checked.text());
    manifest->params.push_back(std::move(p));
  }
  return reader.done()
             ? Status()
             : bad(cat("its ", bytes.size(),
                       " bytes do not end with its last parameter; run the same version of Weft on all "
                       "ranks"));
}

std::string Manifest::named(uint64_t param) const {
  return cat("parameter ", param, " ('", params[param].name, "')");
}

std::string Manifest::names(const std::vector<uint32_t>& indices, size_t most) const {
  std::vector<std::string> quoted;
  for (size_t i = 0; i < std::min(indices.size(), most); i++) {
    quoted.push_back(cat("'", params[indices[i]].name, "'"));
  }
  std::string out = list_text(quoted, most);
  if (indices.size() > most) out += cat(" and ", indices.size() - most, " more");
  return out;
}

std::string manifest_difference(int rank, const Manifest& mine, int other_rank, const Manifest& theirs) {
  const size_t both = std::min(mine.params.size(), theirs.params.size());
  for (size_t i = 0; i < both; i++) {
    const Param& a = mine.params[i];
    const Param& b = theirs.params[i];
    if (a == b) continue;
    if (a.name == b.name) {
      return cat("parameter ", i, " '", a.name, "' is ", a.text(), " on rank ", rank, " and ", b.text(),
                 " on rank ", other_rank);
    }
    const auto has_name = [](const Manifest& m, const std::string& name) {
      return std::any_of(m.params.begin(), m.params.end(), [&](const Param& p) { return p.name == name; });
    };
    const bool order = has_name(mine, b.name) && has_name(theirs, a.name);
    return cat("parameter ", i, " is '", a.name, "' ", a.text(), " on rank ", rank, " and '", b.name, "' ",
               b.text(), " on rank ", other_rank,
               order ? ": the ranks list the same parameters in another order" : "");
  }
  if (mine.params.size() == theirs.params.size()) return "";
  const bool more = mine.params.size() > both;
  const Param& extra = (more ? mine : theirs).params[both];
  return cat("rank ", rank, " has ", mine.params.size(), " parameters and rank ", other_rank, " has ",
             theirs.params.size(), "; parameter ", both, " '", extra.name, "' ", extra.text(), " is on rank ",
             more ? rank : other_rank, " only");
}

Status check_param(const Manifest& manifest, uint64_t param) {
  const std::vector<Param>& params = manifest.params;
  if (param >= params.size()) {
    return Status::error(Code::kArg, cat("parameter ", param, " is unknown: the reducer has ", params.size(),
                                         " parameters, numbered from 0"));
  }
  if (params[param].reduced()) return {};
  return Status::error(Code::kArg, cat(manifest.named(param), " is ", params[param].kind()));
}

}  // namespace weft
