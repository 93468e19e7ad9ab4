// The ranks of a communicator by host, and this rank's place among them. Computed during group setup, on the
// program's thread; constant afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/backend.h"

namespace weft::coll {

struct Grouping {
  int rank = 0;
  std::vector<std::vector<int>> hosts;  // ranks of each host, ascending; hosts by their lowest rank
  std::vector<int> host_of;             // by rank
  std::vector<int> index_of;            // by rank: its index in its host
  int widest = 1;                       // ranks of the largest host
  bool even = true;                     // all hosts have equally many ranks

  int size() const { return static_cast<int>(host_of.size()); }
  int host_count() const { return static_cast<int>(hosts.size()); }
  int host() const { return host_of[static_cast<size_t>(rank)]; }
  int index() const { return index_of[static_cast<size_t>(rank)]; }
  const std::vector<int>& locals() const { return hosts[static_cast<size_t>(host())]; }
  bool is_leader() const { return index() == 0; }
  // Returns the ranks with which this rank communicates across hosts, one of each host, by host. They have
  // this rank's index where hosts are even; otherwise they are the leaders. Empty for a rank that does not
  // communicate across hosts.
  std::vector<int> column() const;
  bool shares_host(int other) const { return host_of[static_cast<size_t>(other)] == host(); }
};

// Groups the ranks by their reports: near[a][b] is set if a shares b's host. An error names two ranks whose
// reports differ.
Status group_ranks(int rank, const std::vector<std::vector<uint8_t>>& near, Grouping* grouping);

// Finds the hosts of all ranks from the reports of args.fds. Collective over args.exchange; the result is
// equal on all ranks.
Status find_grouping(const BackendArgs& args, Grouping* grouping);

}  // namespace weft::coll
