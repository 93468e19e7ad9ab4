#include "reducer/calls/ready.h"

#include <mutex>

#include "base/text.h"
#include "core/context.h"
#include "reducer/feature/devices/device_ready.h"
#include "reducer/feature/graph/captured.h"
#include "reducer/feature/uses/count_uses.h"
#include "reducer/host_stream.h"

namespace weft {
namespace {

void trace_ready(ReducerState& s, uint64_t param) {
  TraceSink* const trace = s.comm->context().trace();
  if (trace == nullptr) return;
  const Buckets::Place& place = s.buckets->place(param);
  TraceEvent event;
  event.kind = TraceKind::kReady;
  event.name = s.manifest.params[param].name.c_str();
  event.begin_ns = event.end_ns = s.comm->context().clock().now_ns();
  event.rank = s.comm->rank();
  event.lane = s.lane->key().id;
  event.bucket = place.bucket;
  event.index = param;
  event.bytes = place.count * place.gradient_bytes;
  trace->record(event);
}

}  // namespace

Status make_ready(ReducerData& r, uint64_t param, const Given& given, const weft_stream* stream) {
  void* gradient = given.data;
  ReducerState& s = *r.state;
  const StepWord step = s.readiness->step();
  // With WEFT_REDUCER_RETAIN gradients are also taken after a failure, for a retry of the step.
  if (param >= s.manifest.params.size() || !step.open() || (s.comm->failed() && !s.retain)) [[unlikely]] {
    return note(r,
                is_capturing(s) ? ready_captured(s, param, gradient, stream) : ready_refused(s, param, step));
  }
  const Buckets::Place& place = s.buckets->place(param);
  if (place.bucket == kNoBucket) [[unlikely]]
    return note(r, check_param(s, param));
  if (s.copy && gradient == nullptr) gradient = s.manifest.gradient(param);
  const bool usable =
      place.on_device ||
      (s.copy ? (gradient != nullptr || place.count == 0) &&
                    reinterpret_cast<uintptr_t>(gradient) % place.gradient_bytes == 0
              : gradient == nullptr || gradient == place.memory ||
                    (s.strays && reinterpret_cast<uintptr_t>(gradient) % place.gradient_bytes == 0 &&
                     !s.buckets->hold(gradient)));  // an old view from before a re-plan
  if (!usable || place.sparse || (!on_host(stream) && !place.on_device)) [[unlikely]]
    return note(r, check_gradient(s, param, gradient, stream));
  if (place.on_device || s.beside_devices.load(std::memory_order_relaxed)) [[unlikely]] {
    Status comes = place.on_device                 ? come_from_device(s, param, &gradient, stream, step)
                   : s.copy && gradient != nullptr ? check_gradient_memory(s, param, gradient)
                                                   : Status();
    if (!comes.ok())
      return note(r,
                  comes.with_prefix(cat("parameter ", param, " ('", s.manifest.params[param].name, "'): ")));
  }
  if (s.uses && s.uses->learning()) [[unlikely]] {
    const std::lock_guard lock(s.uses->mutex());
    if (s.uses->learning()) return take_use(r, param, {gradient, given.layout}, step);
  }
  // The use is counted first. Of two calls, one is then refused before it touches a bucket that may be in
  // flight.
  const Use use = s.readiness->use(param, step.stamp(), s.uses ? s.uses->awaited(param) : 1);
  if (use == Use::kRefused) [[unlikely]]
    return note(r, ready_refused(s, param, step));
  if (use == Use::kEarlier) return {};
  return take_gradient(r, param, {gradient, given.layout}, step);
}

Status take_gradient(ReducerData& r, uint64_t param, const Given& given, StepWord step) {
  ReducerState& s = *r.state;
  const Buckets::Place& place = s.buckets->place(param);
  if (step.local() && !s.readiness->enter(param, step)) [[unlikely]]
    return note(r, ready_refused(s, param, StepWord()));
  const Status thrown = guarded_run([&] { copy_gradient(r, param, given, step); });
  if (!thrown.ok()) [[unlikely]]
    s.comm->fail(thrown);  // the gradient counts as arrived, so that no thread waits for it
  // After leave() or count_gradient(s) the step may be over, and the objects that it used freed.
  if (step.local()) {
    if (thrown.ok()) s.presence->note_accumulated(param);
    s.readiness->leave(param);
  } else {
    count_gradient(r, place.bucket);
  }
  return thrown.ok() ? thrown : note(r, thrown);
}

void copy_gradient(ReducerData& r, uint64_t param, const Given& given, StepWord step) {
  ReducerState& s = *r.state;
  const StepKind kind = step.local()            ? StepKind::kLocal
                        : r.program.start.fresh ? StepKind::kFresh
                                                : StepKind::kSynchronised;
  s.copy_ins.of(kind, param).copy(s, {param, s.buckets->place(param), given, step});
  if (step.noting()) [[unlikely]]
    s.order->note(param, s.comm->context().clock().now_ns() - r.program.start.begin_ns);
  if (s.comm->context().trace() != nullptr) [[unlikely]]
    trace_ready(s, param);
}

void count_gradient(ReducerData& r, uint32_t bucket) {
  ReducerState& s = *r.state;
  Context& context = s.comm->context();
  std::atomic<uint64_t>& ready_ns = (*s.ready_ns)[bucket];
  if (s.devices && s.devices->has(bucket)) [[unlikely]]
    return arrive_on_device(r.state, bucket);
  if (!s.readiness->arrive(bucket)) return;
  // The bucket's last gradient: the engine may be idle.
  ready_ns.store(context.clock().now_ns(), std::memory_order_relaxed);
  context.engine().notify();
}

Status check_param(const ReducerState& state, uint64_t param) {
  const std::vector<Param>& params = state.manifest.params;
  if (param >= params.size()) {
    return Status::error(Code::kArg, cat("parameter ", param, " is unknown: the reducer has ", params.size(),
                                         " parameters, numbered from 0"));
  }
  if (params[param].reduced()) return {};
  return Status::error(Code::kArg,
                       cat("parameter ", param, " ('", params[param].name, "') is ", params[param].kind()));
}

Status ready_refused(const ReducerState& s, uint64_t param, StepWord step) {
  WEFT_TRY(check_param(s, param));
  const std::string name = cat("parameter ", param, " ('", s.manifest.params[param].name, "')");
  if (!step.open()) {
    return Status::error(Code::kState,
                         cat(name, " became ready outside a step: call weft_reducer_begin first"));
  }
  if (s.comm->failed() && !s.retain) return s.comm->failure();
  const Uses* const uses = s.uses.get();
  const bool never = uses != nullptr && uses->needed(param) == 0;  // learned to be absent from every step
  if (s.presence->absent(param, step.stamp()) && !never) {
    return Status::error(Code::kState,
                         cat(name,
                             " became ready, but is absent from this step: this rank has declared it "
                             "absent, or began the step without data"));
  }
  if (uses != nullptr) return too_often(s, param, step);
  return Status::error(
      Code::kState,
      cat(name,
          " became ready twice in one step. Is it used twice in the model, or is part of backward run again "
          "(checkpointing)? Declare the number of uses in weft_param.uses, create the reducer with "
          "WEFT_REDUCER_STATIC, or make it ready only when its gradient is complete"));
}

Status no_dense_gradient(const ReducerState& state, uint64_t param) {
  return Status::error(Code::kArg, cat("parameter ", param, " ('", state.manifest.params[param].name,
                                       "'): its gradient is sparse: use weft_reducer_ready_sparse and "
                                       "weft_reducer_sparse_result"));
}

Status check_gradient(const ReducerState& s, uint64_t param, const void* gradient,
                      const weft_stream* stream) {
  const std::string name = cat("parameter ", param, " ('", s.manifest.params[param].name, "'): ");
  if (!on_host(stream)) return no_streams().with_prefix(name);
  if (s.buckets->place(param).sparse) return no_dense_gradient(s, param);
  if (!s.copy && !s.strays) {
    return Status::error(
        Code::kArg,
        cat(name, "the gradient is at ", gradient, ", expected at ",
            static_cast<const void*>(s.buckets->place(param).memory),
            ", which is its view (weft_reducer_grad_view; a re-plan moves the views) or, in place, "
            "weft_param.gradient. Compute it there, or create a reducer in view mode with "
            "WEFT_REDUCER_COPY_STRAYS"));
  }
  if (!s.copy && s.buckets->hold(gradient)) {
    return Status::error(Code::kArg, cat(name, "the gradient is at ", gradient,
                                         ", inside the reducer's buckets, but its view is at ",
                                         static_cast<const void*>(s.buckets->place(param).memory),
                                         ": a re-plan moves the views, so ask weft_reducer_grad_view again"));
  }
  if (gradient == nullptr)
    return Status::error(Code::kArg,
                         cat(name, "the gradient is NULL: pass its address, or set weft_param.gradient"));
  return Status::error(Code::kArg, cat(name, "the gradient at ", gradient, " is not aligned to its ",
                                       int{s.buckets->place(param).gradient_bytes}, "-byte elements"));
}

}  // namespace weft
