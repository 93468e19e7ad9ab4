// The launch gate: decides which NCCL work a rank puts onto its device. NCCL executes a communicator's work
// in the order of its calls on every rank, and each call waits for its counterparts. So two ranks deadlock if
// they call a collective and a message in different orders. Collectives have one order
// (Communicator::has_turn). A message has no order relative to them, because the other ranks do not know of
// it. So a message runs alone on the devices of both its ranks (message_lane.h). Threads: needs the progress
// lock.
#pragma once

namespace weft::nccl {

class LaunchGate {
 public:
  // Admits a collective whose turn it is, until leave(). Returns false while a message is inside; retry
  // later.
  bool enter() {
    waits_ = message_ != nullptr;
    if (!waits_) collectives_++;
    return !waits_;
  }
  void leave() { collectives_--; }

  // True if collectives are inside, or wait for a message to leave.
  bool collective() const { return waits_ || collectives_ > 0; }
  // Admits a message, identified by the pointer. Returns false while other work is inside.
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
