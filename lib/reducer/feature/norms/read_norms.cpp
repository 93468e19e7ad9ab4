#include "reducer/feature/norms/read_norms.h"

#include "base/text.h"
#include "reducer/calls/finish.h"
#include "reducer/feature/norms/step_norms.h"

namespace weft {

Status read_norms(ReducerData& r, weft_norms* norms, double* per_param) {
  WEFT_TRY(settle_finish(r));
  const ReducerState& s = *r.state;
  *norms = {};
  norms->struct_size = sizeof *norms;
  if (!s.norms) {
    return note(r,
                Status::error(Code::kState,
                              "weft_reducer_norms needs a reducer that was created with WEFT_REDUCER_NORMS"));
  }
  WEFT_TRY(note(r, outside_step(r, "weft_reducer_norms")));
  if (!r.program.measured)
    return note(r, Status::error(Code::kState, "there are no norms: no step has been reduced yet"));
  norms->total = s.norms->decision.total;
  norms->clip_factor = s.norms->decision.factor;
  norms->nonfinite_params = s.norms->decision.nonfinite;
  norms->skipped = s.norms->decision.skipped ? 1 : 0;
  for (uint64_t i = 0; per_param != nullptr && i < s.manifest.params.size(); i++) {
    per_param[i] = s.norms->norm(i);
  }
  return {};
}

}  // namespace weft
