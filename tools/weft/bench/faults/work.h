// The work of the ranks of `weft bench faults` in a communicator, until it fails or they are asked to end.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "draw.h"

namespace faults {

// A communicator and its members. A process's first rank is its rank in the first communicator.
struct Team {
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  std::vector<int> members;  // first ranks, by rank in comm; -1: not known yet
  int rank = 0;              // this process's rank in comm
  int generation = 0;
};

// The end of a rank's work, and the call in which it ended.
struct Outcome {
  weft_status status = WEFT_OK;  // WEFT_OK: all ranks were asked to end
  weft_error error = WEFT_ERROR_INIT;
  std::string wrong;  // a wrong result
  bool left = false;  // by itself: the rank's own fault
};

struct WorkHooks {
  std::function<bool()> asked_to_end;
  std::function<void()> fault_comes;              // called before the rank's own fault
  std::function<void(uint64_t next_step)> bound;  // the reducer continues
};

// Exchanges the members among the ranks. bits: hash of a sum that depends on order and rounding.
Outcome meet(Team* team, int first_rank, uint64_t count, uint64_t* bits);

class Worker;

class Work {
 public:
  // team: the communicator to work in, and its members. The caller updates it after a shrink; it outlives
  // this object.
  Work(const Draw& draw, const Team& team, int first_rank);
  ~Work();
  // Works in the team's communicator.
  Outcome run(const WorkHooks& hooks);

 private:
  std::unique_ptr<Worker> make() const;
  Outcome rounds(const WorkHooks& hooks);

  const Draw& draw_;
  const Team& team_;
  const int first_rank_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace faults
