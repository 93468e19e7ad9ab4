// Gradients in device memory, from the program into their buckets, and streams that wait for results.
// Threads: as Reducer's calls.
#include <algorithm>

#include "base/text.h"
#include "core/context.h"
#include "reducer/host_stream.h"
#include "reducer/reducer.h"

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

// Detects that the program uses devices; gradients declared as host memory are then checked. Called before
// the step is open.
void Reducer::notice_devices() {
  Accelerator* const accelerator = state_->comm->context().accelerator();
  if (accelerator == nullptr || state_->beside_devices.load(std::memory_order_relaxed)) return;
  state_->beside_devices.store(accelerator->notice_use(), std::memory_order_relaxed);
}

// Checks that the memory of a parameter's gradient is where the manifest declares it.
Status Reducer::check_gradient_memory(uint64_t param, const void* gradient) const {
  const ReducerState& s = *state_;
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

Status Reducer::check_gradient_stream(uint64_t param, const weft_stream* stream) const {
  const ReducerState& s = *state_;
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

// Sets *gradient to the gradient's address, and checks it.
Status Reducer::find_gradient(uint64_t param, void** gradient) const {
  const ReducerState& s = *state_;
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
  return check_gradient_memory(param, *gradient);
}

// Checks a ready call for a gradient on a device, sets *gradient to its address, and notes its stream.
Status Reducer::come_from_device(uint64_t param, void** gradient, const weft_stream* stream, StepWord step) {
  ReducerState& s = *state_;
  const Buckets::Place& place = s.buckets->place(param);
  WEFT_TRY(check_gradient_stream(param, stream));
  WEFT_TRY(find_gradient(param, gradient));
  const bool adds = step.local() && s.accumulation == WEFT_ACCUMULATION_REDUCER;
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

// Records events on the bucket's streams after its last gradient: the copy waits for them. The step launches
// the bucket only once they are recorded, so it cannot end earlier unless it fails. The shared pointer keeps
// the state until then.
void Reducer::arrive_on_device(uint32_t bucket) {
  if (state_->readiness->arrive_unless_last(bucket)) return;
  const std::shared_ptr<ReducerState> state = state_;
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

void Reducer::fail_device(const Status& status, uint64_t param) {
  if (!status.ok()) fail_arrival(*state_, param, status);
}

// Waits until devices have added the gradients of local steps to the buckets. Called before the buckets move.
Status Reducer::await_devices(Deadline deadline) {
  DeviceGradients* const devices = state_->devices.get();
  if (devices == nullptr) return {};
  if (state_->comm->context().engine().wait([&] { return devices->quiet(); }, deadline)) return {};
  return Status::error(
      Code::kTimeout,
      "CUDA devices have not finished accumulating the gradients of local steps before the deadline");
}

// Copies one result to a gradient in device memory after a step, and waits.
Status Reducer::result_on_device(uint64_t param, void* gradient) {
  ReducerState& s = *state_;
  const Buckets::Place& place = s.buckets->place(param);
  WEFT_TRY(check_gradient_memory(param, gradient));
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
                          step_->factor_of(place.bucket)));
  Status failed;
  const auto over = [&] {
    bool done = false;
    failed = devices.query(place.bucket, DeviceGradients::Way::kOut, &done);
    return done || !failed.ok();
  };
  const Deadline deadline = s.comm->op_deadline(timeout_ms_);
  if (!s.comm->context().engine().wait(over, deadline))
    return Status::error(Code::kTimeout, cat("CUDA device ", devices.device(place.bucket),
                                             " has not copied the result before the deadline of a step"));
  return failed;
}

// True if streams can wait: the progress thread releases them.
bool Reducer::lets_streams_wait() const {
  Context& context = state_->comm->context();
  return context.engine().mode() == Engine::Mode::kThread && context.gate().holds_streams();
}

// Makes the given streams wait for the step in place of the host. All gradients are ready. False if the host
// must wait instead.
bool Reducer::leave_to_streams(const weft_finish_options& options, uint64_t entered_ns) {
  ReducerState& s = *state_;
  Context& context = s.comm->context();
  const bool commits = (options.flags & WEFT_FINISH_COMMIT) != 0 || s.retain;
  if (on_host(options.stream) || commits || !lets_streams_wait()) return false;
  finish_deadline_ = s.comm->op_deadline(timeout_ms_);
  step_->set_deadline(finish_deadline_);
  if (!await_gradients(stamp_, finish_deadline_)) return false;
  const uint64_t count = std::max<uint64_t>(options.stream_count, 1);
  for (uint64_t i = 0; i < count; i++) {
    const weft_stream& stream = options.stream[i];
    DeviceCall call;
    Status held = context.gate().enter(stream.device, stream.handle, &call);
    if (held.ok()) held = context.gate().hold(call);
    // The streams that were made to wait before the error continue when the step is over.
    if (!held.ok()) {
      if (call.ticket != nullptr) context.gate().leave(&call);
      return false;
    }
    step_->hold(call, stamp_);
  }
  finishing_ = true;
  entered_ns_ = entered_ns;
  context.engine().notify();
  return true;
}

// Waits for claimed gradients that are still being copied on other threads. If a stream waited for the step
// before the events of its gradients are recorded on it, it would wait for itself. False after a failure.
bool Reducer::await_gradients(uint32_t stamp, Deadline deadline) {
  const ReducerState& s = *state_;
  const auto all = [&] { return s.readiness->full() && s.devices->recorded(stamp); };
  s.comm->context().engine().wait([&] { return all() || s.comm->failed(); }, deadline);
  return all() && !s.comm->failed();
}

// Checks that a stream can wait, in a step that is not over.
Status Reducer::check_stream_wait(uint64_t param, uint32_t stamp) const {
  const ReducerState& s = *state_;
  const StepWord step = s.readiness->step();
  if (!step.open() || step.stamp() != stamp) return {};
  if (s.norms && !lets_streams_wait()) {
    return Status::error(Code::kState,
                         "a reducer with WEFT_REDUCER_NORMS has its results only after finish, and with "
                         "WEFT_PROGRESS_CALLER or WEFT_CONTEXT_HOST_WAITS streams cannot wait for them "
                         "earlier: call weft_reducer_finish first");
  }
  if (s.readiness->full()) return {};
  const std::vector<uint32_t> missing = s.readiness->missing();
  if (missing.empty()) return {};  // another thread's ready call is about to return
  return Status::error(
      Code::kState,
      cat("a stream cannot wait for parameter ", param, " ('", s.manifest.params[param].name,
          "') yet: the gradients of ", s.manifest.names(missing, 8),
          " are not ready in this step, and may be computed on this stream after the wait. Make "
          "all parameters of the step ready first"));
}

// Makes a stream wait in place of the host for one parameter's result.
Status Reducer::stream_wait_param(uint64_t param, int device, DeviceStream stream) {
  ReducerState& s = *state_;
  WEFT_TRY(note(known(param)));
  if (!s.devices) return note(no_streams().with_prefix("the reducer has no gradients on devices: "));
  const uint32_t stamp = synchronised_.load();
  Context& context = s.comm->context();
  const uint32_t bucket = s.buckets->place(param).bucket;
  const bool over = stamp == 0 || step_->done(bucket, stamp) || step_->finished(stamp);
  if (over) return wait_param(param, WEFT_TIMEOUT_POLL);
  WEFT_TRY(note(check_stream_wait(param, stamp)));
  const Deadline deadline = s.comm->op_deadline(timeout_ms_);
  step_->limit(deadline);
  step_->let_end_for(bucket);
  if (!lets_streams_wait()) return wait_param(param, timeout_ms_);
  if (!await_gradients(stamp, deadline)) {
    if (s.comm->failed()) return note(s.comm->failure());
    return note(Status::error(
        Code::kTimeout,
        "a call of weft_reducer_ready on another thread has not returned before the deadline of a step"));
  }
  if (step_->held_streams().has(device, stream, bucket)) return {};
  DeviceCall call;
  WEFT_TRY(note(context.gate().enter(device, stream, &call)));
  Status held = context.gate().hold(call);
  if (!held.ok()) {
    context.gate().leave(&call);
    return note(std::move(held));
  }
  step_->hold(call, stamp, bucket);
  context.engine().notify();
  return {};
}

Status Reducer::settle_finish() {
  if (!finishing_) return {};
  finishing_ = false;
  return wait_for_step(entered_ns_, false, finish_deadline_);
}

}  // namespace weft
