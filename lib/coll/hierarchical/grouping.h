// Which ranks of a communicator share a host, and where this rank stands among them. Found while a
// communicator is formed, on the program's thread; constant afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "core/backend.h"

namespace weft::coll {

struct Grouping {
  int rank = 0;
  std::vector<std::vector<int>> hosts;  // ranks of each host, ascending; hosts by their lowest rank
  std::vector<int> host_of;             // by rank
  std::vector<int> index_of;            // by rank: its place in its host
  int widest = 1;                       // ranks of the largest host
  bool even = true;                     // all hosts have as many

  int size() const { return static_cast<int>(host_of.size()); }
  int host_count() const { return static_cast<int>(hosts.size()); }
  int host() const { return host_of[static_cast<size_t>(rank)]; }
  int index() const { return index_of[static_cast<size_t>(rank)]; }
  const std::vector<int>& locals() const { return hosts[static_cast<size_t>(host())]; }
  bool is_leader() const { return index() == 0; }
  // The ranks that this one communicates with across hosts, one of each, by host: those of the same index
  // where hosts are even, else the leaders; empty for a rank that has no part in it.
  std::vector<int> column() const;
  bool shares_host(int other) const { return host_of[static_cast<size_t>(other)] == host(); }
};

// From what every rank says about every other one: near[a][b] if a shares b's host. An error names two ranks
// that do not see the same.
Status group_ranks(int rank, const std::vector<std::vector<uint8_t>>& near, Grouping* grouping);

// Collective over args.exchange: from what args.fds says; equal on all ranks.
Status find_grouping(const BackendArgs& args, Grouping* grouping);

}  // namespace weft::coll
