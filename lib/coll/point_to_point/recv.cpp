// Receives one message from the lane's peer.
#include "coll/algorithm.h"

namespace weft::coll::point_to_point {
namespace {

void build_recv(const Shape& shape, Schedule& schedule) {
  schedule.receive(shape.root, 0, target(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& recv() {
  static constexpr Algorithm kRow{Coll::kRecv, "message", always, build_recv};
  return kRow;
}

}  // namespace weft::coll::point_to_point
