// One message to the lane's rank.
#include "coll/algorithm.h"

namespace weft::coll::point_to_point {
namespace {

void build(const Shape& shape, Schedule& schedule) {
  schedule.send(shape.root, 0, source(), shape.bytes());
  schedule.end_round();
}

}  // namespace

extern const Algorithm send{Coll::kSend, "message", always, build};

}  // namespace weft::coll::point_to_point
