// The last phase of a bucket: its result goes back to the gradients, a piece at a time, and is reported.

#include "core/context.h"
#include "reducer/bucket/results.h"
#include "reducer/step/step.h"

namespace weft {

// Selects the next bucket to give back. A bucket with absent parameters waits until this rank knows which are
// absent everywhere; later buckets overtake it.
bool Step::next_result() {
  if (decided_) {
    if (result_ == results_.size()) return false;
    returning_.bucket = results_[result_++];
    return true;
  }
  if (step_.mapped && late_at_ < late_.size()) {
    returning_.bucket = late_[late_at_++];
    return true;
  }
  while (result_ < results_.size()) {
    const uint32_t bucket = results_[result_++];
    if (step_.buckets[bucket].absent == 0 || absent_declared(s_, step_) || step_.mapped) {
      returning_.bucket = bucket;
      return true;
    }
    late_.push_back(bucket);
  }
  return false;
}

// Gives results back bucket by bucket, in pieces, while later buckets are communicated. With a gate, all
// results are reviewed first.
bool Step::give_back() {
  const bool reviews = s_.works.gate != nullptr && !decided_;
  if (reviews && step_.reviewed == bucket_count()) {
    const Progress decided = s_.works.gate->decide(step_);
    if (decided != Progress::kDone) return decided == Progress::kMore;
    decided_ = true;
    result_ = 0;
    return true;
  }
  if (returning_.bucket == kNone && !next_result()) return false;
  const uint32_t bucket = returning_.bucket;
  const auto& works = (reviews ? s_.works.review : s_.works.give_back)[bucket];
  // Held while a gradient is written.
  std::unique_lock lock(copy_mutex_, std::defer_lock);
  if (!reviews) lock.lock();
  switch (works_on(works, bucket, &returning_)) {
    case Progress::kMore:
      return true;
    case Progress::kWaiting:
      device_waits_ = true;
      return false;
    case Progress::kDone:
      break;
  }
  returning_ = {};
  if (reviews) {
    step_.reviewed++;
  } else if (!step_.sealed) {  // after seal() no gradient is written, so the bucket is not done
    bucket_done(bucket);
  }
  return true;
}

bool Step::seal(Deadline deadline) {
  step_.sealed.store(true);
  // The lock is held for long only by a thread that writes to memory that does not respond.
  std::unique_lock lock(copy_mutex_, std::defer_lock);
  bool sealed = engine_.settle([&] { return lock.try_lock(); }, deadline);
  if (sealed) {
    lock.unlock();
    // No new copy is launched from here on, and copies that devices have begun end by themselves.
    sealed = !s_.devices || engine_.settle([&] { return s_.devices->returned(); }, deadline);
  }
  streams_.release(HeldStreams::kWholeStep);
  return sealed;
}

void Step::bucket_done(uint32_t bucket) {
  // The call that may throw comes first, so that each bucket is reported once.
  if (s_.on_bucket != nullptr) s_.comm->context().callbacks().promise();
  last_done_ns_ = clock_.now_ns();
  buckets_[bucket].done_ns.store(last_done_ns_, std::memory_order_relaxed);
  buckets_[bucket].done.store(step_.stamp, std::memory_order_release);
  streams_.release(bucket);
  done_++;
  report(bucket, Code::kOk);
  trace(TraceKind::kDone, bucket, UINT32_MAX, last_done_ns_, last_done_ns_);
}

// Reports the buckets that have no result.
void Step::report_rest(Code code) {
  for (; reported_up_to_ < bucket_count(); reported_up_to_++) {
    if (s_.on_bucket == nullptr || done_ns(reported_up_to_) != 0) continue;
    s_.comm->context().callbacks().promise();
    report(reported_up_to_, code);
  }
}

void Step::report(uint32_t bucket, Code code) {
  if (s_.on_bucket == nullptr) return;
  s_.comm->context().callbacks().post([call = s_.on_bucket, data = s_.on_bucket_user_data,
                                       step = step_.begun.number, bucket,
                                       code] { call(data, step, bucket, static_cast<weft_status>(code)); });
}

}  // namespace weft
