// Collects the facts of this process, or those of all ranks of its job together with what they find out about
// each other.
#pragma once

#include <cstdint>

#include "facts.h"

namespace doctor {

Inspection inspect_alone();

// Inspects the job of a rank that a launcher started. Collective over the job.
// wait_ms: how long the ranks wait for each other in each step.
// *together: true if the ranks met. All of them then return the same inspection, but for `rank`. Otherwise it
// has this rank's facts and the reason.
Inspection inspect_job(int64_t wait_ms, bool* together);

}  // namespace doctor
