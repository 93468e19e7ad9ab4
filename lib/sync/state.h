// What a reducer consists of, shared by its two halves: Reducer (the program's threads) and Step (the
// engine). Made by Reducer::create, and anew for every communicator that it is bound to; only what is marked
// changes afterwards.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <memory>
#include <vector>

#include "core/comm.h"
#include "core/hook.h"
#include "core/lane.h"
#include "sync/buckets.h"
#include "sync/captures.h"
#include "sync/device_buckets.h"
#include "sync/given_layouts.h"
#include "sync/kept.h"
#include "sync/manifest.h"
#include "sync/norms.h"
#include "sync/opening.h"
#include "sync/ownership.h"
#include "sync/plan.h"
#include "sync/prelude.h"
#include "sync/presence.h"
#include "sync/readiness.h"
#include "sync/ready_order.h"
#include "sync/reduced.h"
#include "sync/resident.h"
#include "sync/schedule.h"
#include "sync/sparse.h"
#include "sync/step_failures.h"
#include "sync/uses.h"
#include "sync/weighting.h"

namespace weft {

class GatherStaging;

struct ReducerState {
  std::shared_ptr<Comm> comm;
  std::shared_ptr<Lane> lane;  // the reducer's own: the program may call collectives between begin and finish
  std::shared_ptr<StepFailures> failures;  // on that lane; made with it
  std::shared_ptr<Hook> hook;
  std::shared_ptr<Lane> hook_lane;  // of its own communicator, if it has one
  bool worker = false;              // the hook's stages run on the context's worker
  uint64_t flags = 0;               // WEFT_REDUCER_*, of which some are told apart here
  bool copy = true;                 // WEFT_GRADIENT_COPY
  bool retain = false;              // WEFT_REDUCER_RETAIN
  bool mapped = false;              // WEFT_REDUCER_ABSENT
  bool learns = false;              // WEFT_REDUCER_STATIC
  bool uneven = false;              // WEFT_REDUCER_UNEVEN
  bool fixed = false;               // WEFT_REDUCER_SPARSE_FIXED
  bool ordered = false;             // WEFT_REDUCER_DETERMINISTIC
  bool strays = false;              // WEFT_REDUCER_COPY_STRAYS
  Buckets::Hold hold = Buckets::Hold::kTravelling;
  bool replans = false;  // by itself, after the first synchronised step; equal on all ranks
  bool models = false;   // WEFT_REDUCER_MODEL
  bool needs = false;    // WEFT_REDUCER_FIRST_NEEDED
  bool lends = false;    // WEFT_REDUCER_REDUCED_VIEWS
  OpeningRules rules;
  Bytes wanted;             // what the ranks agreed on when the reducer was created
  uint64_t hook_bytes = 0;  // memory of its state
  weft_bucket_fn on_bucket = nullptr;
  void* on_bucket_user_data = nullptr;

  Manifest manifest;
  std::vector<uint64_t> limits;       // of buckets that are planned by them
  std::shared_ptr<ReadyOrder> order;  // stays, like the buckets
  Plan plan;
  bool own_whole = false;                // WEFT_REDUCER_OWN_WHOLE
  bool sharded = false;                  // WEFT_REDUCER_SHARDED
  std::unique_ptr<Ownership> ownership;  // null unless sharded
  std::unique_ptr<PeerBuckets> peers;    // null unless it lends
  std::unique_ptr<HookViews> views;      // step, divisor: written by Step
  Schedule schedule;
  std::atomic<bool> beside_devices{false};        // what is said to be in host memory might be on a device
  DeviceReach reach;                              // of gradients on devices
  std::shared_ptr<DeviceBuckets> devices;         // null if no gradient is on one
  std::shared_ptr<DeviceViews> views_on_devices;  // stay, like the buckets; null but in view mode
  std::shared_ptr<ResidentBuckets> residents;     // null if no bucket travels from device to device
  std::unique_ptr<Captures> captures;             // null without WEFT_REDUCER_GRAPH
  std::shared_ptr<Buckets> buckets;               // stay when the reducer is bound to another communicator
  std::shared_ptr<GatherStaging> staging;         // sharded, where all parameters have values; else null
  std::unique_ptr<HookScratch> scratch;
  std::unique_ptr<KeptParts> kept;       // null if all of each gradient comes into its bucket
  std::unique_ptr<Weighting> weighting;  // null if no copy into a bucket multiplies
  std::unique_ptr<Readiness> readiness;  // any thread
  std::shared_ptr<Presence> presence;    // stays, like the buckets
  // Per bucket, when its last gradient was ready. Stays as well: it is written after that gradient has been
  // counted, when the reducer may be bound to another communicator already.
  std::shared_ptr<std::vector<std::atomic<uint64_t>>> ready_ns;
  std::shared_ptr<Norms> norms;             // as well; null without WEFT_REDUCER_NORMS
  std::shared_ptr<Prelude> prelude;         // as well; null if steps begin without one
  std::shared_ptr<Uses> uses;               // as well; null if each parameter is used once
  std::shared_ptr<SparseGradients> sparse;  // as well; null if no gradient is sparse
  // Copy mode and gradients on devices: where the results go, null for nowhere. Element i is written by
  // ready(i) or absent(i) before it arrives, and read by Step once i's bucket is full.
  std::vector<std::byte*> gradients;
  std::shared_ptr<GivenLayouts> given;  // how these lie; stays, like the buckets; null unless in copy mode

  // How the parameter's gradient, which has arrived, lies in the program's memory.
  const Layout& layout(uint32_t param) const {
    const Layout* const other = given ? given->of(param) : nullptr;
    return other != nullptr ? *other : *buckets->place(param).layout;
  }
  // In which a bucket travels whose copies do what a hook that narrows would.
  Dtype narrowed(uint32_t bucket) const { return hook->narrows().value_or(plan.buckets[bucket].dtype); }
  // The type of a bucket between its copies: in the one it contributes, in the other its result is.
  Dtype travels(uint32_t bucket) const {
    return schedule.buckets[bucket].narrow.value_or(plan.buckets[bucket].dtype);
  }
  bool resident(uint32_t bucket) const { return residents != nullptr && residents->has(bucket); }
  uint64_t lane_bytes() const { return lane->memory_bytes() + (hook_lane ? hook_lane->memory_bytes() : 0); }
  // What does not hang on the communicator and the plan.
  std::shared_ptr<ReducerState> heir() const {
    auto next = std::make_shared<ReducerState>();
    next->hook = hook;
    next->flags = flags;
    next->hook_lane = hook_lane;
    next->copy = copy;
    next->hold = hold;
    next->retain = retain;
    next->mapped = mapped;
    next->learns = learns;
    next->uneven = uneven;
    next->fixed = fixed;
    next->ordered = ordered;
    next->strays = strays;
    next->replans = replans;
    next->models = models;
    next->needs = needs;
    next->lends = lends;
    next->rules = rules;
    next->wanted = wanted;
    next->on_bucket = on_bucket;
    next->on_bucket_user_data = on_bucket_user_data;
    next->manifest = manifest;
    next->limits = limits;
    next->order = order;
    next->presence = presence;
    next->ready_ns = ready_ns;
    next->prelude = prelude;
    next->uses = uses;
    next->norms = norms;
    next->sharded = sharded;
    next->own_whole = own_whole;
    next->sparse = sparse;
    next->gradients = gradients;
    next->given = given;
    next->reach = reach;
    next->views_on_devices = views_on_devices;
    next->residents = residents;  // whose memory may serve again
    return next;
  }
};

}  // namespace weft
