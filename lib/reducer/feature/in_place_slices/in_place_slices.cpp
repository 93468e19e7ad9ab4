#include "reducer/feature/in_place_slices/in_place_slices.h"

#include <algorithm>

#include "core/context.h"
#include "reducer/bucket/dense_copy.h"
#include "reducer/state.h"

namespace weft {
namespace {

constexpr uint64_t kLeastBytes = 16 << 10;  // below this size a copy costs less than one more range to fold

// True if only the all-reduce reads the bucket before its result is there.
bool only_reduced(const ReducerState& s, const Slot& slot) {
  const PlannedBucket& planned = s.plan.buckets[slot.bucket];
  return slot.whole() && slot.average && !planned.sparse && !planned.on_device() &&
         planned.gradients == planned.dtype && s.buckets->held(slot.bucket) == planned.dtype;
}

void copy_around_slice(ReducerState& s, const Arrival& arrival) {
  if (s.holds_sum(arrival.param) || arrival.given.layout != nullptr) {
    flatten(s, arrival, arrival.place, 1);
  } else {
    s.in_place_slices->copy_rest(s.comm->context().host(), arrival.place, arrival.param,
                                 static_cast<const std::byte*>(arrival.given.data), arrival.step.stamp(),
                                 s.buckets->streaming());
  }
  note_destination(s, arrival);
}

}  // namespace

std::unique_ptr<InPlaceSlices> InPlaceSlices::make(const ReducerState& s) {
  // Weights scale the bucket's contents, and retained contributions are a copy of them.
  if (!s.copy || !s.hook->plain() || s.retain || s.sharded || s.uneven) return nullptr;
  std::unique_ptr<InPlaceSlices> made(new InPlaceSlices);
  made->parts_.resize(s.manifest.params.size());
  made->params_.resize(s.plan.buckets.size());
  bool any = false;
  for (const Slot& slot : s.schedule.slots) {
    if (!slot.of_bucket() || !only_reduced(s, slot)) continue;
    const Collectives::InPlaceSlice slice = s.comm->collectives().in_place_slice(slot.args);
    const PlannedBucket& planned = s.plan.buckets[slot.bucket];
    for (size_t i = 0; i < planned.params.size(); i++) {
      const Buckets::Place& place = s.buckets->place(planned.params[i]);
      const uint64_t begin = std::max(slice.first, planned.offsets[i]);
      const uint64_t end = std::min(slice.first + slice.count, planned.offsets[i] + place.count);
      if (!place.layout->dense() || begin >= end || (end - begin) * place.element_bytes < kLeastBytes)
        continue;
      made->parts_[planned.params[i]] = {begin - planned.offsets[i], end - begin};
      made->params_[slot.bucket].push_back(planned.params[i]);
      any = true;
    }
  }
  return any ? std::move(made) : nullptr;
}

void InPlaceSlices::copy_rest(const DeviceOps& ops, const Buckets::Place& place, uint64_t param,
                              const std::byte* gradient, uint32_t stamp, bool streaming) {
  Part& part = parts_[param];
  const auto copy = [&](uint64_t first, uint64_t end) {
    if (first == end) return;
    const uint64_t at = first * place.element_bytes;
    ops.copy({gradient + at, place.memory + at, end - first, place.dtype, place.dtype, 1.0, streaming});
  };
  copy(0, part.first);
  copy(part.first + part.count, place.count);
  part.stamp = stamp;
}

void InPlaceSlices::locate(const ReducerState& s, uint32_t bucket, uint32_t stamp,
                           InputSlices* slices) const {
  slices->parts.clear();
  for (const uint32_t param : params_[bucket]) {
    const Part& part = parts_[param];
    if (part.stamp != stamp) continue;
    const uint64_t bytes = s.buckets->place(param).element_bytes;
    slices->parts.push_back(
        {s.plan.offset_of[param] + part.first, part.count, s.gradients[param] + part.first * bytes});
  }
}

uint64_t InPlaceSlices::memory_bytes() const {
  uint64_t bytes = sizeof *this + parts_.capacity() * sizeof(Part);
  for (const std::vector<uint32_t>& params : params_)
    bytes += sizeof(std::vector<uint32_t>) + params.capacity() * sizeof(uint32_t);
  return bytes;
}

namespace {

void add_slice_copies(ReducerState* s) {
  if (!s->in_place_slices) return;
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    if (!s->in_place_slices->has(i)) continue;
    s->copy_ins.set(StepKind::kSynchronised, i, copy_around_slice);
    s->copy_ins.set(StepKind::kFused, i, copy_around_slice);
  }
}

}  // namespace

const StepFeature kInPlaceSlices{.copies = add_slice_copies};

}  // namespace weft
