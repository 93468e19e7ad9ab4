// Checks a run of `weft bench faults` against the library's guarantees. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run.h"

namespace faults {

struct Verdict {
  std::vector<std::string> hangs;          // calls that did not return by their deadline
  std::vector<std::string> disagreements;  // all wrong answers
  std::vector<std::string> leftovers;
  // detect_ms: from the fault until the last survivor's call has reported it. recover_ms: from the first such
  // report, or from the last fault, until the last survivor has reduced something with all others. Empty if
  // there was nothing to detect or no rank continued.
  std::optional<double> detect_ms, recover_ms;
  bool minority = false;  // too few ranks were left to continue, and they reported that
  bool reached = true;    // the fault struck

  bool good() const { return hangs.empty() && disagreements.empty() && leftovers.empty(); }
};

Verdict judge(const Draw& draw, const RunTrace& trace);

}  // namespace faults
