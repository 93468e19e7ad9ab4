// Norms of a step's results. Each bucket is measured when it is done, before its results go back to the
// gradients. When finish has passed its request and the ranks have exchanged theirs, results are scaled or
// left where they are.
#include <algorithm>

#include "core/context.h"
#include "sync/feature/devices/bucket_copies.h"
#include "sync/step.h"

namespace weft {
namespace {

constexpr uint64_t kPollBytes = 1u << 20;  // measured in one poll
constexpr uint64_t kRoundedElements = 1u << 13;

}  // namespace

uint64_t Step::rounded_bytes() const {
  bool any = false;
  for (uint32_t b = 0; b < bucket_count(); b++) any |= rounds(s_.comm_dtype(b), s_.plan.buckets[b].gradients);
  return s_.norms && any ? kRoundedElements * sizeof(uint16_t) : 0;
}

// Does one bounded piece of work towards the decision about the results.
bool Step::measure() {
  if (step_.measured == bucket_count()) {
    if (s_.norms->received() == nullptr) return false;
    decide();
    return true;
  }
  if (copying_ == kNone && !next_result()) return false;
  const bool device_bucket = s_.device_bucket(copying_);
  if (device_bucket && !measure_on_device(copying_)) return false;
  if (device_bucket || measure_piece(copying_)) {
    step_.measured++;
    copying_ = kNone;
    copy_param_ = 0;
    copy_element_ = 0;
  }
  return true;
}

// Measures a device bucket on its device, in the pieces of measure_piece. False until the device is done.
bool Step::measure_on_device(uint32_t bucket) {
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const Dtype comm_dtype = s_.comm_dtype(bucket);
  const uint64_t element = dtype_size(comm_dtype);
  // Calls visit(parameter, its elements' place, their count) in order.
  const auto for_each_piece = [&](auto&& visit) -> Status {
    for (size_t i = 0; i < planned.params.size(); i++) {
      const uint32_t param = planned.params[i];
      const uint64_t count = s_.buckets->place(param).count;
      const bool nowhere = step_.buckets[bucket].absent > 0 && absent_everywhere(param);
      for (uint64_t at = 0; at < count && !nowhere; at += Norms::kPieceElements) {
        const std::byte* const from = s_.device_buckets->memory(bucket) + (planned.offsets[i] + at) * element;
        WEFT_TRY(visit(param, from, std::min(Norms::kPieceElements, count - at)));
      }
    }
    return {};
  };
  Status status;
  Squares* result = s_.device_buckets->squares();
  if (!returning_) {
    const auto launch = [&](uint32_t /*param*/, const std::byte* from, uint64_t count) {
      return s_.devices->squares(bucket, {from, count, static_cast<uint8_t>(comm_dtype),
                                          s_.device_buckets->squares_parts(), result++});
    };
    status = for_each_piece(launch);
    if (status.ok()) status = s_.devices->record_out(bucket);
    returning_ = status.ok();
  }
  bool done = false;
  if (status.ok()) status = s_.devices->query(bucket, DeviceGradients::Way::kOut, &done);
  if (!status.ok()) fail_on_device(s_, step_, bucket, "norms", status);
  if (!status.ok() || done) returning_ = false;
  device_waits_ |= returning_;
  if (!done || !status.ok()) return false;
  for (const uint32_t param : planned.params) s_.norms->clear(param);
  result = s_.device_buckets->squares();
  const auto add = [&](uint32_t param, const std::byte* /*from*/, uint64_t /*count*/) {
    s_.norms->add(param, *result++);
    return Status();
  };
  return for_each_piece(add).ok();
}

// Measures a piece of a bucket. True when the bucket has been measured.
bool Step::measure_piece(uint32_t bucket) {
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const std::byte* const result = planned.sparse ? sparse(bucket).values() : result_of(bucket);
  const DeviceOps& ops = s_.comm->context().host();
  const Dtype has = s_.comm_dtype(bucket);
  for (uint64_t bytes = 0; bytes < kPollBytes;) {
    if (copy_param_ == planned.params.size()) return true;
    const uint32_t param = planned.params[copy_param_];
    const Buckets::Place& place = s_.buckets->place(param);
    if (copy_element_ == 0) s_.norms->clear(param);
    const bool nowhere = step_.buckets[bucket].absent > 0 && absent_everywhere(param);
    const Owned mine = owned(param);
    const uint64_t elements = planned.sparse ? sparse(bucket).result_elements() : mine.count;
    const bool rounded = rounds(has, planned.gradients);
    const uint64_t most = rounded ? kRoundedElements : Norms::kPieceElements;
    const uint64_t count = nowhere ? elements : std::min(most, elements - copy_element_);
    if (!nowhere && count > 0) {
      const uint64_t at = (planned.offsets[copy_param_] + mine.first + copy_element_) * dtype_size(has);
      const std::byte* values = result + at;
      if (rounded) {
        ops.copy({values, rounded_.data(), count, has, planned.gradients, 1});
        values = rounded_.data();
      }
      s_.norms->add(param, ops.squares({values, count, rounded ? planned.gradients : has}));
    }
    bytes += nowhere ? 64 : std::max<uint64_t>(count * place.element_bytes, 64);
    copy_element_ += count;
    if (copy_element_ == elements) {
      copy_param_++;
      copy_element_ = 0;
    }
  }
  return copy_param_ == planned.params.size();
}

// Decides about the results from the records of all ranks: each rank draws the same conclusion. Then the
// results are copied back.
void Step::decide() {
  Norms& norms = *s_.norms;
  const Status judged = decide_finish(*norms.received(), norms.total(), norms.nonfinite(), &norms.decision);
  if (!judged.ok()) {
    norms.receive(nullptr);
    s_.comm->fail(judged.with_step(step_.begun.number));
    return;
  }
  decided_ = true;
  result_ = 0;
}

}  // namespace weft
