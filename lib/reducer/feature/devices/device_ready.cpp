#include "reducer/feature/devices/device_ready.h"

#include "base/text.h"
#include "comm/context.h"
#include "reducer/bucket/results.h"

namespace weft {
namespace {

// Returns the bytes that a gradient spans, gaps included.
uint64_t span_of(const Param& param) {
  if (param.count == 0) return 0;
  uint64_t last = 0;
  for (size_t d = 0; d < param.shape.size(); d++)
    last += static_cast<uint64_t>(param.shape[d] - 1) * static_cast<uint64_t>(param.strides[d]);
  return (last + 1) * dtype_size(param.dtype);
}

const char* place_text(MemoryPlace place) {
  switch (place) {
    case MemoryPlace::kDevice:
      return "the memory of another device";
    case MemoryPlace::kManaged:
      return "managed memory";
    case MemoryPlace::kPinned:
      return "pinned host memory";
    default:
      return "host memory, or freed";
  }
}

}  // namespace
void notice_devices(ReducerState& s) {
  Accelerator* const accelerator = s.comm->context().accelerator();
  if (accelerator == nullptr || s.beside_devices.load(std::memory_order_relaxed)) return;
  s.beside_devices.store(accelerator->notice_use(), std::memory_order_relaxed);
}

Status check_gradient_memory(const ReducerState& s, uint64_t param, const void* gradient) {
  Accelerator* const accelerator = s.comm->context().accelerator();
  const Param& p = s.manifest.params[param];
  if (accelerator == nullptr || !accelerator->sees_memory() || p.count == 0) return {};
  const auto* const first = static_cast<const std::byte*>(gradient);
  for (const std::byte* at : {first, first + span_of(p) - 1}) {
    PointerInfo info;
    WEFT_TRY(accelerator->query_pointer(at, &info));
    const char* const verb = at == first ? "the gradient is in " : "the gradient ends in ";
    if (!p.on_device()) {
      if (info.place != MemoryPlace::kDevice) continue;
      return Status::error(Code::kArg, cat(verb, "memory of CUDA device ", info.device,
                                           ", but weft_param.device_kind declares host memory"));
    }
    const int device = s.manifest.device(param);
    if (info.place == MemoryPlace::kManaged || (info.place == MemoryPlace::kDevice && info.device == device))
      continue;
    return Status::error(Code::kArg,
                         cat(verb, place_text(info.place), ", but weft_param declares CUDA device ", device));
  }
  return {};
}

Status check_gradient_stream(const ReducerState& s, uint64_t param, const weft_stream* stream) {
  const int device = s.devices->device(s.buckets->place(param).bucket);
  if (stream == nullptr || stream->kind == WEFT_DEVICE_HOST) {
    return Status::error(Code::kArg, cat("its gradient is on CUDA device ", device,
                                         ": pass the weft_stream on which the program computes it"));
  }
  if (stream->struct_size < sizeof *stream || stream->kind != WEFT_DEVICE_CUDA) {
    return Status::error(
        Code::kArg, cat("weft_stream.kind is ", stream->kind, " and its struct_size ", stream->struct_size,
                        ": expected WEFT_DEVICE_CUDA (", static_cast<int>(WEFT_DEVICE_CUDA),
                        ") and at least ", sizeof *stream, " bytes"));
  }
  if (stream->device != device) {
    return Status::error(Code::kArg, cat("the stream is of CUDA device ", stream->device,
                                         ", and the gradient is on device ", device));
  }
  if (s.devices->accelerator().own_of_thread(stream->handle)) {
    return Status::error(
        Code::kUnsupported,
        "the stream is the calling thread's default stream (cudaStreamPerThread), which other threads cannot "
        "name when they complete the bucket: pass a stream that the program has created");
  }
  return {};
}

Status find_gradient(const ReducerState& s, uint64_t param, void** gradient) {
  const Buckets::Place& place = s.buckets->place(param);
  if (!s.copy) {
    std::byte* const view = s.views_on_devices->of(param);
    if (*gradient != nullptr && *gradient != view) {
      return Status::error(
          Code::kArg, cat("the gradient is at ", *gradient, ", but in view mode it must be in its view at ",
                          static_cast<const void*>(view), " (weft_reducer_grad_view)"));
    }
    *gradient = view;
    return {};
  }
  if (*gradient == nullptr && place.count > 0) {
    return Status::error(Code::kArg, "the gradient is NULL: pass its address, or set weft_param.gradient");
  }
  if (reinterpret_cast<uintptr_t>(*gradient) % place.gradient_bytes != 0) {
    return Status::error(Code::kArg, cat("the gradient at ", *gradient, " is not aligned to its ",
                                         int{place.gradient_bytes}, "-byte elements"));
  }
  return check_gradient_memory(s, param, *gradient);
}

Status come_from_device(ReducerState& s, uint64_t param, void** gradient, const weft_stream* stream,
                        StepWord step) {
  const Buckets::Place& place = s.buckets->place(param);
  WEFT_TRY(check_gradient_stream(s, param, stream));
  WEFT_TRY(find_gradient(s, param, gradient));
  const bool adds = step.local() && s.options.accumulation == WEFT_ACCUMULATION_REDUCER;
  if (adds && (!place.layout->dense() || place.dtype != s.manifest.params[param].dtype)) {
    const Dtype dtype = s.manifest.params[param].dtype;
    return Status::error(
        Code::kUnsupported,
        cat("a local step cannot accumulate this gradient on its device: it ",
            place.layout->dense()
                ? cat("is ", weft::name(dtype), ", but the reducer accumulates in ", weft::name(place.dtype))
                : std::string("has gaps between its elements"),
            "; allowed are gradients without gaps, accumulated in their own dtype"));
  }
  // The parameter is ready already, and the call will be rejected, so nothing is noted.
  if (s.readiness->claimed(param, step.stamp())) return {};
  return s.devices->note(place.bucket, param, stream->handle);
}

void arrive_on_device(const std::shared_ptr<ReducerState>& shared, uint32_t bucket) {
  if (shared->readiness->arrive_unless_last(bucket)) return;
  const std::shared_ptr<ReducerState> state = shared;  // NOLINT(performance-unnecessary-copy-initialization)
  const uint32_t stamp = state->readiness->step().stamp();
  if (!state->readiness->arrive(bucket)) return;
  Context& context = state->comm->context();
  (*state->ready_ns)[bucket].store(context.clock().now_ns(), std::memory_order_relaxed);
  const Status recorded = state->devices->record(bucket, stamp);
  if (!recorded.ok()) {
    state->comm->fail(recorded
                          .with_prefix(cat("rank ", state->comm->rank(), ", ",
                                           state->plan.text(state->manifest, bucket), ": "))
                          .with_ranks({state->comm->rank()}));
  }
  context.engine().notify();
}

void fail_device(ReducerState& s, const Status& status, uint64_t param) {
  if (!status.ok()) fail_arrival(s, param, status);
}

Status await_devices(ReducerState& s, Deadline deadline) {
  DeviceGradients* const devices = s.devices.get();
  if (devices == nullptr) return {};
  if (s.comm->context().engine().wait([&] { return devices->quiet(); }, deadline)) return {};
  return Status::error(
      Code::kTimeout,
      "CUDA devices have not finished accumulating the gradients of local steps before the deadline");
}

Status result_on_device(ReducerData& r, uint64_t param, void* gradient) {
  ReducerState& s = *r.state;
  const Buckets::Place& place = s.buckets->place(param);
  WEFT_TRY(check_gradient_memory(s, param, gradient));
  const Dtype dtype = s.comm_dtype(place.bucket);
  const uint64_t element = dtype_size(dtype);
  const std::byte* const from = result_of(s, place.bucket) + s.plan.offset_of[param] * element;
  const Owned mine = s.ownership ? s.ownership->of(s.comm->rank(), param) : Owned{0, place.count};
  DeviceGradients& devices = *s.devices;
  auto* const to = static_cast<std::byte*>(gradient);
  devices.clear(place.bucket);
  place.layout->for_each_run(mine.first, mine.count, [&](uint64_t at, uint64_t packed, uint64_t count) {
    devices.add(place.bucket, from + packed * element, to + at * place.gradient_bytes, count, element,
                place.gradient_bytes);
  });
  WEFT_TRY(devices.launch(place.bucket, DeviceGradients::Way::kOut, dtype, s.manifest.params[param].dtype,
                          r.step->factor_of(place.bucket)));
  Status failed;
  const auto over = [&] {
    bool done = false;
    failed = devices.query(place.bucket, DeviceGradients::Way::kOut, &done);
    return done || !failed.ok();
  };
  const Deadline deadline = s.comm->op_deadline(r.timeout_ms);
  if (!s.comm->context().engine().wait(over, deadline))
    return Status::error(Code::kTimeout, cat("CUDA device ", devices.device(place.bucket),
                                             " has not copied the result before the deadline of a step"));
  return failed;
}

}  // namespace weft
