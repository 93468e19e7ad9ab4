// Who has come to an operation that does not go on. A rank that waits for another one cannot tell whether
// that one is absent or waits in turn, on its own host perhaps. So whoever has waited for a while says to all
// others, over the transport, how far it is; the error of a deadline then names those who said nothing. Costs
// an operation that goes on nothing but a look at the clock now and then.
//
// One a communicator, used by all its lanes. Drive lock, except construction and destruction.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.h"
#include "core/transport.h"

namespace weft::coll {

class RollCall {
 public:
  // transport and clock outlive it.
  RollCall(Transport& transport, Clock& clock, int rank, int size);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // A lane's operation.
  struct Wait {
    uint32_t lane = 0;
    uint64_t slot = 0;
    Descriptor descriptor;
    uint32_t fruitless = 0;  // polls since it advanced
    uint64_t since_ns = 0;   // about when it last did
    bool tells = false;      // has begun to tell the others
    std::vector<int> untold;
  };
  // An operation begins, goes on, or has been polled in vain.
  void begins();
  void goes_on(Wait* wait) { wait->fruitless = 0; }
  void waits(Wait* wait);
  // Of `ranks` (of all) those who have not said that they are there.
  std::vector<int> silent(const Wait& wait, const std::vector<int>& ranks) const;
  std::vector<int> silent(const Wait& wait) const;

 private:
  // On the wire.
  struct Note {
    uint64_t lane = 0;
    uint64_t arrived = 0;  // the slot, plus one
  };
  struct Line {
    Message receive;
    Message send;
    Note room;
    Note said;
    uint64_t received = 0;  // notes
    uint64_t sent = 0;
    std::map<uint64_t, uint64_t> arrived;  // by lane; few
  };
  void listen(int peer);
  void hear();
  void say(Wait* wait);

  Transport& transport_;
  Clock& clock_;
  const int rank_;
  std::vector<Line> lines_;  // by rank; never moves
  bool listens_ = false;
  uint32_t begun_ = 0;
};

}  // namespace weft::coll
