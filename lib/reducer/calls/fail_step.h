// weft_reducer_fail. This rank notifies all others, then takes part in the rest of the step with zeros. No
// rank thus waits in vain, and the next step finds all of them at the same point. Threads: one thread at a
// time, as begin and finish.
#pragma once

#include "reducer/data.h"

namespace weft {

Status fail_open_step(ReducerData& r, std::string_view text);
// Ends the open synchronised step. Returns kStepFailed, or how the step ended otherwise. If some rank may
// complete the step without this one, the communicator fails, because no rank may keep results that lack a
// part.
Status fail_step(ReducerData& r, std::string_view text);

}  // namespace weft
