// Messages of this rank to itself. A short one is copied, and its send completes at once. Others are copied
// from buffer to buffer once both calls were made, a part with each poll.
#pragma once

#include <list>

#include "tagged/matching.h"
#include "tagged/owner.h"

namespace weft::tagged {

class OwnMessages {
 public:
  OwnMessages(Owner& owner, Matching& matching, int rank) : owner_(owner), matching_(matching), rank_(rank) {}

  void send(Operation& send);
  // Gives a receive a message that has waited in the matching.
  void deliver(Operation& receive, const Unexpected& message);
  // Copies a part of a message. Returns false if there is none.
  bool poll();
  // Ends a send or a matched receive, and with it the other end of the message if that has matched. Returns
  // false if the operation is neither.
  bool end(Operation& operation, const Status& why);
  void abandon() { copies_.clear(); }

 private:
  struct Copy {
    Operation* send;
    Operation* receive;
  };
  void join(Operation& send, Operation& receive);

  Owner& owner_;
  Matching& matching_;
  const int rank_;
  std::list<Copy> copies_;
  uint64_t window_ = 0;  // memory of the copied messages in the matching
};

}  // namespace weft::tagged
