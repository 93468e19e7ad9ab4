#include "reducer/step/step_results.h"

#include "comm/context.h"
#include "reducer/bucket/results.h"
#include "reducer/step/bucket_trace.h"

namespace weft {

StepResults::StepResults(ReducerState& state, StepContext& step, BucketRuns& buckets, HeldStreams& streams)
    : s_(state), step_(step), buckets_(buckets), streams_(streams) {
  queue_.reserve(s_.plan.buckets.size());
  late_.reserve(s_.plan.buckets.size());
}

void StepResults::start() {
  queue_.clear();
  late_.clear();
  next_ = next_late_ = 0;
  bucket_ = kNone;
  work_.start();
  decided_ = false;
  done_ = reported_up_to_ = 0;
  last_done_ns_ = 0;
}

// Selects the next bucket to give back. A bucket with absent parameters waits until this rank knows which are
// absent everywhere; later buckets overtake it.
bool StepResults::next_result() {
  if (decided_) {
    if (next_ == queue_.size()) return false;
    bucket_ = queue_[next_++];
    return true;
  }
  if (step_.mapped && next_late_ < late_.size()) {
    bucket_ = late_[next_late_++];
    return true;
  }
  while (next_ < queue_.size()) {
    const uint32_t bucket = queue_[next_++];
    if (step_.buckets[bucket].absent == 0 || absent_declared(s_, step_) || step_.mapped) {
      bucket_ = bucket;
      return true;
    }
    late_.push_back(bucket);
  }
  return false;
}

Progress StepResults::give_back() {
  const bool reviewing = reviews();
  if (reviewing && step_.reviewed == buckets_.size()) {
    const Progress decided = s_.works.gate->decide(step_);
    // While the gate waits for an exchange, the exchange continues the step.
    if (decided != Progress::kDone) return decided == Progress::kMore ? decided : Progress::kDone;
    decided_ = true;
    next_ = 0;
    return Progress::kMore;
  }
  if (bucket_ == kNone && !next_result()) return Progress::kDone;
  // Held while a gradient is written.
  std::unique_lock lock(writing_, std::defer_lock);
  if (!reviewing) lock.lock();
  const BucketWorks::List& lists = reviewing ? s_.works.review : s_.works.give_back;
  const Progress progress = work_.go_on(lists[bucket_], step_, bucket_);
  if (progress != Progress::kDone) return progress;
  const uint32_t bucket = std::exchange(bucket_, kNone);
  if (reviewing) {
    step_.reviewed++;
  } else if (!step_.sealed) {  // after seal() no gradient is written, so the bucket is not done
    bucket_done(bucket);
  }
  return Progress::kMore;
}

bool StepResults::seal(Deadline deadline) {
  Engine& engine = s_.comm->context().engine();
  step_.sealed.store(true);
  // The lock is held for long only by a thread that writes to memory that does not respond.
  std::unique_lock lock(writing_, std::defer_lock);
  if (!engine.settle([&] { return lock.try_lock(); }, deadline)) return false;
  lock.unlock();
  // No new copy is launched from here on, and copies that devices have begun end by themselves.
  return !s_.devices || engine.settle([&] { return s_.devices->returned(); }, deadline);
}

void StepResults::bucket_done(uint32_t bucket) {
  // The call that may throw comes first, so that each bucket is reported once.
  if (s_.options.on_bucket != nullptr) s_.comm->context().callbacks().promise();
  last_done_ns_ = s_.comm->context().clock().now_ns();
  buckets_[bucket].done_ns.store(last_done_ns_, std::memory_order_relaxed);
  buckets_[bucket].done.store(step_.stamp, std::memory_order_release);
  streams_.release(bucket);
  done_++;
  report(bucket, Code::kOk);
  trace_bucket(s_, step_, TraceKind::kDone, bucket, UINT32_MAX, last_done_ns_, last_done_ns_);
}

void StepResults::report_rest(Code code) {
  for (; reported_up_to_ < buckets_.size(); reported_up_to_++) {
    const bool done = buckets_[reported_up_to_].done_ns.load(std::memory_order_relaxed) != 0;
    if (s_.options.on_bucket == nullptr || done) continue;
    s_.comm->context().callbacks().promise();
    report(reported_up_to_, code);
  }
}

void StepResults::report(uint32_t bucket, Code code) {
  if (s_.options.on_bucket == nullptr) return;
  s_.comm->context().callbacks().post([call = s_.options.on_bucket, data = s_.options.on_bucket_user_data,
                                       step = step_.begun.number, bucket,
                                       code] { call(data, step, bucket, static_cast<weft_status>(code)); });
}

const char* StepResults::awaited() const {
  return reviews() ? s_.works.gate->awaited() : "results are being copied into the gradients";
}

}  // namespace weft
