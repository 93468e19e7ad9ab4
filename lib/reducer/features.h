// The features of a step. Each lies in a folder of lib/reducer/feature, except the two that every reducer has
// (kDense, kHooked), and has one line in meson.build. When a plan is made, a feature adds exchanges to the
// step, copies to parameters, and works and stages to buckets, if the reducer's options ask for it. Step and
// Reducer run these and do not name their features.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "reducer/options.h"
#include "reducer/step/schedule.h"

namespace weft {

struct ReducerData;
struct ReducerState;

// Functions are null if the feature has nothing of the kind.
struct StepFeature {
  ReducerFlag flag{};  // switches it on, and is an option of the reducer; value 0: no flag of its own
  // Returns true if a work of the feature reads or changes the contributions of buckets before they are
  // communicated (BucketWorks::prepare). They are then in the bucket as a whole, in host memory, in the
  // storage dtype (Buckets::held, not always a float), and not multiplied by the rank's weight. Sparse
  // buckets (PlannedBucket::sparse) hold entries instead. Features that would leave contributions elsewhere,
  // or convert them earlier, read ReducerState::touches_contributions. The state has its options and its
  // plan.
  bool (*touches_contributions)(const ReducerState& state) = nullptr;
  // Returns how the collectives of a bucket are planned; null: as its hook declares.
  PlanBucket (*planner)(const PlannedBucket& bucket) = nullptr;
  // Adds exchanges to a schedule that has the buckets' collectives (reducer/step/step_exchange.h).
  void (*exchanges)(ReducerState* state) = nullptr;
  // Marks the buckets into which gradients are copied in the communication dtype
  // (HookedBucket::copies_narrow). The state has buckets and a schedule, which is not bound to memory yet.
  void (*narrow_copies)(ReducerState* state) = nullptr;
  // Sets how gradients reach their bucket (reducer/bucket/copy_in.h). The state is complete.
  void (*copies)(ReducerState* state) = nullptr;
  // Adds to what is done with buckets before and after they are communicated (reducer/bucket/bucket_work.h).
  void (*works)(ReducerState* state) = nullptr;
  // Sets what runs between the collectives of buckets (reducer/step/bucket_stages.h).
  void (*stages)(ReducerState* state) = nullptr;

  // ---- called by the calls of the program, on its thread
  // Forgets marks with stamps of the other half of the numbers (reducer/step/stamps.h), which a later step
  // may get again. Called when stamps enter the half of `stamp`.
  void (*forget)(const ReducerState& state, uint32_t stamp) = nullptr;
  // Ends what the feature does between steps. Called before a step begins, or a re-plan or a rebind.
  Status (*before_step)(ReducerData& r) = nullptr;
  // Called when a synchronised step opens, before its gradients may come. full: all of them are in their
  // buckets already.
  void (*open)(ReducerData& r, bool full) = nullptr;
  // Called when a synchronised step is open: waits for what must have happened before begin returns.
  Status (*await_open)(ReducerData& r, int64_t timeout_ms) = nullptr;
};

// Returns the planner of the feature that has one for the bucket; null: none has.
PlanBucket planner_of(const PlannedBucket& bucket);
// Returns the flags that switch features on.
std::vector<ReducerFlag> feature_flags();
// True if a feature touches contributions.
bool touches_contributions(const ReducerState& state);
// Calls the functions of all features, in an order that is the same on all ranks.
void add_exchanges(ReducerState* state);
void mark_narrow_copies(ReducerState* state);
void add_copies(ReducerState* state);
void add_works(ReducerState* state);
void add_stages(ReducerState* state);
void forget_marks(const ReducerState& state, uint32_t stamp);
// The first error ends these two.
Status end_between_steps(ReducerData& r);
void open_features(ReducerData& r, bool full);
Status await_open_features(ReducerData& r, int64_t timeout_ms);

}  // namespace weft
