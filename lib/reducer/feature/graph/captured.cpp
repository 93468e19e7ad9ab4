#include "reducer/feature/graph/captured.h"

#include <algorithm>

#include "base/text.h"
#include "reducer/feature/devices/device_ready.h"
#include "reducer/host_stream.h"

namespace weft {
Status begin_captured(ReducerData& r, const weft_begin_options& options) {
  ReducerState& s = *r.state;
  if (!s.captures)
    return Status::error(Code::kState,
                         "WEFT_BEGIN_CAPTURE needs a reducer that was created with WEFT_REDUCER_GRAPH");
  if (options.flags != WEFT_BEGIN_CAPTURE) {
    return Status::error(Code::kArg, cat("weft_begin_options.flags is ", options.flags,
                                         ", but WEFT_BEGIN_CAPTURE excludes all other flags: set it alone"));
  }
  if (options.gradients != nullptr) {
    return Status::error(Code::kArg,
                         "weft_begin_options.gradients is set, but it is for absent parameters, and a "
                         "captured step has none: pass NULL");
  }
  if (s.presence->local_steps() != 0) {
    return Status::error(
        Code::kState, cat("a captured step would leave out the gradients that local steps have accumulated (",
                          s.presence->local_steps(),
                          " so far): finish a synchronised step without WEFT_BEGIN_CAPTURE first"));
  }
  return s.captures->begin(std::max<uint32_t>(options.micro_batches, 1), r.timeout_ms);
}

Status ready_captured(ReducerState& s, uint64_t param, void* gradient, const weft_stream* stream) {
  WEFT_TRY(check_param(s.manifest, param));
  if (s.comm->failed()) return s.comm->failure();
  if (s.copy && gradient == nullptr) gradient = s.manifest.gradient(param);
  Status status = check_gradient_stream(s, param, stream);
  if (status.ok()) status = find_gradient(s, param, &gradient);
  if (status.ok()) status = s.devices->accelerator().check_captured(stream->device, stream->handle);
  if (status.ok()) status = s.captures->ready(param, static_cast<std::byte*>(gradient), stream->handle);
  return status.with_prefix(cat(s.manifest.named(param), ": "));
}

Status finish_captured(ReducerData& r, const weft_finish_options& options, const Status& given) {
  const ReducerState& s = *r.state;
  std::vector<DeviceStream> streams;
  Status wrong = s.comm->failed() ? s.comm->failure() : given;
  if (wrong.ok() && (options.flags != 0 || options.clip_norm != 0)) {
    wrong = Status::error(Code::kArg, cat("weft_finish_options.flags is ", options.flags, " and clip_norm ",
                                          options.clip_norm, ": both must be 0 in a captured step"));
  }
  if (wrong.ok() && on_host(options.stream)) {
    wrong =
        Status::error(Code::kArg,
                      "weft_finish_options.stream is NULL or a host stream, but in a captured step it must "
                      "name CUDA streams that are being captured");
  }
  const uint64_t count = wrong.ok() ? std::max<uint64_t>(options.stream_count, 1) : 0;
  for (uint64_t i = 0; i < count; i++) {
    const weft_stream& stream = options.stream[i];
    streams.push_back(stream.handle);
    if (stream.device == s.captures->device()) continue;
    wrong =
        Status::error(Code::kArg, cat("weft_finish_options.stream[", i, "] is on CUDA device ", stream.device,
                                      ", but the gradients are on device ", s.captures->device()));
  }
  return note(r, s.captures->finish(streams, wrong));
}

Status outside_capture(const ReducerState& s, const char* what) {
  if (!is_capturing(s)) return {};
  return Status::error(Code::kState,
                       cat("weft_reducer_", what, " inside a captured step: call weft_reducer_finish first"));
}

}  // namespace weft
