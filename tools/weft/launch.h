// Starts the ranks of a job, or those of this host, as processes of this machine and stays until all have
// ended. Called by `weft run` and `weft bench`. Threads: one thread at a time; blocks the signals it waits
// for in the calling thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

enum class Prefix {
  kAll,     // every line starts with [rank]
  kOthers,  // rank 0's lines are passed on as they are
  kNone,
};

struct LaunchOptions {
  int ranks = 1;                     // here
  int size = 0;                      // of the whole job; 0: all its ranks are here
  int first_rank = 0;                // the others are elsewhere
  std::vector<std::string> command;  // looked up in PATH
  std::vector<std::pair<std::string, std::string>> environment;  // besides rank, size, store and secret
  // Where the ranks meet. Needed when some are elsewhere, and then the secret is the one in this process's
  // environment; default: unix:@ and a random name, with a random secret.
  std::string store;
  Prefix prefix = Prefix::kAll;
  double timeout_s = 0;  // 0: none
  double grace_s = 2;    // what the others have after the first failure to end by themselves
};

// Returns the exit code of the first rank that failed (128 + signal if one ended it; 124 after the timeout;
// 128 + signal if `weft run` itself was told to end), or 0. When it returns no rank is running, nor what the
// ranks started in their process groups. Ranks are killed if this process dies.
int launch(const LaunchOptions& options);

// count random bytes as hexadecimal digits.
std::string random_hex(int count);
