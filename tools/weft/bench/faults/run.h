// One run of `weft bench faults`, seen from outside: its processes, the signals that they get, and their
// words. Runs on the calling thread; several runs may be executed at a time, each on a thread of its own.
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
  int exit_code = 0;    // 128 + signal, like a shell's
  bool killed = false;  // by this program, as drawn or because the run was over
  std::string hang;     // not empty: the call that did not return
};

struct RunTrace {
  std::vector<RankTrace> ranks;
  std::vector<uint64_t> struck_ns;  // by fault; 0: it did not strike
  bool interrupted = false;
  std::vector<std::string> leftovers;
  std::string errors;  // the ranks' standard error
};

struct RunOptions {
  std::vector<std::string> words;           // the command line of a rank, without its own part
  const std::atomic<bool>* stop = nullptr;  // the user wants to stop
  bool private_shm = false;                 // /dev/shm belongs to these runs alone (leftovers.h)
};

// Throws std::system_error if processes cannot be started.
RunTrace run(const Draw& draw, const RunOptions& options);

}  // namespace faults
