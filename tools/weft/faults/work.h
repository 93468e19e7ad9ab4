// What the ranks of `weft bench faults` do in a communicator until it fails or they are told to end.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "draw.h"

namespace faults {

// A communicator, and who its ranks were in the beginning.
struct Crew {
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  std::vector<int> members;  // first ranks, by rank in comm; -1: not known yet
  int rank = 0;              // this one's in comm
  int generation = 0;
};

// How a rank's work ended, and in which call.
struct Outcome {
  weft_status status = WEFT_OK;  // WEFT_OK: all ranks were told to end
  weft_error error = WEFT_ERROR_INIT;
  std::string wrong;  // a result that is none
  bool left = false;  // by itself: the rank's own fault
};

struct WorkHooks {
  std::function<bool()> told_to_end;
  std::function<void()> fault_comes;              // before the rank's own fault
  std::function<void(uint64_t next_step)> bound;  // the reducer goes on
};

// Who is there: learnt from the ranks themselves. bits: hash of a sum in which order and rounding show.
Outcome meet(Crew* crew, int first_rank, uint64_t count, uint64_t* bits);

class Worker;

class Work {
 public:
  // crew is that of the first communicator, and later of those that are shrunk from it.
  Work(const Draw& draw, const Crew& crew, int first_rank);
  ~Work();
  // In the crew's communicator.
  Outcome run(const WorkHooks& hooks);

 private:
  std::unique_ptr<Worker> make() const;
  Outcome rounds(const WorkHooks& hooks);

  const Draw& draw_;
  const Crew& crew_;
  const int first_rank_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace faults
