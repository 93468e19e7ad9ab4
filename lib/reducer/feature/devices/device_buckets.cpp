#include "reducer/feature/devices/device_buckets.h"

#include <algorithm>

#include "base/round_up.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/state.h"

namespace weft {
namespace {

constexpr uint64_t kDeviceAlignment = 256;  // as cudaMalloc's

// True if the bucket's collective does not need the host. Equal on all ranks unless their devices differ.
bool can_stay(const ReducerState& s, const Slot& slot) {
  const PlannedBucket& planned = s.plan.buckets[slot.bucket];
  // Norms are those of the results in the gradients' dtype.
  const bool measured = s.norms == nullptr || !rounds(s.fused_dtype(slot.bucket), planned.gradients);
  // The gradient must be rounded only once on its way to the communication dtype, as on the host.
  const bool exact = !s.hook->cast_dtype() || !rounds(planned.gradients, planned.dtype);
  return slot.whole() && measured && exact && planned.on_device() && planned.count > 0 &&
         s.comm->collectives().takes(s.devices->device(slot.bucket), slot.args);
}

}  // namespace

Status DeviceBuckets::make(ReducerState* s, const DeviceBuckets* old, std::shared_ptr<DeviceBuckets>* out) {
  out->reset();
  // Works on contributions and shards need them in host memory.
  if (s->devices == nullptr || !s->hook->copies_suffice() || s->touches_contributions ||
      s->has(WEFT_REDUCER_SHARDED))
    return {};
  std::shared_ptr<DeviceBuckets> made(new DeviceBuckets);
  const size_t count = s->plan.buckets.size();
  std::vector<uint64_t> offsets(count);
  std::vector<uint32_t> staying;
  for (const Slot& slot : s->schedule.slots) {
    if (!slot.of_bucket() || !can_stay(*s, slot)) continue;
    const uint32_t b = slot.bucket;
    staying.push_back(b);
    offsets[b] = made->bytes_;
    made->bytes_ += round_up(s->plan.buckets[b].count * dtype_size(s->fused_dtype(b)), kDeviceAlignment);
  }
  if (staying.empty()) return {};
  Collectives& collectives = s->comm->collectives();
  const int device = s->devices->device(staying.front());  // the communicator's, for all of them
  made->owner_ = &collectives;
  if (old != nullptr && old->owner_ == &collectives && old->bytes_ >= made->bytes_) {
    made->memory_ = old->memory_;
    made->bytes_ = old->bytes_;
  } else {
    WEFT_TRY(collectives.allocate_on_device(device, made->bytes_, &made->memory_)
                 .with_prefix(cat("cannot allocate ", made->bytes_, " bytes for the buckets on CUDA device ",
                                  device, ": ")));
  }
  made->buckets_.resize(count);
  made->calls_.resize(count);
  for (const uint32_t b : staying) {
    made->buckets_[b] = made->memory_.get() + offsets[b];
    made->calls_[b] = s->devices->call(b);
    s->schedule.buckets[b].device_bucket = true;
    s->schedule.buckets[b].scratch_bytes = 0;
    s->schedule.buckets[b].cast_to = s->hook->cast_dtype();
  }
  if (s->norms)
    WEFT_TRY(made->make_norms(*s, staying).with_prefix(cat("norms on CUDA device ", device, ": ")));
  made->first_ = staying.front();
  DeviceCall direct = made->calls_[made->first_];
  direct.direct = true;
  WEFT_TRY(s->lane->prepare(direct));
  *out = std::move(made);
  return {};
}

Status DeviceBuckets::make_norms(const ReducerState& s, const std::vector<uint32_t>& staying) {
  constexpr uint64_t kRanges = Norms::kPieceElements / kSquaresRange;
  uint64_t most = 0;  // most pieces of a bucket
  for (const uint32_t b : staying) {
    uint64_t pieces = 0;
    for (const uint32_t param : s.plan.buckets[b].params)
      pieces += s.buckets->place(param).count / Norms::kPieceElements + 1;
    most = std::max(most, pieces);
  }
  const int device = calls_[staying.front()].device;
  // Kernels of different sums run one after the other, so they share parts_.
  const uint64_t parts = kRanges * sizeof(SquaresPart);
  WEFT_TRY(s.comm->collectives().allocate_on_device(device, parts, &parts_));
  std::byte* memory = nullptr;
  WEFT_TRY(s.reach.accelerator->allocate_pinned(device, most * sizeof(Squares), &memory));
  accelerator_ = s.reach.accelerator;
  squares_ = reinterpret_cast<Squares*>(memory);
  measured_bytes_ = parts + most * sizeof(Squares);
  return {};
}

DeviceBuckets::~DeviceBuckets() {
  // Freeing waits for the kernels that write it.
  if (squares_ != nullptr) accelerator_->free_pinned(reinterpret_cast<std::byte*>(squares_));
}

}  // namespace weft
