// Dense gradients on their way from the program into their buckets. Threads: any thread.
#include "base/text.h"
#include "core/context.h"
#include "sync/host_stream.h"
#include "sync/reducer.h"

namespace weft {

Status Reducer::ready(uint64_t param, void* gradient, const weft_stream* stream) {
  ReducerState& s = *state_;
  const StepWord step = s.readiness->step();
  // Contributions that are retained are wanted after a failure as well.
  if (param >= s.manifest.params.size() || !step.open() || (s.comm->failed() && !s.retain)) [[unlikely]] {
    return note(ready_refused(param, step));
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
                     !s.buckets->hold(gradient)));  // a view from before a re-plan is no stray
  if (!usable || place.sparse || (!on_host(stream) && !place.on_device)) [[unlikely]]
    return note(check_gradient(param, gradient, stream));
  if (place.on_device || s.beside_devices) [[unlikely]] {
    Status comes = place.on_device                 ? come_from_device(param, &gradient, stream, step)
                   : s.copy && gradient != nullptr ? check_gradient_memory(param, gradient)
                                                   : Status();
    if (!comes.ok())
      return note(comes.with_prefix(cat("parameter ", param, " ('", s.manifest.params[param].name, "'): ")));
  }
  if (s.uses) [[unlikely]] {
    // While uses are learned each may be the last, and nothing travels.
    if (s.uses->learning()) remember(param, gradient);
    const Uses::Count count = s.uses->count(param, step.stamp());
    if (count == Uses::Count::kTooMany) return note(too_often(param, step));
    if (count == Uses::Count::kEarlier) {
      return {};
    }
  }
  return take(param, gradient, step);
}

// The gradient is complete.
Status Reducer::take(uint64_t param, void* gradient, StepWord step, const weft_sparse* entries) {
  ReducerState& s = *state_;
  const Buckets::Place& place = s.buckets->place(param);
  if (step.local() && !s.readiness->enter(step)) [[unlikely]]
    return note(ready_refused(param, s.readiness->step()));
  // First, so that of two calls one is refused before it touches a bucket that may be travelling.
  const bool claimed = s.readiness->claim(param, step.stamp());
  if (claimed && place.sparse) [[unlikely]] {
    take_entries(param, entries);
  } else if (claimed && place.on_device) [[unlikely]] {
    take_on_device(param, gradient, step);
  } else if (claimed && !s.copy && gradient != nullptr && gradient != place.memory) [[unlikely]] {
    place.layout->flatten(s.comm->context().host(), static_cast<const std::byte*>(gradient), place.memory,
                          place.dtype, s.presence->accumulated(param));
  } else if (claimed && s.copy) {
    place.layout->flatten(s.comm->context().host(), static_cast<const std::byte*>(gradient), place.memory,
                          place.dtype, s.presence->accumulated(param));
    s.gradients[param] = static_cast<std::byte*>(gradient);
  }
  if (claimed && step.noting()) [[unlikely]]
    s.order->note(param, s.comm->context().clock().now_ns() - start_.begin_ns);
  if (claimed && step.local()) s.presence->note_accumulated(param);
  if (step.local()) s.readiness->leave();
  if (!claimed) [[unlikely]]
    return note(ready_refused(param, step));
  if (s.comm->context().trace() != nullptr) [[unlikely]]
    trace_ready(param);
  if (!step.local()) arrive(place.bucket);
  return {};
}

// A gradient is in its bucket. Once that is counted the step may be over and the reducer bound anew: what is
// touched afterwards stays.
void Reducer::arrive(uint32_t bucket) {
  ReducerState& s = *state_;
  Context& context = s.comm->context();
  std::atomic<uint64_t>& ready_ns = (*s.ready_ns)[bucket];
  if (s.devices && s.devices->has(bucket)) [[unlikely]]
    return arrive_on_device(bucket);
  if (!s.readiness->arrive(bucket)) return;
  // The bucket's last: the engine may have nothing else to do.
  ready_ns.store(context.clock().now_ns(), std::memory_order_relaxed);
  context.engine().notify();
}

Status Reducer::known(uint64_t param) const {
  const std::vector<Param>& params = state_->manifest.params;
  if (param >= params.size()) {
    return Status::error(Code::kArg, cat("parameter ", param, " is unknown: there are ", params.size()));
  }
  if (params[param].reduced()) return {};
  return Status::error(Code::kArg,
                       cat("parameter ", param, " ('", params[param].name, "') is ", params[param].kind()));
}

// Why ready cannot be.
Status Reducer::ready_refused(uint64_t param, StepWord step) const {
  WEFT_TRY(known(param));
  const std::string name = cat("parameter ", param, " ('", state_->manifest.params[param].name, "')");
  if (!step.open()) {
    return Status::error(Code::kState, cat(name, " became ready outside a step: call begin first"));
  }
  if (state_->comm->failed() && !state_->retain) return state_->comm->failure();
  if (state_->presence->absent(param, step.stamp())) {
    return Status::error(Code::kState, cat(name, " became ready, but is absent from this step"));
  }
  return Status::error(
      Code::kState,
      cat(name,
          " became ready twice in one step. Is it used twice in the model, or is part of backward run again "
          "(checkpointing)? Declare how often in weft_param.uses, create the reducer with "
          "WEFT_REDUCER_STATIC, or "
          "say that it is ready once its gradient is complete"));
}

Status Reducer::check_gradient(uint64_t param, const void* gradient, const weft_stream* stream) const {
  const std::string name = cat("parameter ", param, " ('", state_->manifest.params[param].name, "'): ");
  if (!on_host(stream)) return no_streams().with_prefix(name);
  if (state_->buckets->place(param).sparse) {
    return Status::error(Code::kArg, cat(name, "its gradient is sparse: weft_reducer_ready_sparse"));
  }
  if (!state_->copy && !state_->strays) {
    return Status::error(
        Code::kArg,
        cat(name, "the gradient is at ", gradient, " and not where weft_reducer_grad_view says, at ",
            static_cast<const void*>(state_->buckets->place(param).memory),
            "; in view mode it must be computed there (a re-plan moves the views), or be copied "
            "there: WEFT_REDUCER_COPY_STRAYS"));
  }
  if (!state_->copy && state_->buckets->hold(gradient)) {
    return Status::error(
        Code::kArg,
        cat(name, "the gradient is at ", gradient, ", in the view of another one: a re-plan has moved it to ",
            static_cast<const void*>(state_->buckets->place(param).memory), " (weft_reducer_grad_view)"));
  }
  if (gradient == nullptr) return Status::error(Code::kArg, cat(name, "the gradient is NULL"));
  return Status::error(Code::kArg, cat(name, "the gradient is not aligned to its elements"));
}

}  // namespace weft
