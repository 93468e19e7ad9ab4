#include "reducer/calls/ready.h"

#include <mutex>

#include "base/text.h"
#include "comm/context.h"
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
  event.comm = s.comm->options().id;
  event.rank = s.comm->rank();
  event.lane = s.lane->key().id;
  event.bucket = place.bucket;
  event.index = param;
  event.bytes = place.count * place.gradient_bytes;
  trace->record(event);
}

// A gradient on its way. Found before the parameter is claimed: after that atomic operation every load waits.
struct Taken {
  ReducerData& r;
  ReducerState& s;
  const GradientWay& way;
  const Buckets::Place& place;
  uint64_t param;

  Taken(ReducerData& data, uint64_t its_param)
      : r(data),
        s(*data.state),
        way(s.copy_ins.of(its_param)),
        place(s.buckets->place(its_param)),
        param(its_param) {}

  // Copies it into its bucket. May throw std::bad_alloc.
  void copy(const Given& given, StepWord step) const {
    const StepKind kind = step.local()            ? StepKind::kLocal
                          : r.program.start.fresh ? StepKind::kFresh
                                                  : StepKind::kSynchronised;
    way.copy(kind).copy(s, {param, place, given, step});
    if (step.noting()) [[unlikely]]
      s.order->note(param, s.comm->context().clock().now_ns() - r.program.start.begin_ns);
    if (s.comm->context().trace() != nullptr) [[unlikely]]
      trace_ready(s, param);
  }
  // Counts it. After that the step may be over and the reducer bound anew. Only objects that are carried over
  // are used then.
  void count() const {
    const uint32_t bucket = place.bucket;
    Context& context = s.comm->context();
    std::atomic<uint64_t>& ready_ns = (*s.ready_ns)[bucket];
    if (way.count != nullptr) [[unlikely]]
      return way.count(r.state, bucket);
    if (!s.readiness->arrive(bucket)) return;
    // The bucket's last gradient: the engine may be idle.
    ready_ns.store(context.clock().now_ns(), std::memory_order_relaxed);
    context.engine().notify();
  }
  Status take(const Given& given, StepWord step) const {
    if (step.local() && !s.readiness->enter(param, step)) [[unlikely]]
      return note(r, ready_refused(s, param, StepWord()));
    const Status thrown = guarded_run([&] { copy(given, step); });
    if (!thrown.ok()) [[unlikely]]
      s.comm->fail(thrown);  // the gradient counts as arrived, so that no thread waits for it
    // After leave() or count() the step may be over, and the objects that it used freed.
    if (step.local()) {
      if (thrown.ok()) s.presence->note_accumulated(param);
      s.readiness->leave(param);
    } else {
      count();
    }
    return thrown.ok() ? thrown : note(r, thrown);
  }
};

}  // namespace

Status make_ready(ReducerData& r, uint64_t param, void* gradient, const Layout* layout,
                  const weft_stream* stream) {
  ReducerState& s = *r.state;
  const StepWord step = s.readiness->step();
  // With WEFT_REDUCER_RETAIN gradients are also taken after a failure, for a retry of the step.
  if (param >= s.manifest.params.size() || !step.open() || (s.comm->failed() && !s.has(WEFT_REDUCER_RETAIN)))
      [[unlikely]] {
    return note(r,
                is_capturing(s) ? ready_captured(s, param, gradient, stream) : ready_refused(s, param, step));
  }
  const Taken taken(r, param);
  if (gradient == nullptr && taken.way.copied) gradient = s.manifest.gradient(param);
  Given given{gradient, layout};
  if (!taken.way.passes(gradient) || !on_host(stream)) {
    const Status usable = taken.way.check->check(s, param, stream, step, &given);
    if (!usable.ok()) return note(r, usable);
  }
  if (s.uses && s.uses->learning()) [[unlikely]] {
    const std::lock_guard lock(s.uses->mutex());
    if (s.uses->learning()) return take_use(r, param, given, step);
  }
  // The use is counted first. Of two calls, one is then refused before it touches a bucket that may be in
  // flight.
  const Use use = s.readiness->use(param, step.stamp(), s.uses ? s.uses->awaited(param) : 1);
  if (use == Use::kRefused) [[unlikely]]
    return note(r, ready_refused(s, param, step));
  if (use == Use::kEarlier) return {};
  return taken.take(given, step);
}

Status take_gradient(ReducerData& r, uint64_t param, const Given& given, StepWord step) {
  return Taken(r, param).take(given, step);
}

void copy_gradient(ReducerData& r, uint64_t param, const Given& given, StepWord step) {
  Taken(r, param).copy(given, step);
}

void count_gradient(ReducerData& r, uint64_t param) {
  Taken(r, param).count();
}

Status ready_refused(const ReducerState& s, uint64_t param, StepWord step) {
  WEFT_TRY(check_param(s.manifest, param));
  const std::string name = s.manifest.named(param);
  if (!step.open()) {
    return Status::error(Code::kState,
                         cat(name, " became ready outside a step: call weft_reducer_begin first"));
  }
  if (s.comm->failed() && !s.has(WEFT_REDUCER_RETAIN)) return s.comm->failure();
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

}  // namespace weft
