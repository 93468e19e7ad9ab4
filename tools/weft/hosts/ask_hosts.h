// Asks several hosts at once: runs this program there and collects what it prints. Called by `weft status`,
// `weft top` and `weft doctor`.
#pragma once

#include <string>
#include <vector>

#include "hosts.h"

// A host that gave no whole answer.
struct HostProblem {
  std::string host;
  std::string reason;
};

struct HostAnswers {
  std::string text;  // all that the hosts printed on standard output
  std::vector<HostProblem> problems;
};

// Runs weft with these words on each host, at the same time. A host that has not ended its answer after
// wait_s seconds is given up. The numbers of ranks are not looked at.
HostAnswers ask_hosts(const HostsOptions& on, const std::vector<std::string>& words, double wait_s);
