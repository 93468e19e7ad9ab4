// The last phase of a bucket: its result is copied back to the gradients, a piece at a time, and reported.
#include <algorithm>
#include <cstring>

#include "core/context.h"
#include "sync/step.h"

namespace weft {

// Selects the next bucket to copy back. A bucket with absent parameters waits until this rank knows which are
// absent everywhere; later buckets overtake it.
bool Step::next_result() {
  if (decided_) {
    if (result_ == results_.size()) return false;
    copying_ = results_[result_++];
    return true;
  }
  if (step_.mapped && late_at_ < late_.size()) {
    copying_ = late_[late_at_++];
    return true;
  }
  while (result_ < results_.size()) {
    const uint32_t bucket = results_[result_++];
    if (step_.buckets[bucket].absent == 0 || declared() || step_.mapped) {
      copying_ = bucket;
      return true;
    }
    late_.push_back(bucket);
  }
  return false;
}

// Copies results back bucket by bucket, in pieces, while later buckets are communicated.
bool Step::copy_back() {
  if (s_.norms && !decided_) return measure();
  if (copying_ == kNone && !next_result()) return false;
  const bool device = on_device(copying_);
  if (device && !give_back(copying_)) return false;
  if (device || copy_piece(copying_)) {
    // After seal() no gradient is written, so the bucket is not done.
    const std::lock_guard lock(copy_mutex_);
    if (!sealed_) bucket_done(copying_);
    copying_ = kNone;
    copy_param_ = 0;
    copy_element_ = restored_ = 0;
  }
  return true;
}

const std::byte* Step::result_of(uint32_t bucket) const {
  if (s_.device_bucket(bucket)) return s_.device_buckets->memory(bucket);
  const HookedBucket& hooked = s_.schedule.buckets[bucket];
  const std::byte* const base =
      hooked.result_space == WEFT_SPACE_BUCKET ? s_.buckets->buffers()[bucket] : s_.scratch->parts()[bucket];
  return base + hooked.result_offset;
}

// True if the views themselves hold the bucket's result.
bool Step::in_place(uint32_t bucket) const {
  return !s_.copy && !on_device(bucket) && result_of(bucket) == s_.buckets->buffers()[bucket];
}

// Returns the part of a parameter's result that this rank receives.
Owned Step::owned(uint32_t param) const {
  if (s_.ownership) return s_.ownership->of(s_.comm->rank(), param);
  return {0, s_.buckets->place(param).count};
}

// Returns the factor applied to results on their way to the gradients.
double Step::factor() const {
  return s_.norms && decided_ ? s_.norms->decision.factor : 1.0;
}

double Step::factor_of(uint32_t bucket) const {
  return in_place(bucket) ? 1.0 : factor();
}

bool Step::seal(Deadline deadline) {
  sealed_.store(true);
  // The lock is held for long only by a thread that writes to memory that does not respond.
  std::unique_lock lock(copy_mutex_, std::defer_lock);
  bool sealed = engine_.settle([&] { return lock.try_lock(); }, deadline);
  if (sealed) {
    lock.unlock();
    // No new copy is launched from here on, and copies that devices have begun end by themselves.
    sealed = !s_.devices || engine_.settle([&] { return s_.devices->returned(); }, deadline);
  }
  release();
  return sealed;
}

// Converts the views back to the storage dtype, a piece at a time. True when that is done.
bool Step::restore(uint32_t bucket) {
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const Dtype held = s_.buckets->held(bucket);
  if (held == planned.dtype || restored_ == planned.count) return true;
  const uint64_t n = std::min(kPieceBytes / dtype_size(held), planned.count - restored_);
  const bool wider = dtype_size(held) > dtype_size(planned.dtype);
  convert_in_place(s_.comm->context().host(), s_.buckets->buffers()[bucket], planned.dtype, held,
                   wider ? planned.count - restored_ - n : restored_, n, 1);
  restored_ += n;
  return restored_ == planned.count;
}

// Copies a piece of a bucket's result to the gradients. True when all of it is there.
bool Step::copy_piece(uint32_t bucket) {
  const std::lock_guard lock(copy_mutex_);
  const StepContext::Bucket& here = step_.buckets[bucket];
  const bool left_alone = s_.copy && s_.norms && s_.norms->decision.skipped;
  if (sealed_ || here.skipped || left_alone) return true;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  if (planned.sparse) return scale_sparse(bucket);
  const std::byte* const result = result_of(bucket);
  const bool there = in_place(bucket);
  const double scale = factor();
  if (there && !restore(bucket)) return false;
  if (there && scale == 1 && here.absent == 0) return true;
  const DeviceOps& ops = s_.comm->context().host();
  const Dtype has = s_.comm_dtype(bucket);
  const uint64_t element = dtype_size(has);  // of the result
  for (uint64_t bytes = 0; bytes < kPieceBytes;) {
    if (copy_param_ == planned.params.size()) return true;
    const uint32_t param = planned.params[copy_param_];
    const Buckets::Place& place = s_.buckets->place(param);
    const uint64_t left = std::max<uint64_t>((kPieceBytes - bytes) / place.element_bytes, 1);
    const std::byte* const from = result + planned.offsets[copy_param_] * element;
    const bool nowhere = here.absent > 0 && absent_everywhere(param);
    const Owned mine = owned(param);
    const uint64_t first = mine.first + copy_element_;
    uint64_t count = 0;
    if (s_.copy) {
      const Layout& layout = s_.layout(param);
      count = std::min(layout.piece(first, left), mine.count - copy_element_);
      if (!nowhere && count > 0 && s_.gradients[param] != nullptr) {
        layout.unflatten(ops, from, has, s_.gradients[param], first, count, scale, s_.buckets->streaming());
      }
    } else {
      count = std::min(left, mine.count - copy_element_);
      const uint64_t at = first * place.element_bytes;
      const uint64_t size = count * place.element_bytes;
      // The hook may have changed the zeros of a parameter that is absent everywhere.
      if (nowhere && size > 0) {
        std::memset(place.memory + at, 0, size);
      } else if ((!there || scale != 1) && size > 0) {
        // A result in place has been converted back already.
        const std::byte* const src = there ? place.memory + at : from + first * element;
        ops.copy({src, place.memory + at, count, there ? place.dtype : has, place.dtype, scale});
      }
    }
    bytes += std::max<uint64_t>(count * place.element_bytes, 64);
    copy_element_ += count;
    if (copy_element_ == mine.count) {
      copy_param_++;
      copy_element_ = 0;
    }
  }
  return copy_param_ == planned.params.size();
}

bool Step::absent_everywhere(uint32_t param) const {
  if (!s_.presence->absent(param, step_.stamp)) return false;
  return declared() || (s_.mapped && !s_.presence->present_anywhere(param));
}

void Step::bucket_done(uint32_t bucket) {
  // The call that may throw comes first, so that each bucket is reported once.
  if (s_.on_bucket != nullptr) s_.comm->context().callbacks().promise();
  last_done_ns_ = clock_.now_ns();
  running_[bucket].done_ns.store(last_done_ns_, std::memory_order_relaxed);
  running_[bucket].done.store(step_.stamp, std::memory_order_release);
  if (s_.devices) release(bucket);
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
