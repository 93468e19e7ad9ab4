// Whether a run of `weft bench faults` went as the library promises. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run.h"

namespace faults {

struct Verdict {
  std::vector<std::string> hangs;          // a call that did not return by its deadline
  std::vector<std::string> disagreements;  // any answer that is not the right one
  std::vector<std::string> leftovers;
  // From the fault until the last survivor's call has said so; from the first of these, or from the last
  // fault, until the last survivor has reduced something with all others. None where there was nothing to be
  // detected or nobody went on.
  std::optional<double> detect_ms, recover_ms;
  bool minority = false;  // too few were left to go on, and they said so
  bool reached = true;    // the fault came

  bool good() const { return hangs.empty() && disagreements.empty() && leftovers.empty(); }
};

Verdict judge(const Draw& draw, const RunTrace& trace);

}  // namespace faults
