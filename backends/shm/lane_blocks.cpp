#include "lane_blocks.h"

#include <algorithm>

namespace weft::shm {

LaneBlocks::LaneBlocks(const Group& group, uint32_t lane) : rank_(group.rank()) {
  for (int r = 0; r < group.size(); r++) {
    blocks_.push_back(&group.at<LaneBlock>(r, group.layout().lane(lane)));
  }
  for (const Stage stage : {kProduced, kReduced, kConsumed}) {
    for (int r = 0; r < group.size(); r++) seen_[stage].push_back(published(r, stage));
  }
}

void LaneBlocks::catch_up(uint64_t slot) {
  for (const Stage stage : {kProduced, kReduced, kConsumed}) {
    publish(stage, slot, 0);
    std::fill(seen_[stage].begin(), seen_[stage].end(), phase(slot, 0));
  }
}

uint64_t LaneBlocks::rounds_done(int rank, uint64_t slot, uint64_t most) const {
  uint64_t sum = 0;
  for (const Stage stage : {kProduced, kReduced, kConsumed}) {
    const uint64_t value = published(rank, stage);
    if (shm::reached(value, phase(slot, 0))) sum += std::min(value - phase(slot, 0), most);
  }
  return sum;
}

}  // namespace weft::shm
