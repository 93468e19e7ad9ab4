// Changes the buckets between steps. Threads: one thread at a time, as begin and finish.
#pragma once

#include "reducer/data.h"

namespace weft {

struct PlanRequest;

Status replan_reducer(ReducerData& r, const weft_replan_options& options, const Status& given);
// Collective. request: null on a rank that has joined; its order of readiness may still be the one that is
// used.
Status take_plan(ReducerData& r, const PlanRequest* request, const Status& given);
// Re-plans automatically once a synchronised step has recorded the order of readiness. All ranks have made as
// many steps and take part in every re-plan, so they agree on the time. Not while another rank may retry the
// step, because a retry begins without a re-plan.
Status replan_automatically(ReducerData& r);

}  // namespace weft
