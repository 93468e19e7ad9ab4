// Which of NCCL's work a rank lets onto its device. NCCL executes a communicator's work in the order of its
// calls, on every rank, and each call waits for its counterparts: two ranks that call a collective and a
// message in different orders wait for ever. Collectives have one order (Communicator::has_turn). A message
// has none with them, because the other ranks know nothing of it; so it is alone on the device of either of
// its ranks (message_lane.h). Threads: with the drive lock held.
#pragma once

namespace weft::nccl {

class Doors {
 public:
  // A collective whose turn it is; false: a message is inside, ask again. Until it has left.
  bool enter() {
    waits_ = message_ != nullptr;
    if (!waits_) collectives_++;
    return !waits_;
  }
  void leave() { collectives_--; }

  // Collectives are inside, or wait for a message to leave.
  bool collective() const { return waits_ || collectives_ > 0; }
  // A message, which this identifies; false: somebody is inside.
  bool take(const void* message) {
    if (collective() || message_ != nullptr) return false;
    message_ = message;
    return true;
  }
  void give_back(const void* message) {
    if (message_ == message) message_ = nullptr;
  }

 private:
  int collectives_ = 0;
  bool waits_ = false;
  const void* message_ = nullptr;
};

}  // namespace weft::nccl
