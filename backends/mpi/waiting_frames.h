// Frames that wait for a slot of the staging. Only such frames are in-flight buffers. Frames are given up
// when their peer is closed or lost, and the link returns those at its next progress(). Threads: guarded by
// MpiLink's mutex.
#pragma once

#include <utility>
#include <vector>

#include "base/buffer.h"
#include "framed/link.h"

namespace weft::mpi {

class WaitingFrames {
 public:
  struct Frame {
    int peer = 0;
    ByteView head;
    ByteView data;
    framed::InFlightFrame* frame = nullptr;  // null: it was given up
  };

  bool empty() const { return first_ == frames_.size(); }
  void add(int peer, ByteView head, ByteView data, framed::InFlightFrame& frame);
  // Takes the first frame that was not given up. Returns false if there is none.
  bool take(Frame* next);
  // Gives up the frames to a peer, or to all peers.
  void give_up(int peer);
  void give_up_all();
  std::vector<framed::InFlightFrame*> take_given_up() { return std::exchange(given_up_, {}); }
  void clear();

 private:
  std::vector<Frame> frames_;  // from first_ on
  size_t first_ = 0;
  std::vector<framed::InFlightFrame*> given_up_;
};

}  // namespace weft::mpi
