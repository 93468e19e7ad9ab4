// Sends one message to the lane's peer.
#include "coll/algorithm.h"

namespace weft::coll::point_to_point {
namespace {

void build_send(const Shape& shape, Schedule& schedule) {
  schedule.send(shape.root, 0, source(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& send() {
  static constexpr Algorithm kRow{Coll::kSend, "message", always, build_send};
  return kRow;
}

}  // namespace weft::coll::point_to_point
