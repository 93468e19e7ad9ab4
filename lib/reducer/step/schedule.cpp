#include "reducer/step/schedule.h"

#include <algorithm>

#include "base/splitmix.h"
#include "base/text.h"
#include "reducer/features.h"
#include "reducer/step/hook_plan.h"

namespace weft {
namespace {

Status plan_bucket(Hook& hook, const weft_bucket& bucket, HookedBucket* hooked, std::vector<Slot>* slots) {
  weft_hook_plan plan{};
  plan.struct_size = sizeof plan;
  WEFT_TRY(hook.plan(bucket, &plan));
  const Status read = read_hook_plan(bucket, plan, hook.comm() != nullptr, slots);
  WEFT_TRY(read.with_prefix(cat("hook '", hook.name(), "': ")));
  *hooked = {plan.collective_count, plan.result_space, plan.result_offset_bytes, plan.scratch_bytes};
  return {};
}

// Returns the slot that exchanges the ranks' counts.
Slot counts_before(const Slot& dynamic) {
  Slot slot;
  slot.kind = Slot::Kind::kCounts;
  slot.bucket = dynamic.bucket;
  slot.index = dynamic.index;
  slot.own = dynamic.own;
  slot.args.coll = Coll::kAllGather;
  slot.args.dtype = Dtype::kU64;
  slot.args.count = 1;
  return slot;
}

}  // namespace

HookViews::HookViews(const Manifest& manifest, const Plan& plan, int rank, int size,
                     const HookEntries* entries) {
  size_t strides = 0;
  for (const Param& p : manifest.params) strides += p.dense ? 0 : p.shape.size();
  strides_.reserve(strides);  // reserved, because the views point to its elements
  params_.reserve(manifest.params.size());
  buckets_.reserve(plan.buckets.size());
  size_t shown = plan.buckets.size();  // number of buckets up to the last one that hooks see
  while (entries == nullptr && shown > 0 && plan.buckets[shown - 1].sparse) shown--;
  for (const PlannedBucket& planned : plan.buckets) {
    weft_bucket bucket{};
    bucket.struct_size = sizeof bucket;
    bucket.index = static_cast<uint32_t>(buckets_.size());
    bucket.bucket_count = static_cast<uint32_t>(plan.buckets.size());
    bucket.is_last = bucket.index + 1 == shown;
    bucket.dtype = static_cast<int32_t>(planned.dtype);
    bucket.count = planned.count;
    bucket.divisor = size;
    bucket.rank = rank;
    bucket.size = size;
    bucket.param_count = planned.params.size();
    bucket.param_size = sizeof(weft_bucket_param);
    bucket.params = params_.data() + params_.size();
    if (planned.sparse && entries != nullptr) bucket.entries = entries->shown(planned.params.front());
    buckets_.push_back(bucket);
    for (size_t i = 0; i < planned.params.size(); i++) {
      const Param& p = manifest.params[planned.params[i]];
      const int64_t* strides_of_place = p.strides.data();
      if (!p.dense) {
        const std::vector<int64_t> packed = row_major(p.shape);
        strides_of_place = strides_.data() + strides_.size();
        strides_.insert(strides_.end(), packed.begin(), packed.end());
      }
      params_.push_back({sizeof(weft_bucket_param), planned.params[i], p.name.c_str(), bucket.dtype,
                         static_cast<int32_t>(p.shape.size()), p.shape.data(), strides_of_place,
                         planned.offsets[i], p.count, manifest.parameter(planned.params[i])});
    }
  }
}

void HookViews::share(uint32_t b, std::vector<uint64_t> begins) {
  shares_.resize(buckets_.size());
  shares_[b] = std::move(begins);
  buckets_[b].shares = shares_[b].data();
}

uint64_t HookViews::memory_bytes() const {
  uint64_t bytes = buckets_.capacity() * sizeof(weft_bucket) +
                   params_.capacity() * sizeof(weft_bucket_param) + strides_.capacity() * sizeof(int64_t);
  for (const std::vector<uint64_t>& shares : shares_)
    bytes += sizeof(std::vector<uint64_t>) + shares.capacity() * sizeof(uint64_t);
  return bytes;
}

uint64_t least_bytes(const CollectiveArgs& args, int size) {
  const uint64_t bytes = args.count * dtype_size(args.dtype);
  const auto ranks = static_cast<uint64_t>(size);
  switch (args.coll) {
    case Coll::kAllReduce:
      return 2 * bytes * (ranks - 1) / ranks;
    case Coll::kReduce:
    case Coll::kBroadcast:
      return bytes * (ranks - 1) / ranks;
    default:
      return bytes * (ranks - 1);
  }
}

Status make_schedule(Hook& hook, const Manifest& manifest, const Plan& plan, HookViews* views,
                     Schedule* schedule) {
  std::vector<Slot> by_bucket;
  std::vector<size_t> first;  // of each bucket in by_bucket
  uint32_t most = 0;
  for (uint32_t b = 0; b < plan.buckets.size(); b++) {
    first.push_back(by_bucket.size());
    const PlanBucket own = planner_of(plan.buckets[b]);
    const Status planned = (own != nullptr ? own : plan_bucket)(
        hook, views->bucket(b), &schedule->buckets.emplace_back(), &by_bucket);
    WEFT_TRY(planned.with_prefix(planned.ok() ? "" : cat(plan.text(manifest, b), ": ")));
    most = std::max(most, schedule->buckets[b].collectives);
  }
  const auto dynamic =
      std::count_if(by_bucket.begin(), by_bucket.end(), [](const Slot& slot) { return slot.dynamic; });
  schedule->slots.reserve(by_bucket.size() + static_cast<size_t>(dynamic));
  for (size_t wave = 0; wave + 1 < plan.buckets.size() + most; wave++) {
    for (size_t k = 0; k < most && k <= wave; k++) {
      const size_t b = wave - k;
      if (b >= plan.buckets.size() || k >= schedule->buckets[b].collectives) continue;
      const Slot& slot = by_bucket[first[b] + k];
      if (slot.dynamic) schedule->slots.push_back(counts_before(slot));
      schedule->slots.push_back(slot);
    }
  }
  return {};
}

Slot Slot::of_step(Coll coll, Dtype dtype, uint64_t count) {
  Slot slot;
  slot.kind = Kind::kStep;
  slot.args.coll = coll;
  slot.args.dtype = dtype;
  slot.args.count = count;
  return slot;
}

void Schedule::put_first(const std::vector<Slot>& added) {
  slots.insert(slots.begin(), added.begin(), added.end());
  leading += added.size();
}

void Schedule::put_before_last_bucket(const Slot& slot) {
  const auto last = std::find_if(slots.begin(), slots.end(), [&](const Slot& s) {
    return s.of_bucket() && s.bucket + 1 == buckets.size();
  });
  slots.insert(last, slot);
}

void Schedule::write(ByteWriter* writer) const {
  // Writes slots and not buckets, because ranks agree on their order too.
  const auto is_declared = [&](const Slot& s) {
    const bool of_entries = s.kind == Slot::Kind::kStaged && s.index == 0 && buckets[s.bucket].asks;
    return s.kind == Slot::Kind::kBucket || of_entries;
  };
  writer->put(static_cast<uint32_t>(std::count_if(slots.begin(), slots.end(), is_declared)));
  for (const Slot& slot : slots) {
    if (!is_declared(slot)) continue;
    if (slot.kind == Slot::Kind::kStaged) {
      writer->put(slot.bucket)
          .put(slot.index)
          .put(!buckets[slot.bucket].sums)
          .put(false)
          .put(true)
          .put(false);
      writer->put(Coll::kAllReduce).put(slot.args.dtype).put(ReduceOp::kSum).put(int32_t{0}).put(uint64_t{0});
      continue;
    }
    writer->put(slot.bucket).put(slot.index).put(slot.average).put(slot.optional).put(slot.dynamic);
    writer->put(buckets[slot.bucket].device_bucket);
    writer->put(slot.args.coll).put(slot.args.dtype).put(slot.args.op);
    writer->put(static_cast<int32_t>(slot.args.peer)).put(slot.args.count);
  }
}

void Schedule::bind(const std::vector<std::byte*>& buffers, const std::vector<std::byte*>& scratch) {
  const auto at = [&](const Slot& slot, int side) {
    const auto& base = slot.space[static_cast<size_t>(side)] == WEFT_SPACE_BUCKET ? buffers : scratch;
    return base[slot.bucket] + slot.offset[static_cast<size_t>(side)];
  };
  for (Slot& slot : slots) {
    if (slot.kind != Slot::Kind::kBucket) continue;
    slot.args.src = at(slot, 0);
    slot.args.dst = at(slot, 1);
  }
}

void Schedule::order() {
  for (Slot& slot : slots) slot.args.ordered = is_reduction(slot.args.coll);
}

void Schedule::tag(uint64_t plan_hash) {
  for (size_t i = 0; i < slots.size(); i++) {
    slots[i].args.tag = slot_tag(scramble(plan_hash + i * kSplitMixStep));
  }
}

std::string schedule_difference(const Manifest& manifest, const Plan& plan, int rank, ByteView mine,
                                int other_rank, ByteView theirs) {
  struct Read {
    uint32_t bucket, index;
    bool average, optional, dynamic, device_bucket;
    Descriptor what;
    std::string text() const {
      return cat(what.text(), average ? " (averaged)" : "", optional ? " (optional)" : "",
                 dynamic ? " (dynamic)" : "");
    }
  };
  const auto read = [](ByteReader& from) {
    Read out{};
    out.bucket = from.get<uint32_t>();
    out.index = from.get<uint32_t>();
    out.average = from.get<uint8_t>() != 0;
    out.optional = from.get<uint8_t>() != 0;
    out.dynamic = from.get<uint8_t>() != 0;
    out.device_bucket = from.get<uint8_t>() != 0;
    out.what.coll = from.get<uint8_t>();
    out.what.dtype = from.get<uint8_t>();
    out.what.op = from.get<uint8_t>();
    out.what.root = from.get<int32_t>();
    out.what.count = from.get<uint64_t>();
    return out;
  };
  const auto side = [](int r, bool has, const Read& slot) {
    if (!has) return cat("rank ", r, " declares no more collectives");
    return cat("rank ", r, " declares ", slot.text(), " as collective ", slot.index, " of bucket ",
               slot.bucket);
  };
  ByteReader a(mine), b(theirs);
  const auto count_a = a.get<uint32_t>(), count_b = b.get<uint32_t>();
  for (uint32_t i = 0; i < std::max(count_a, count_b) && a.ok() && b.ok(); i++) {
    const Read x = i < count_a ? read(a) : Read{};
    const Read y = i < count_b ? read(b) : Read{};
    const bool alike = i < count_a && i < count_b && x.bucket == y.bucket && x.index == y.index &&
                       x.average == y.average && x.optional == y.optional && x.dynamic == y.dynamic &&
                       x.what == y.what;
    if (alike && x.device_bucket == y.device_bucket) continue;
    // The order is by bucket and index. If these differ, one rank has a collective that the other lacks.
    const uint32_t bucket = i < count_a ? x.bucket : y.bucket;
    const std::string where =
        bucket < plan.buckets.size() ? plan.text(manifest, bucket) : cat("bucket ", bucket);
    if (alike) {
      return cat(where, " is sent from device to device on rank ", x.device_bucket ? rank : other_rank,
                 " and through host memory on rank ", x.device_bucket ? other_rank : rank,
                 ", whose communicator uses another CUDA device than these gradients: call cudaSetDevice "
                 "before the communicator is created");
    }
    return cat("the hook's collectives differ at ", where, ": ", side(rank, i < count_a, x), ", ",
               side(other_rank, i < count_b, y));
  }
  if (a.done() && b.done()) return "";
  return cat("the list of the hook's collectives that rank ", a.done() ? other_rank : rank,
             " sent is malformed");
}

}  // namespace weft
