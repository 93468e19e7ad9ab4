// Statistics of a reducer's buckets and steps. report.cpp returns the same as JSON.
#include <algorithm>

#include "base/text.h"
#include "core/context.h"
#include "reducer/reducer.h"

namespace weft {

// mutex_ must be held.
void Reducer::note_times(uint64_t entered_ns, uint64_t now_ns, bool reduced) {
  StepTimes times;
  times.step_ns = now_ns - start_.begin_ns;
  times.compute_ns = entered_ns - start_.begin_ns;
  times.exposed_ns = now_ns - entered_ns;
  const uint64_t first_ns = step_->finished(stamp_) ? step_->first_launch_ns() : 0;
  if (first_ns != 0 && step_->last_done_ns() > first_ns) {
    times.communication_ns = step_->last_done_ns() - first_ns;
    const uint64_t end_ns = std::min(entered_ns, step_->last_done_ns());
    times.overlap_ns = end_ns > first_ns ? end_ns - first_ns : 0;
  }
  stats_.step_ns = times.step_ns;
  stats_.compute_ns = times.compute_ns;
  stats_.exposed_ns = times.exposed_ns;
  stats_.communication_ns = times.communication_ns;
  stats_.overlap_ns = times.overlap_ns;
  if (!reduced) return;
  history_.add(times);
  history_.add_waits(step_->waits().waited_ns(), step_->waits().straggler());
}

// Records the largest error memory among the buckets, and warns once of one that keeps growing. It warns
// without mutex_, because the log may call the program's code.
void Reducer::note_error_memory() {
  double largest = 0;
  uint32_t largest_at = 0;
  std::optional<uint32_t> growing;
  for (uint32_t b = 0; b < bucket_count(); b++) {
    const std::optional<ErrorMemory> memory = step_->times(b).error_memory;
    if (!memory) continue;
    if (memory->ratio > largest) {
      largest = memory->ratio;
      largest_at = b;
    }
    if (memory->growing && !growing) growing = b;
  }
  {
    const std::lock_guard lock(mutex_);
    stats_.hook_error = largest;
    stats_.hook_error_bucket = largest_at;
    if (!growing || warned_of_error_memory_) return;
    warned_of_error_memory_ = true;
  }
  const ReducerState& s = *state_;
  s.comm->context().log().warn(
      cat("rank ", s.comm->rank(), ", step ", stats_.steps, ": the error memory of hook '", s.hook->name(),
          "' keeps growing in ", s.plan.text(s.manifest, *growing), ": it is ",
          step_->times(*growing).error_memory->ratio,
          " times as large as the gradients, which degrades the training. Compress less, lower the "
          "learning rate, or create the hook with rescue=1"));
}

void Reducer::trace_ready(uint64_t param) {
  TraceSink* const trace = state_->comm->context().trace();
  if (trace == nullptr) return;
  const Buckets::Place& place = state_->buckets->place(param);
  TraceEvent event;
  event.kind = TraceKind::kReady;
  event.name = state_->manifest.params[param].name.c_str();
  event.begin_ns = event.end_ns = state_->comm->context().clock().now_ns();
  event.rank = state_->comm->rank();
  event.lane = state_->lane->key().id;
  event.bucket = place.bucket;
  event.index = param;
  event.bytes = place.count * place.gradient_bytes;
  trace->record(event);
}

// Returns a bucket's times. While the step runs, even if finish has given it up, only done_ns is set.
Step::Times Reducer::times(uint32_t bucket) const {
  const uint32_t stamp = synchronised_.load();
  if (step_->finished(stamp)) return step_->times(bucket);
  Step::Times times;
  if (step_->done(bucket, stamp)) times.done_ns = step_->done_ns(bucket);
  return times;
}

Status Reducer::bucket(uint32_t bucket, weft_bucket_info* info, uint64_t* params, uint64_t capacity) {
  if (bucket >= bucket_count()) {
    return note(Status::error(Code::kArg, cat("bucket ", bucket, " is unknown: the reducer has ",
                                              bucket_count(), " buckets, numbered from 0")));
  }
  const PlannedBucket& planned = state_->plan.buckets[bucket];
  const Step::Times times = this->times(bucket);
  const auto since = [&](uint64_t ns) { return ns > start_.begin_ns ? ns - start_.begin_ns : 0; };
  *info = {};
  info->struct_size = sizeof *info;
  info->index = bucket;
  info->dtype = static_cast<int32_t>(planned.dtype);
  info->param_count = planned.params.size();
  info->count =
      planned.sparse ? state_->sparse->of(planned.params.front())->result_elements() : planned.count;
  info->bytes = reduced_bytes(bucket);
  info->limit_bytes = planned.limit_bytes;
  info->ready_ns = since(times.ready_ns);
  info->launch_ns = since(times.launch_ns);
  info->done_ns = since(times.done_ns);
  info->transfer_ns = times.transfer_ns;
  info->sent_bytes = times.sent_bytes;
  for (uint64_t i = 0; params != nullptr && i < std::min<uint64_t>(capacity, planned.params.size()); i++) {
    params[i] = planned.params[i];
  }
  return {};
}

void Reducer::query(weft_reducer_stats* stats) const {
  const std::lock_guard lock(mutex_);
  *stats = stats_;
  stats->struct_size = sizeof *stats;
  stats->bucket_bytes = state_->buckets->bucket_bytes();
  stats->scratch_bytes = state_->scratch->bytes() + (state_->staging ? state_->staging->bytes() : 0);
  stats->retained_bytes = state_->buckets->retained_bytes();
  stats->other_bytes = other_bytes_ + device_bytes() + (state_->sparse ? state_->sparse->memory_bytes() : 0) +
                       state_->lane_bytes();
  stats->hook_bytes = state_->hook_bytes;
  stats->copied_gradients = copied_gradients_.load(std::memory_order_relaxed);
  stats->mean_step_ns = history_.mean(&StepTimes::step_ns);
  stats->mean_compute_ns = history_.mean(&StepTimes::compute_ns);
  stats->mean_communication_ns = history_.mean(&StepTimes::communication_ns);
  stats->mean_overlap_ns = history_.mean(&StepTimes::overlap_ns);
  stats->mean_exposed_ns = history_.mean(&StepTimes::exposed_ns);
  stats->step_p50_ns = history_.percentile(&StepTimes::step_ns, 50);
  stats->step_p99_ns = history_.percentile(&StepTimes::step_ns, 99);
  stats->exposed_p50_ns = history_.percentile(&StepTimes::exposed_ns, 50);
  stats->exposed_p99_ns = history_.percentile(&StepTimes::exposed_ns, 99);
  stats->straggler = history_.straggler().rank;
  stats->straggler_ns = history_.straggler().ns;
  if (const Captures* const captures = state_->captures.get(); captures != nullptr) {
    stats->captures = captures->captures();
    stats->launches = captures->launches();
    stats->replays = captures->replays();
  }
}

}  // namespace weft
