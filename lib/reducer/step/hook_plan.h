// Shows buckets to a hook, reads and checks its plan for each, for make_schedule, and undoes a re-plan that
// the hook was notified of but that did not take place. Threads: any thread.
#pragma once

#include <weft/weft.h>

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "reducer/step/schedule.h"

namespace weft {

struct ReducerState;

// Appends a slot for each collective of the plan. own: the hook has a communicator of its own. kArg or
// kUnsupported for an invalid declaration; the text names the collective.
Status read_hook_plan(const weft_bucket& bucket, const weft_hook_plan& plan, bool own,
                      std::vector<Slot>* slots);
// kArg if a hook may not have this much scratch memory for a bucket.
Status check_scratch(uint64_t bytes);

// Makes the buckets as the hook sees them, without memory.
std::unique_ptr<HookViews> make_views(const ReducerState& state);

// Notifies the hook of the current buckets again (Hook::replan, then Hook::plan), because a re-plan of which
// it was notified does not take place. An error is the hook's. Threads: as a re-plan; waits for the hook's
// turn.
Status plan_again(const ReducerState& state, Deadline deadline);

}  // namespace weft
