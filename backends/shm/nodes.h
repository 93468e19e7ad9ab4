// Which ranks of a group share a NUMA node: from what each says about its cores, or was told
// (WEFT_SHM_NODES). Found while a group is founded, equal on all ranks; constant afterwards. Pure functions
// but for those that look at this machine. Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"

namespace weft::shm {

inline constexpr int32_t kNoNode = -1;  // its cores are of several nodes, or nobody knows
inline constexpr int32_t kMostNodes = 65536;

struct Nodes {
  std::vector<std::vector<int>> ranks;  // of each node, ascending; nodes by their lowest rank
  std::vector<int> node_of;             // by rank
  std::vector<int> index_of;            // by rank: its place in its node

  int count() const { return static_cast<int>(ranks.size()); }
  // Ranks of each node, if all have as many; else 0.
  int width() const;
  // Several nodes, and as many ranks on each, more than one: an all-reduce can go in two levels.
  bool two_levels() const { return count() > 1 && width() > 1; }
  bool together(int a, int b) const {
    return node_of[static_cast<size_t>(a)] == node_of[static_cast<size_t>(b)];
  }
};

// From each rank's number. All are on one node if one of them does not know its own.
Nodes group_nodes(const std::vector<int32_t>& numbers);

// The node that all these cores (base/cores.h) belong to, by hwloc; kNoNode. synthetic: hwloc's description
// of another machine, for tests.
int32_t node_of_cores(ByteView cores, const char* synthetic = nullptr);

// Of the cores that the calling thread may run on: kNoNode, and nothing is looked at, if it is bound to none.
int32_t node_of_this_thread();

}  // namespace weft::shm
