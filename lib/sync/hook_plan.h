// Reads what a hook declared for a bucket. For make_schedule. Threads: any thread.
// And what a hook hears of other buckets that come to nothing.
#pragma once

#include <weft/weft.h>

#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "sync/schedule.h"

namespace weft {

struct ReducerState;

// Appends a slot for each collective of the plan. own: the hook has a communicator of its own. kArg or
// kUnsupported for what it may not declare; the text names the collective.
Status read_hook_plan(const weft_bucket& bucket, const weft_hook_plan& plan, bool own,
                      std::vector<Slot>* slots);
// The same of a sparse gradient: what becomes of its entries.
Status read_sparse_plan(const weft_bucket& bucket, const weft_hook_plan& plan, HookedBucket* hooked);

// The hook has heard of buckets that there will not be (Hook::replan, plan): it hears of those that stay as
// it would of new ones. An error is the hook's. Threads: as a re-plan; waits for the hook's turn.
Status plan_again(const ReducerState& state, Deadline deadline);

}  // namespace weft
