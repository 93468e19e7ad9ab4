// The state of a reducer, shared by its two halves: the calls (the program's threads) and Step (the engine).
// create_state makes it, and each rebind and re-plan makes a new one. After that only the members whose
// comments say so change.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/text.h"
#include "comm/comm.h"
#include "comm/lane.h"
#include "hook/hook.h"
#include "reducer/bucket/bucket_work.h"
#include "reducer/bucket/buckets.h"
#include "reducer/bucket/copy_factor.h"
#include "reducer/bucket/copy_in.h"
#include "reducer/bucket/given_layouts.h"
#include "reducer/bucket/input_parts.h"
#include "reducer/feature/devices/device_buckets.h"
#include "reducer/feature/devices/device_gradients.h"
#include "reducer/feature/graph/captures.h"
#include "reducer/feature/norms/step_norms.h"
#include "reducer/feature/pre_step/pre_step_values.h"
#include "reducer/feature/sharded/ownership.h"
#include "reducer/feature/sparse/sparse_gradient.h"
#include "reducer/feature/uses/uses.h"
#include "reducer/manifest/manifest.h"
#include "reducer/plan/plan.h"
#include "reducer/plan/ready_order.h"
#include "reducer/recover/step_failures.h"
#include "reducer/step/bucket_stages.h"
#include "reducer/step/presence.h"
#include "reducer/step/readiness.h"
#include "reducer/step/schedule.h"
#include "reducer/step/step_exchange.h"
#include "reducer/step/step_handshake.h"

namespace weft {

class GatherStaging;

// The choices of the program. Equal on all ranks, except the callback and the modes that copy or view.
struct ReducerSettings {
  // As passed to weft_reducer_create, with defaults filled in and without its pointers (kept_options).
  weft_reducer_options options{};
  bool copy = true;  // WEFT_GRADIENT_COPY
  Buckets::Hold hold = Buckets::Hold::kCommunicated;
  HandshakeRules rules;
  Bytes wanted;  // what the ranks agreed on when the reducer was created

  bool has(uint64_t flag) const { return (options.flags & flag) != 0; }  // WEFT_REDUCER_*
};

// The objects that outlive a plan and a communicator.
struct ReducerDurable {
  std::shared_ptr<Hook> hook;
  std::shared_ptr<Lane> hook_lane;  // the lane of the hook's own communicator; null if the hook has none
  Manifest manifest;
  std::vector<uint64_t> limits;  // bucket limits, for plans that are made from limits
  std::shared_ptr<ReadyOrder> order;
  std::shared_ptr<Presence> presence;
  // Time at which each bucket's last gradient was ready. It is written after that gradient has been counted.
  // By then the reducer may already be bound to another communicator.
  std::shared_ptr<std::vector<std::atomic<uint64_t>>> ready_ns;
  // Destinations of the results in copy mode and for gradients on devices; null: the result is not copied.
  // ready(i) or absent(i) writes element i before gradient i is counted. Step reads it once i's bucket is
  // full.
  std::vector<std::byte*> gradients;
  std::shared_ptr<GivenLayouts> given;            // layouts of `gradients`; null except in copy mode
  std::shared_ptr<Norms> norms;                   // null without WEFT_REDUCER_NORMS
  std::shared_ptr<PreStep> pre_step;              // null if steps have no pre-step
  std::shared_ptr<Uses> uses;                     // null if each parameter is used once
  std::shared_ptr<SparseGradients> sparse;        // null if no gradient is sparse
  DeviceReach reach;                              // for gradients on devices
  std::shared_ptr<DeviceViews> views_on_devices;  // null except in view mode with devices
  // Null if no bucket is communicated from device memory. Another plan takes over the memory.
  std::shared_ptr<DeviceBuckets> device_buckets;
};

// The rest belongs to one plan and one communicator.
struct ReducerState : ReducerSettings, ReducerDurable {
  std::shared_ptr<Comm> comm;
  std::shared_ptr<Lane> lane;  // the reducer's own: the program may call collectives between begin and finish
  std::shared_ptr<StepFailures> failures;  // notes received on `lane`; made with it
  bool worker = false;                     // the hook's stages run on the context's worker
  uint64_t hook_bytes = 0;                 // memory of the hook's state
  Plan plan;
  std::unique_ptr<Ownership> ownership;                  // null unless sharded
  std::unique_ptr<HookViews> views;                      // Step writes `step` and `divisor`
  std::vector<std::unique_ptr<StepExchange>> exchanges;  // of the slots in `schedule`
  Schedule schedule;
  CopyIns copy_ins;
  std::unique_ptr<CopyFactor> copy_factor;  // null if no copy into a bucket multiplies
  std::unique_ptr<InputParts> input_parts;  // null if every gradient is copied into its bucket as a whole
  // A feature reads or changes contributions before they are communicated (reducer/features.h).
  bool touches_contributions = false;
  BucketWorks works;
  std::vector<std::shared_ptr<BucketStages>> stages;  // by bucket
  double fresh_divisor = 1;                  // of a fresh step (StepStart::fresh); set before the step opens
  std::atomic<bool> beside_devices{false};   // a gradient declared as host memory might be on a device
  std::shared_ptr<DeviceGradients> devices;  // null if no gradient is on a device
  std::unique_ptr<Captures> captures;        // null without WEFT_REDUCER_GRAPH
  std::shared_ptr<Buckets> buckets;          // those of another state, on a rebind with the same plan
  std::shared_ptr<GatherStaging> staging;    // null unless sharded with values of all parameters
  std::unique_ptr<HookScratch> scratch;
  std::unique_ptr<Readiness> readiness;  // used by any thread

  // Returns the layout of the parameter's gradient in the program's memory. The gradient must have arrived.
  const Layout& layout(uint32_t param) const {
    const Layout* const other = given ? given->of(param) : nullptr;
    return other != nullptr ? *other : *buckets->place(param).layout;
  }
  // Returns the communication dtype of a bucket whose copies do the casts of a narrowing hook
  // (Hook::cast_dtype).
  Dtype fused_dtype(uint32_t bucket) const { return hook->cast_dtype().value_or(plan.buckets[bucket].dtype); }
  // Returns the communication dtype: the copy into the bucket produces it, and the copy of the result reads
  // it.
  Dtype comm_dtype(uint32_t bucket) const {
    return schedule.buckets[bucket].cast_to.value_or(plan.buckets[bucket].dtype);
  }
  bool device_bucket(uint32_t bucket) const {
    return device_buckets != nullptr && device_buckets->has(bucket);
  }
  // True if the bucket has the sum of the parameter's gradients in local steps of this window.
  bool holds_sum(uint64_t param) const {
    return options.accumulation == WEFT_ACCUMULATION_REDUCER && presence->accumulated(param);
  }
  // True if local steps of this window made the parameter ready, and the sum is in memory of the program.
  bool awaits_sum(uint64_t param) const {
    return options.accumulation == WEFT_ACCUMULATION_PROGRAM && (copy || buckets->place(param).sparse) &&
           presence->accumulated(param);
  }
  uint64_t lane_bytes() const { return lane->memory_bytes() + (hook_lane ? hook_lane->memory_bytes() : 0); }
  // Makes a state with everything that survives a rebind or a re-plan.
  std::shared_ptr<ReducerState> carry_over() const {
    auto next = std::make_shared<ReducerState>();
    static_cast<ReducerSettings&>(*next) = static_cast<const ReducerSettings&>(*this);
    static_cast<ReducerDurable&>(*next) = static_cast<const ReducerDurable&>(*this);
    return next;
  }
};

inline uint32_t bucket_count(const ReducerState& s) {
  return static_cast<uint32_t>(s.plan.buckets.size());
}
inline bool has_bucket(const ReducerState& s, uint64_t param) {
  return param < s.plan.bucket_of.size() && s.plan.bucket_of[param] != kNoBucket;
}

// Returns the address of a parameter's view.
inline std::byte* view_of(const ReducerState& s, uint64_t param) {
  const Buckets::Place& place = s.buckets->place(param);
  return place.on_device ? s.views_on_devices->of(param) : place.memory;
}

// Fails the communicator, because a gradient could not be taken and the other ranks count on it.
inline void fail_arrival(const ReducerState& s, uint64_t param, const Status& status) {
  s.comm->fail(status.with_prefix(cat("rank ", s.comm->rank(), ", ", s.manifest.named(param), ": "))
                   .with_ranks({s.comm->rank()}));
}

}  // namespace weft
