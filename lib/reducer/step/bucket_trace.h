// Trace events of a bucket in a step. Threads: under the engine's progress lock.
#pragma once

#include <cstdint>

#include "comm/context.h"
#include "comm/trace_sink.h"
#include "reducer/state.h"
#include "reducer/step/step_context.h"

namespace weft {

// stage: UINT32_MAX for an event that belongs to no stage.
inline void trace_bucket(const ReducerState& s, const StepContext& step, TraceKind kind, uint32_t bucket,
                         uint32_t stage, uint64_t begin_ns, uint64_t end_ns) {
  TraceSink* const sink = s.comm->context().trace();
  if (sink == nullptr) return;
  TraceEvent event;
  event.kind = kind;
  // The event of a bucket has the name of its first parameter.
  event.name = s.manifest.params[s.plan.buckets[bucket].params.front()].name.c_str();
  event.begin_ns = begin_ns;
  event.end_ns = end_ns;
  event.comm = s.comm->options().id;
  event.rank = s.comm->rank();
  event.lane = s.lane->key().id;
  event.bucket = bucket;
  event.stage = stage;
  event.step = step.begun.number;
  event.bytes = s.plan.buckets[bucket].bytes();
  sink->record(event);
}

}  // namespace weft
