// A part of a communicator that the core does not know. It is created at its first use (Comm::part), and runs
// operations of its own beside the lanes, for example lib/tagged.
#pragma once

#include "engine/engine.h"
#include "engine/flight.h"

namespace weft {

class CommPart : public Task {
 public:
  // Closes its queue, as Lane::close. Any thread.
  virtual void close() = 0;
  // Returns true if no operation is outstanding, and nothing that a complete one has sent is still to leave.
  // Needs the progress lock.
  virtual bool quiet() = 0;
  // Called repeatedly before the communicator closes: returns true once what complete operations have sent
  // has left. Needs the progress lock.
  virtual bool flush() = 0;
  // Adds its recent operations to the flight record. Needs the progress lock.
  virtual void describe(FlightRecord* record) = 0;
};

}  // namespace weft
