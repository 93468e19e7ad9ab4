// One run of `weft bench faults`, seen from outside: its processes, the signals they get, what they said. On
// the thread that calls it; several runs at a time, each on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "draw.h"
#include "word.h"

namespace faults {

struct RankTrace {
  std::vector<Word> words;
  int exit_code = 0;    // 128 + signal, as a shell has it
  bool killed = false;  // by this program, as the draw says or because the run was over
  std::string hang;     // not empty: it did not come back from this call
};

struct RunTrace {
  std::vector<RankTrace> ranks;
  std::vector<uint64_t> struck_ns;  // by fault; 0: it never came
  bool interrupted = false;
  std::vector<std::string> leftovers;
  std::string errors;  // what the ranks wrote to standard error
};

struct RunOptions {
  std::vector<std::string> words;           // the command line of a rank, without its own part
  const std::atomic<bool>* stop = nullptr;  // the user wants no more
  bool private_shm = false;                 // /dev/shm belongs to these runs alone (leftovers.h)
};

// Throws std::system_error when processes cannot be started.
RunTrace run(const Draw& draw, const RunOptions& options);

}  // namespace faults
