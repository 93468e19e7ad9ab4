#include "reducer/bucket/dense.h"

#include <algorithm>
#include <cstring>

#include "comm/context.h"
#include "reducer/bucket/bucket_work.h"
#include "reducer/bucket/results.h"

namespace weft {
namespace {

// Converts views back to the storage dtype, in which the program reads them.
class RestoreWork final : public BucketWork {
 public:
  explicit RestoreWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "convert back"; }
  void begin(const StepContext& /*step*/, uint32_t /*bucket*/) override { restored_ = 0; }
  Progress piece(StepContext& step, uint32_t bucket) override {
    const PlannedBucket& planned = s_.plan.buckets[bucket];
    if (step.sealed || step.buckets[bucket].skipped || restored_ == planned.count) return Progress::kDone;
    const Dtype held = s_.buckets->held(bucket);
    const uint64_t n = std::min(kPieceBytes / dtype_size(held), planned.count - restored_);
    const bool wider = dtype_size(held) > dtype_size(planned.dtype);
    convert_in_place(s_.comm->context().host(), s_.buckets->buffers()[bucket], planned.dtype, held,
                     wider ? planned.count - restored_ - n : restored_, n, 1);
    restored_ += n;
    return restored_ == planned.count ? Progress::kDone : Progress::kMore;
  }

 private:
  const ReducerState& s_;
  uint64_t restored_ = 0;  // elements
};

class ReturnWork final : public BucketWork {
 public:
  explicit ReturnWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "return"; }
  void begin(const StepContext& /*step*/, uint32_t /*bucket*/) override {
    param_ = 0;
    element_ = 0;
  }
  Progress piece(StepContext& step, uint32_t bucket) override;

 private:
  uint64_t copy_out(const StepContext& step, uint32_t param, const std::byte* from, Dtype has, Owned mine,
                    uint64_t left, bool nowhere);
  uint64_t write_view(const StepContext& step, uint32_t param, const std::byte* from, Dtype has, Owned mine,
                      uint64_t left, bool nowhere, bool there);

  const ReducerState& s_;
  size_t param_ = 0;      // position within the bucket
  uint64_t element_ = 0;  // position within that parameter
};

// Copies to the gradient in the program's memory. Returns the number of elements.
uint64_t ReturnWork::copy_out(const StepContext& step, uint32_t param, const std::byte* from, Dtype has,
                              Owned mine, uint64_t left, bool nowhere) {
  const Layout& layout = s_.layout(param);
  const uint64_t first = mine.first + element_;
  const uint64_t count = std::min(layout.piece(first, left), mine.count - element_);
  if (!nowhere && count > 0 && s_.gradients[param] != nullptr) {
    layout.unflatten(s_.comm->context().host(), from, has, s_.gradients[param], first, count, step.factor,
                     s_.buckets->streaming());
  }
  return count;
}

// Writes the result into the view, unless it is there. Returns the number of elements.
uint64_t ReturnWork::write_view(const StepContext& step, uint32_t param, const std::byte* from, Dtype has,
                                Owned mine, uint64_t left, bool nowhere, bool there) {
  const Buckets::Place& place = s_.buckets->place(param);
  const uint64_t first = mine.first + element_;
  const uint64_t count = std::min(left, mine.count - element_);
  const uint64_t at = first * place.element_bytes;
  const uint64_t size = count * place.element_bytes;
  if (size == 0) return count;
  // The hook may have changed the zeros of a parameter that is absent everywhere.
  if (nowhere) {
    std::memset(place.memory + at, 0, size);
  } else if (!there || step.factor != 1) {
    // A result in place has been converted back already.
    const std::byte* const src = there ? place.memory + at : from + first * dtype_size(has);
    s_.comm->context().host().copy(
        {src, place.memory + at, count, there ? place.dtype : has, place.dtype, step.factor});
  }
  return count;
}

Progress ReturnWork::piece(StepContext& step, uint32_t bucket) {
  const StepContext::Bucket& here = step.buckets[bucket];
  if (step.sealed || here.skipped || (s_.copy && step.discarded)) return Progress::kDone;
  const bool there = result_in_place(s_, bucket);
  if (there && step.factor == 1 && here.absent == 0) return Progress::kDone;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const Dtype has = s_.comm_dtype(bucket);
  const std::byte* const result = result_of(s_, bucket);
  for (uint64_t bytes = 0; bytes < kPieceBytes && param_ < planned.params.size();) {
    const uint32_t param = planned.params[param_];
    const uint32_t element_bytes = s_.buckets->place(param).element_bytes;
    const uint64_t left = std::max<uint64_t>((kPieceBytes - bytes) / element_bytes, 1);
    const std::byte* const from = result + planned.offsets[param_] * dtype_size(has);
    const bool nowhere = here.absent > 0 && absent_everywhere(s_, step, param);
    const Owned mine = received_part(s_, param);
    const uint64_t count = s_.copy ? copy_out(step, param, from, has, mine, left, nowhere)
                                   : write_view(step, param, from, has, mine, left, nowhere, there);
    bytes += std::max<uint64_t>(count * element_bytes, 64);
    element_ += count;
    if (element_ == mine.count) {
      param_++;
      element_ = 0;
    }
  }
  return param_ == planned.params.size() ? Progress::kDone : Progress::kMore;
}

}  // namespace

void add_return_work(ReducerState* s) {
  BucketWork* const restore = s->works.make<RestoreWork>(*s);
  BucketWork* const give_back = s->works.make<ReturnWork>(*s);
  for (uint32_t b = 0; b < s->works.give_back.size(); b++) {
    if (s->plan.buckets[b].sparse || (s->devices && s->devices->has(b))) continue;
    if (result_in_place(*s, b) && s->buckets->held(b) != s->plan.buckets[b].dtype)
      s->works.give_back[b].push_back(restore);
    s->works.give_back[b].push_back(give_back);
  }
}

const StepFeature kDense{.copies = add_dense_copies, .works = add_return_work};

}  // namespace weft
