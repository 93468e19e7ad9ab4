#include "waiting_frames.h"

namespace weft::mpi {

void WaitingFrames::add(int peer, ByteView head, ByteView data, framed::InFlightFrame& frame) {
  frame.busy = true;
  frame.peer = peer;
  frames_.push_back({peer, head, data, &frame});
}

bool WaitingFrames::take(Frame* next) {
  next->frame = nullptr;
  while (next->frame == nullptr && !empty()) *next = frames_[first_++];
  if (empty()) {
    frames_.clear();
    first_ = 0;
  }
  return next->frame != nullptr;
}

void WaitingFrames::give_up(int peer) {
  for (size_t i = first_; i < frames_.size(); i++) {
    if (frames_[i].peer == peer && frames_[i].frame != nullptr) {
      given_up_.push_back(std::exchange(frames_[i].frame, nullptr));
    }
  }
}

void WaitingFrames::give_up_all() {
  for (size_t i = first_; i < frames_.size(); i++) {
    if (frames_[i].frame != nullptr) given_up_.push_back(std::exchange(frames_[i].frame, nullptr));
  }
}

void WaitingFrames::clear() {
  frames_.clear();
  given_up_.clear();
  first_ = 0;
}

}  // namespace weft::mpi
