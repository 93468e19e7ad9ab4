// Parameters that become ready several times in a step, as weft_param.uses declares or the first step shows.
// Threads: any thread, except where a comment says otherwise.
#pragma once

#include "reducer/data.h"

namespace weft {

Status too_often(const ReducerState& s, uint64_t param, StepWord step);
// Returns "2 times, expected 3 (weft_param.uses)": the actual and the expected number of uses. Empty if a
// parameter is used once. more: uses that were rejected.
std::string uses_text(const ReducerState& s, uint64_t param, StepWord step, uint32_t more = 0);
// True if the parameter was used in this step, whether or not for the last time. Always false if uses are not
// counted.
bool was_used(const ReducerState& s, uint64_t param, uint32_t stamp);
// Takes a use while uses are learned: each may be the last, and nothing is communicated.
Status take_use(ReducerData& r, uint64_t param, const Given& gradient, StepWord step);
// Ends the step in which uses are learned: every gradient that became ready is complete now.
Status take_learned(ReducerData& r, StepWord step);
// Marks the parameters that the first step did not use as absent; they are absent from every later step.
Status leave_out_unused(ReducerData& r);

}  // namespace weft
