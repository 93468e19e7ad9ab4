// Nothing but the handshake that every operation has (Schedule::add_handshake).
#include "coll/algorithm.h"

namespace weft::coll::barrier {

extern const Algorithm direct{Coll::kBarrier, "direct", always,
                              [](const Shape&, Schedule& schedule) { schedule.end_round(); }};

}  // namespace weft::coll::barrier
