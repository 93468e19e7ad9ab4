// Consists only of the handshake that every operation has (Schedule::add_handshake).
#include "coll/algorithm.h"

namespace weft::coll::barrier {
namespace {

void build_direct(const Shape&, Schedule& schedule) {
  schedule.end_round();
}

}  // namespace

const Algorithm& direct() {
  static constexpr Algorithm kRow{Coll::kBarrier, "direct", always, build_direct};
  return kRow;
}

}  // namespace weft::coll::barrier
