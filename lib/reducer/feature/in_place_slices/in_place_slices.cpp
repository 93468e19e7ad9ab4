#include "reducer/feature/in_place_slices/in_place_slices.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/context.h"
#include "reducer/bucket/dense_copy.h"
#include "reducer/bucket/input_parts.h"
#include "reducer/state.h"
#include "reducer/step/stamps.h"

namespace weft {
namespace {

constexpr uint64_t kLeastBytes = 16 << 10;  // below this size a copy costs less than one more range to fold

// True if only the all-reduce reads the bucket before its result is there.
bool only_reduced(const ReducerState& s, const Slot& slot) {
  const PlannedBucket& planned = s.plan.buckets[slot.bucket];
  return slot.whole() && slot.average && !planned.sparse && !planned.on_device() &&
         planned.gradients == planned.dtype && s.buckets->held(slot.bucket) == planned.dtype;
}

class InPlaceSlices final : public InputParts {
 public:
  explicit InPlaceSlices(const ReducerState& state)
      : s_(state), parts_(state.manifest.params.size()), params_(state.plan.buckets.size()) {}

  // Finds the parts of a bucket's gradients that the collective of `slot` reads where they are.
  void add(const Slot& slot);
  bool any() const {
    return std::any_of(params_.begin(), params_.end(), [](const auto& params) { return !params.empty(); });
  }
  // Any thread: the one that claimed the parameter, before it is counted.
  bool has(uint64_t param) const { return parts_[param].count > 0; }
  // Copies a gradient into its place, except for the part that stays in place. Threads: as has.
  void copy_rest(const Buckets::Place& place, uint64_t param, const std::byte* gradient, uint32_t stamp);

  void locate(uint32_t bucket, uint32_t stamp, InputSlices* slices) const override;
  size_t most(uint32_t bucket) const override { return params_[bucket].size(); }
  void forget(uint32_t stamp) override {
    for (Part& part : parts_) part.stamp = kept_mark(part.stamp, stamp);
  }
  uint64_t memory_bytes() const override;

 private:
  // Elements of a gradient that are not copied.
  struct Part {
    uint64_t first = 0;
    uint64_t count = 0;
    uint32_t stamp = 0;  // of the last step in which the part stayed in its gradient
  };

  const ReducerState& s_;
  std::vector<Part> parts_;                    // by parameter
  std::vector<std::vector<uint32_t>> params_;  // by bucket: the parameters with a part, in the bucket's order
};

class CopyAroundSlice final : public CopyIn {
 public:
  explicit CopyAroundSlice(InPlaceSlices* slices) : slices_(*slices) {}

  const char* name() const override { return "copy around in-place slice"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    if (s.holds_sum(arrival.param) || arrival.given.layout != nullptr) {
      flatten(s, arrival, arrival.place, 1);
    } else {
      slices_.copy_rest(arrival.place, arrival.param, static_cast<const std::byte*>(arrival.given.data),
                        arrival.step.stamp());
    }
    note_destination(s, arrival);
  }

 private:
  InPlaceSlices& slices_;  // of the state
};

void InPlaceSlices::add(const Slot& slot) {
  const Collectives::InPlaceSlice slice = s_.comm->collectives().in_place_slice(slot.args);
  const PlannedBucket& planned = s_.plan.buckets[slot.bucket];
  for (size_t i = 0; i < planned.params.size(); i++) {
    const Buckets::Place& place = s_.buckets->place(planned.params[i]);
    const uint64_t begin = std::max(slice.first, planned.offsets[i]);
    const uint64_t end = std::min(slice.first + slice.count, planned.offsets[i] + place.count);
    if (!place.layout->dense() || begin >= end || (end - begin) * place.element_bytes < kLeastBytes) continue;
    parts_[planned.params[i]] = {begin - planned.offsets[i], end - begin};
    params_[slot.bucket].push_back(planned.params[i]);
  }
}

void InPlaceSlices::copy_rest(const Buckets::Place& place, uint64_t param, const std::byte* gradient,
                              uint32_t stamp) {
  const DeviceOps& ops = s_.comm->context().host();
  const bool streaming = s_.buckets->streaming();
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

void InPlaceSlices::locate(uint32_t bucket, uint32_t stamp, InputSlices* slices) const {
  slices->parts.clear();
  for (const uint32_t param : params_[bucket]) {
    const Part& part = parts_[param];
    if (part.stamp != stamp) continue;
    const uint64_t bytes = s_.buckets->place(param).element_bytes;
    slices->parts.push_back(
        {s_.plan.offset_of[param] + part.first, part.count, s_.gradients[param] + part.first * bytes});
  }
}

uint64_t InPlaceSlices::memory_bytes() const {
  uint64_t bytes = sizeof *this + parts_.capacity() * sizeof(Part);
  for (const std::vector<uint32_t>& params : params_)
    bytes += sizeof(std::vector<uint32_t>) + params.capacity() * sizeof(uint32_t);
  return bytes;
}

void add_slice_copies(ReducerState* s) {
  // Weights scale the bucket's contents.
  if (!s->copy || !s->hook->plain() || s->touches_contributions || s->has(WEFT_REDUCER_SHARDED) ||
      s->has(WEFT_REDUCER_UNEVEN))
    return;
  auto made = std::make_unique<InPlaceSlices>(*s);
  for (const Slot& slot : s->schedule.slots) {
    if (slot.of_bucket() && only_reduced(*s, slot)) made->add(slot);
  }
  if (!made->any()) return;
  CopyIn* const around = s->copy_ins.make<CopyAroundSlice>(made.get());
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    if (!made->has(i)) continue;
    s->copy_ins.change(i, [&](GradientWay& way) {
      way.set(StepKind::kSynchronised, around);
      way.set(StepKind::kFresh, around);
    });
  }
  s->input_parts = std::move(made);
}

void forget_slices(const ReducerState& s, uint32_t stamp) {
  if (s.input_parts) s.input_parts->forget(stamp);
}

}  // namespace

const StepFeature kInPlaceSlices{.copies = add_slice_copies, .forget = forget_slices};

}  // namespace weft
