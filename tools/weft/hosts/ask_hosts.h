// Asks several hosts at once: runs this program there and collects what it prints. Called by `weft status`
// and `weft top`.
#pragma once

#include <string>
#include <vector>

#include "hosts.h"

struct HostAnswers {
  std::string text;                   // all that the hosts printed on standard output
  std::vector<std::string> problems;  // a sentence for each host that gave no whole answer, with its reason
};

// Runs weft with these words on each host, at the same time. A host that has not ended its answer after
// wait_s seconds is given up. The numbers of ranks are not looked at.
HostAnswers ask_hosts(const HostsOptions& on, const std::vector<std::string>& words, double wait_s);
