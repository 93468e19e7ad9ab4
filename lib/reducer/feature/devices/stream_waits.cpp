#include "reducer/feature/devices/stream_waits.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/read.h"
#include "reducer/host_stream.h"

namespace weft {
namespace {

// True if streams can wait: the progress thread releases them.
bool lets_streams_wait(const ReducerState& s) {
  Context& context = s.comm->context();
  return context.engine().mode() == Engine::Mode::kThread && context.gate().holds_streams();
}

// Waits for claimed gradients that are still being copied on other threads. If a stream waited for the step
// before the events of its gradients are recorded on it, it would wait for itself. False after a failure.
bool await_gradients(ReducerState& s, uint32_t stamp, Deadline deadline) {
  const auto all = [&] { return s.readiness->full() && s.devices->recorded(stamp); };
  s.comm->context().engine().wait([&] { return all() || s.comm->failed(); }, deadline);
  return all() && !s.comm->failed();
}

// Checks that a stream can wait, in a step that is not over.
Status check_stream_wait(const ReducerState& s, uint64_t param, uint32_t stamp) {
  const StepWord step = s.readiness->step();
  if (!step.open() || step.stamp() != stamp) return {};
  if (s.norms && !lets_streams_wait(s)) {
    return Status::error(Code::kState,
                         "a reducer with WEFT_REDUCER_NORMS has its results only after finish, and without "
                         "WEFT_CONTEXT_STREAM_WAITS or with WEFT_PROGRESS_CALLER streams cannot wait for "
                         "them earlier: call weft_reducer_finish first");
  }
  if (s.readiness->full()) return {};
  const std::vector<uint32_t> missing = s.readiness->missing();
  if (missing.empty()) return {};  // another thread's ready call is about to return
  return Status::error(
      Code::kState,
      cat("a stream cannot wait for ", s.manifest.named(param), " yet: the gradients of ",
          s.manifest.names(missing, 8),
          " are not ready in this step, and may be computed on this stream after the wait. Make "
          "all parameters of the step ready first"));
}

}  // namespace

bool leave_to_streams(ReducerData& r, const weft_finish_options& options, uint64_t entered_ns) {
  ReducerState& s = *r.state;
  Context& context = s.comm->context();
  const bool commits = (options.flags & WEFT_FINISH_COMMIT) != 0 || s.has(WEFT_REDUCER_RETAIN);
  if (on_host(options.stream) || commits || !lets_streams_wait(s)) return false;
  r.program.finish_deadline = s.comm->op_deadline(r.timeout_ms);
  r.step->set_deadline(r.program.finish_deadline);
  if (!await_gradients(s, r.program.stamp, r.program.finish_deadline)) return false;
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
    r.step->hold(call, r.program.stamp);
  }
  r.program.finishing = true;
  r.program.entered_ns = entered_ns;
  context.engine().notify();
  return true;
}

Status make_stream_wait(ReducerData& r, uint64_t param, int device, DeviceStream stream) {
  ReducerState& s = *r.state;
  WEFT_TRY(note(r, check_param(s.manifest, param)));
  if (!s.devices) return note(r, no_streams().with_prefix("the reducer has no gradients on devices: "));
  const uint32_t stamp = r.program.synchronised.load();
  Context& context = s.comm->context();
  const uint32_t bucket = s.buckets->place(param).bucket;
  const bool over = stamp == 0 || r.step->done(bucket, stamp) || r.step->finished(stamp);
  if (over) return wait_for_param(r, param, WEFT_TIMEOUT_POLL);
  WEFT_TRY(note(r, check_stream_wait(s, param, stamp)));
  const Deadline deadline = s.comm->op_deadline(r.timeout_ms);
  r.step->limit(deadline);
  r.step->let_end_for(bucket);
  if (!lets_streams_wait(s)) return wait_for_param(r, param, r.timeout_ms);
  if (!await_gradients(s, stamp, deadline)) {
    if (s.comm->failed()) return note(r, s.comm->failure());
    return note(
        r,
        Status::error(
            Code::kTimeout,
            "a call of weft_reducer_ready on another thread has not returned before the deadline of a step"));
  }
  if (r.step->held_streams().has(device, stream, bucket)) return {};
  DeviceCall call;
  WEFT_TRY(note(r, context.gate().enter(device, stream, &call)));
  Status held = context.gate().hold(call);
  if (!held.ok()) {
    context.gate().leave(&call);
    return note(r, std::move(held));
  }
  r.step->hold(call, stamp, bucket);
  context.engine().notify();
  return {};
}

}  // namespace weft
