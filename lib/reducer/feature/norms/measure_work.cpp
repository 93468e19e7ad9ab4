#include "reducer/feature/norms/norms.h"

#include <algorithm>
#include <memory>

#include "comm/context.h"
#include "reducer/bucket/bucket_work.h"
#include "reducer/bucket/results.h"
#include "reducer/feature/devices/bucket_copies.h"

namespace weft {
namespace {

constexpr uint64_t kPollBytes = 1u << 20;  // measured in one poll
constexpr uint64_t kRoundedElements = 1u << 13;

bool absent_here(const ReducerState& s, const StepContext& step, uint32_t bucket, uint32_t param) {
  return step.buckets[bucket].absent > 0 && absent_everywhere(s, step, param);
}

class MeasureWork final : public BucketWork {
 public:
  explicit MeasureWork(const ReducerState& state) : s_(state) {
    bool any = false;
    for (uint32_t b = 0; b < s_.plan.buckets.size(); b++) any |= rounds(s_.comm_dtype(b), gradients(b));
    if (any) rounded_.resize(kRoundedElements * sizeof(uint16_t));
  }

  const char* name() const override { return "measure norms"; }
  void begin(const StepContext& /*step*/, uint32_t /*bucket*/) override {
    param_ = 0;
    element_ = 0;
  }
  Progress piece(StepContext& step, uint32_t bucket) override {
    const PlannedBucket& planned = s_.plan.buckets[bucket];
    for (uint64_t bytes = 0; bytes < kPollBytes && param_ < planned.params.size();) {
      const uint32_t param = planned.params[param_];
      const bool nowhere = absent_here(s_, step, bucket, param);
      const Owned mine = received_part(s_, param);
      const uint64_t elements = sparse(bucket) != nullptr ? sparse(bucket)->result_elements() : mine.count;
      if (element_ == 0) s_.norms->clear(param);
      const uint64_t count = nowhere ? elements : std::min(most(bucket), elements - element_);
      if (!nowhere && count > 0) add(bucket, param, planned.offsets[param_] + mine.first + element_, count);
      bytes += nowhere ? 64 : std::max<uint64_t>(count * s_.buckets->place(param).element_bytes, 64);
      element_ += count;
      if (element_ == elements) {
        param_++;
        element_ = 0;
      }
    }
    return param_ == planned.params.size() ? Progress::kDone : Progress::kMore;
  }
  uint64_t memory_bytes() const override { return rounded_.capacity(); }

 private:
  Dtype gradients(uint32_t bucket) const { return s_.plan.buckets[bucket].gradients; }
  bool rounded(uint32_t bucket) const { return rounds(s_.comm_dtype(bucket), gradients(bucket)); }
  uint64_t most(uint32_t bucket) const { return rounded(bucket) ? kRoundedElements : Norms::kPieceElements; }
  // Returns null for a bucket of dense gradients.
  SparseGradient* sparse(uint32_t bucket) const {
    const PlannedBucket& planned = s_.plan.buckets[bucket];
    return planned.sparse ? s_.sparse->of(planned.params.front()) : nullptr;
  }
  // Adds elements of the bucket's result, rounded as the gradients will be.
  void add(uint32_t bucket, uint32_t param, uint64_t first, uint64_t count) {
    const DeviceOps& ops = s_.comm->context().host();
    const Dtype has = s_.comm_dtype(bucket);
    const std::byte* values = sparse(bucket) != nullptr ? sparse(bucket)->values() : result_of(s_, bucket);
    values += first * dtype_size(has);
    if (!rounded(bucket)) return s_.norms->add(param, ops.squares({values, count, has}));
    ops.copy({values, rounded_.data(), count, has, gradients(bucket), 1});
    s_.norms->add(param, ops.squares({rounded_.data(), count, gradients(bucket)}));
  }

  const ReducerState& s_;
  Bytes rounded_;         // a piece of a result, rounded to the gradients' dtype
  size_t param_ = 0;      // position within the bucket
  uint64_t element_ = 0;  // position within that parameter
};

// Measures a device bucket on its device, in the pieces of MeasureWork.
class DeviceMeasureWork final : public BucketWork {
 public:
  explicit DeviceMeasureWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "measure norms on the device"; }
  void begin(const StepContext& /*step*/, uint32_t /*bucket*/) override { measuring_ = false; }
  Progress piece(StepContext& step, uint32_t bucket) override {
    Status status;
    if (!measuring_) {
      status = launch(step, bucket);
      measuring_ = status.ok();
    }
    bool done = false;
    if (status.ok()) status = s_.devices->query(bucket, DeviceGradients::Way::kOut, &done);
    if (!status.ok()) fail_on_device(s_, step, bucket, "norms", status);
    if (!status.ok() || done) measuring_ = false;
    if (!done || !status.ok()) return Progress::kWaiting;
    collect(step, bucket);
    return Progress::kDone;
  }

 private:
  // Calls visit(parameter, its elements' place, their count) in order.
  template <class Visit>
  Status for_each_piece(const StepContext& step, uint32_t bucket, Visit&& visit) {
    const PlannedBucket& planned = s_.plan.buckets[bucket];
    const uint64_t element = dtype_size(s_.comm_dtype(bucket));
    for (size_t i = 0; i < planned.params.size(); i++) {
      const uint32_t param = planned.params[i];
      const uint64_t count = s_.buckets->place(param).count;
      const bool nowhere = absent_here(s_, step, bucket, param);
      for (uint64_t at = 0; at < count && !nowhere; at += Norms::kPieceElements) {
        const std::byte* const from = s_.device_buckets->memory(bucket) + (planned.offsets[i] + at) * element;
        WEFT_TRY(visit(param, from, std::min(Norms::kPieceElements, count - at)));
      }
    }
    return {};
  }
  Status launch(const StepContext& step, uint32_t bucket) {
    Squares* result = s_.device_buckets->squares();
    const auto dtype = static_cast<uint8_t>(s_.comm_dtype(bucket));
    WEFT_TRY(for_each_piece(step, bucket, [&](uint32_t /*param*/, const std::byte* from, uint64_t count) {
      return s_.devices->squares(bucket, {from, count, dtype, s_.device_buckets->squares_parts(), result++});
    }));
    return s_.devices->record_out(bucket);
  }
  void collect(const StepContext& step, uint32_t bucket) {
    for (const uint32_t param : s_.plan.buckets[bucket].params) s_.norms->clear(param);
    const Squares* result = s_.device_buckets->squares();
    (void)for_each_piece(step, bucket, [&](uint32_t param, const std::byte* /*from*/, uint64_t /*count*/) {
      s_.norms->add(param, *result++);
      return Status();
    }).ok();
  }

  const ReducerState& s_;
  bool measuring_ = false;  // on the device
};

// Decides from the requests of all ranks: each rank draws the same conclusion.
class NormsGate final : public ResultGate {
 public:
  explicit NormsGate(const ReducerState& state) : s_(state) {}

  Progress decide(StepContext& step) override {
    Norms& norms = *s_.norms;
    if (norms.received() == nullptr) return Progress::kWaiting;
    const Status judged = decide_finish(*norms.received(), norms.total(), norms.nonfinite(), &norms.decision);
    if (!judged.ok()) {
      norms.receive(nullptr);
      s_.comm->fail(judged.with_step(step.begun.number));
      return Progress::kMore;
    }
    step.factor = norms.decision.factor;
    step.discarded = norms.decision.skipped;
    return Progress::kDone;
  }
  const char* awaited() const override {
    return "norms of the results are being computed, or this rank has not called finish";
  }

 private:
  const ReducerState& s_;
};

}  // namespace

void add_measure_work(ReducerState* s) {
  if (!s->norms) return;
  s->works.gate = std::make_unique<NormsGate>(*s);
  BucketWork* const host = s->works.make<MeasureWork>(*s);
  BucketWork* const device = s->works.make<DeviceMeasureWork>(*s);
  for (uint32_t b = 0; b < s->works.review.size(); b++)
    s->works.review[b].push_back(s->device_bucket(b) ? device : host);
}

}  // namespace weft
