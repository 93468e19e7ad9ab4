// The interface of the object that has all operations (messages.h), for the classes that move their data.
#pragma once

#include "tagged/operation.h"

namespace weft::tagged {

// Frames of one direction that one poll moves.
inline constexpr int kFramesPerPoll = 64;

class Owner {
 public:
  virtual ~Owner() = default;
  // Completes an operation, which is gone on return.
  virtual void complete(Operation& operation, Status status) = 0;
  // Adds a receive again whose sender has given up the message before any of it arrived.
  virtual void post(Operation& receive) = 0;
  // Returns true if an operation waits for frames from this rank.
  virtual bool listens(int rank) const = 0;
};

}  // namespace weft::tagged
