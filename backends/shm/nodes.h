// Groups the ranks by NUMA node, from each rank's report about its cores or from WEFT_SHM_NODES. Computed
// while a group is created, equal on all ranks; constant afterwards. Pure functions, except for those that
// inspect this machine. Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"

namespace weft::shm {

inline constexpr int32_t kNoNode = -1;  // its cores belong to several nodes, or the node is unknown
inline constexpr int32_t kMostNodes = 65536;

struct Nodes {
  std::vector<std::vector<int>> ranks;  // of each node, ascending; nodes by their lowest rank
  std::vector<int> node_of;             // by rank
  std::vector<int> index_of;            // by rank: its index in its node

  int count() const { return static_cast<int>(ranks.size()); }
  // Returns the number of ranks on each node if all nodes have equally many; else 0.
  int width() const;
  // True if there are several nodes with equally many ranks each, more than one: an all-reduce can use two
  // levels.
  bool two_levels() const { return count() > 1 && width() > 1; }
  bool together(int a, int b) const {
    return node_of[static_cast<size_t>(a)] == node_of[static_cast<size_t>(b)];
  }
};

// Groups ranks by their node numbers. All are on one node if any rank does not know its own.
Nodes group_nodes(const std::vector<int32_t>& numbers);

// Returns the node that all these cores (base/cores.h) belong to, as hwloc reports it; else kNoNode.
// synthetic: hwloc's description of another machine, for tests.
int32_t node_of_cores(ByteView cores, const char* synthetic = nullptr);

// Does the same for the cores that the calling thread may run on. If the thread is not bound to cores,
// returns kNoNode without inspecting the machine.
int32_t node_of_this_thread();

}  // namespace weft::shm
