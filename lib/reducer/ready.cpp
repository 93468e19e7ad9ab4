// Dense gradients: from the program's ready call into their buckets. Threads: any thread.
#include "base/text.h"
#include "core/context.h"
#include "reducer/host_stream.h"
#include "reducer/reducer.h"

namespace weft {

Status Reducer::ready(uint64_t param, const Given& given, const weft_stream* stream) {
  void* gradient = given.data;
  ReducerState& s = *state_;
  const StepWord step = s.readiness->step();
  // With WEFT_REDUCER_RETAIN gradients are also taken after a failure, for a retry of the step.
  if (param >= s.manifest.params.size() || !step.open() || (s.comm->failed() && !s.retain)) [[unlikely]] {
    return note(capturing() ? ready_captured(param, gradient, stream) : ready_refused(param, step));
  }
  const Buckets::Place& place = s.buckets->place(param);
  if (place.bucket == kNoBucket) [[unlikely]]
    return note(known(param));
  if (s.copy && gradient == nullptr) gradient = s.manifest.gradient(param);
  const bool usable =
      place.on_device ||
      (s.copy ? (gradient != nullptr || place.count == 0) &&
                    reinterpret_cast<uintptr_t>(gradient) % place.gradient_bytes == 0
              : gradient == nullptr || gradient == place.memory ||
                    (s.strays && reinterpret_cast<uintptr_t>(gradient) % place.gradient_bytes == 0 &&
                     !s.buckets->hold(gradient)));  // an old view from before a re-plan
  if (!usable || place.sparse || (!on_host(stream) && !place.on_device)) [[unlikely]]
    return note(check_gradient(param, gradient, stream));
  if (place.on_device || s.beside_devices.load(std::memory_order_relaxed)) [[unlikely]] {
    Status comes = place.on_device                 ? come_from_device(param, &gradient, stream, step)
                   : s.copy && gradient != nullptr ? check_gradient_memory(param, gradient)
                                                   : Status();
    if (!comes.ok())
      return note(comes.with_prefix(cat("parameter ", param, " ('", s.manifest.params[param].name, "'): ")));
  }
  if (s.uses && s.uses->learning()) [[unlikely]] {
    const std::lock_guard lock(s.uses->mutex());
    if (s.uses->learning()) return take_use(param, {gradient, given.layout}, step);
  }
  // The use is counted first. Of two calls, one is then refused before it touches a bucket that may be in
  // flight.
  const Use use = s.readiness->use(param, step.stamp(), s.uses ? s.uses->awaited(param) : 1);
  if (use == Use::kRefused) [[unlikely]]
    return note(ready_refused(param, step));
  if (use == Use::kEarlier) return {};
  return take(param, {gradient, given.layout}, step);
}

// Copies a gradient that is complete and claimed.
Status Reducer::take(uint64_t param, const Given& given, StepWord step) {
  ReducerState& s = *state_;
  const Buckets::Place& place = s.buckets->place(param);
  if (step.local() && !s.readiness->enter(param, step)) [[unlikely]]
    return note(ready_refused(param, StepWord()));
  const Status thrown = guarded_run([&] { bring(param, given, step); });
  if (!thrown.ok()) [[unlikely]]
    s.comm->fail(thrown);  // the gradient counts as arrived, so that no thread waits for it
  // After leave() or arrive() the step may be over, and the objects that it used freed.
  if (step.local()) {
    if (thrown.ok()) s.presence->note_accumulated(param);
    s.readiness->leave(param);
  } else {
    arrive(place.bucket);
  }
  return thrown.ok() ? thrown : note(thrown);
}

// The part that may throw: out of memory, or a trace.
void Reducer::bring(uint64_t param, const Given& given, StepWord step) {
  ReducerState& s = *state_;
  const StepKind kind = step.local()        ? StepKind::kLocal
                        : start_.fused_cast ? StepKind::kFused
                                            : StepKind::kSynchronised;
  s.copy_ins.of(kind, param)(s, {param, s.buckets->place(param), given, step});
  if (step.noting()) [[unlikely]]
    s.order->note(param, s.comm->context().clock().now_ns() - start_.begin_ns);
  if (s.comm->context().trace() != nullptr) [[unlikely]]
    trace_ready(param);
}

// Counts a gradient that is in its bucket. After the count the step may be over and the reducer bound anew.
// The function then uses only objects that are carried over.
void Reducer::arrive(uint32_t bucket) {
  ReducerState& s = *state_;
  Context& context = s.comm->context();
  std::atomic<uint64_t>& ready_ns = (*s.ready_ns)[bucket];
  if (s.devices && s.devices->has(bucket)) [[unlikely]]
    return arrive_on_device(bucket);
  if (!s.readiness->arrive(bucket)) return;
  // The bucket's last gradient: the engine may be idle.
  ready_ns.store(context.clock().now_ns(), std::memory_order_relaxed);
  context.engine().notify();
}

Status Reducer::known(const ReducerState& state, uint64_t param) {
  const std::vector<Param>& params = state.manifest.params;
  if (param >= params.size()) {
    return Status::error(Code::kArg, cat("parameter ", param, " is unknown: the reducer has ", params.size(),
                                         " parameters, numbered from 0"));
  }
  if (params[param].reduced()) return {};
  return Status::error(Code::kArg,
                       cat("parameter ", param, " ('", params[param].name, "') is ", params[param].kind()));
}

// Makes the error of a refused ready call.
Status Reducer::ready_refused(uint64_t param, StepWord step) const {
  WEFT_TRY(known(param));
  const std::string name = cat("parameter ", param, " ('", state_->manifest.params[param].name, "')");
  if (!step.open()) {
    return Status::error(Code::kState,
                         cat(name, " became ready outside a step: call weft_reducer_begin first"));
  }
  if (state_->comm->failed() && !state_->retain) return state_->comm->failure();
  const Uses* const uses = state_->uses.get();
  const bool never = uses != nullptr && uses->needed(param) == 0;  // learned to be absent from every step
  if (state_->presence->absent(param, step.stamp()) && !never) {
    return Status::error(Code::kState,
                         cat(name,
                             " became ready, but is absent from this step: this rank has declared it "
                             "absent, or began the step without data"));
  }
  if (uses != nullptr) return too_often(param, step);
  return Status::error(
      Code::kState,
      cat(name,
          " became ready twice in one step. Is it used twice in the model, or is part of backward run again "
          "(checkpointing)? Declare the number of uses in weft_param.uses, create the reducer with "
          "WEFT_REDUCER_STATIC, or make it ready only when its gradient is complete"));
}

Status Reducer::no_dense_gradient(const ReducerState& state, uint64_t param) {
  return Status::error(Code::kArg, cat("parameter ", param, " ('", state.manifest.params[param].name,
                                       "'): its gradient is sparse: use weft_reducer_ready_sparse and "
                                       "weft_reducer_sparse_result"));
}

Status Reducer::check_gradient(uint64_t param, const void* gradient, const weft_stream* stream) const {
  const std::string name = cat("parameter ", param, " ('", state_->manifest.params[param].name, "'): ");
  if (!on_host(stream)) return no_streams().with_prefix(name);
  if (state_->buckets->place(param).sparse) return no_dense_gradient(*state_, param);
  if (!state_->copy && !state_->strays) {
    return Status::error(
        Code::kArg,
        cat(name, "the gradient is at ", gradient, ", expected at ",
            static_cast<const void*>(state_->buckets->place(param).memory),
            ", which is its view (weft_reducer_grad_view; a re-plan moves the views) or, in place, "
            "weft_param.gradient. Compute it there, or create a reducer in view mode with "
            "WEFT_REDUCER_COPY_STRAYS"));
  }
  if (!state_->copy && state_->buckets->hold(gradient)) {
    return Status::error(Code::kArg, cat(name, "the gradient is at ", gradient,
                                         ", inside the reducer's buckets, but its view is at ",
                                         static_cast<const void*>(state_->buckets->place(param).memory),
                                         ": a re-plan moves the views, so ask weft_reducer_grad_view again"));
  }
  if (gradient == nullptr)
    return Status::error(Code::kArg,
                         cat(name, "the gradient is NULL: pass its address, or set weft_param.gradient"));
  return Status::error(Code::kArg, cat(name, "the gradient at ", gradient, " is not aligned to its ",
                                       int{state_->buckets->place(param).gradient_bytes}, "-byte elements"));
}

}  // namespace weft
