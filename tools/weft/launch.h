// Starts the ranks of a job, or those of this host, as local processes, and returns when all have ended.
// Called by `weft run` and `weft bench`. Threads: one thread at a time; blocks the signals that it waits for
// in the calling thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

enum class Prefix {
  kAll,     // every line starts with [rank]
  kOthers,  // rank 0's lines are forwarded unchanged
  kNone,
};

struct LaunchOptions {
  int ranks = 1;                     // on this host
  int size = 0;                      // of the whole job; 0: all its ranks are on this host
  int first_rank = 0;                // the other ranks are elsewhere
  std::vector<std::string> command;  // looked up in PATH
  std::vector<std::pair<std::string, std::string>> environment;  // besides rank, size, store and secret
  // The store's address. Required when some ranks are elsewhere; the secret is then the one in this process's
  // environment. Default: unix:@ and a random name, with a random secret.
  std::string store;
  std::string secret;  // of the job; empty: see store
  int control = -1;    // SuperviseOptions::control
  Prefix prefix = Prefix::kAll;
  double timeout_s = 0;  // 0: no limit
  double grace_s = 2;    // time for the other ranks to end by themselves after the first failure
};

// Returns the exit code of the job: see supervise.h.
int launch(const LaunchOptions& options);

// Returns `count` random bytes as hexadecimal digits.
std::string random_hex(int count);
