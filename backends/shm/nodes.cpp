#include "nodes.h"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/cores.h"

namespace weft::shm {
namespace {

// Loads an hwloc topology without caches.
class Topology {
 public:
  explicit Topology(const char* synthetic) {
    if (hwloc_topology_init(&topology_) != 0) {
      topology_ = nullptr;
      return;
    }
    loaded_ = hwloc_topology_set_cache_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_NONE) == 0 &&
              (synthetic == nullptr || hwloc_topology_set_synthetic(topology_, synthetic) == 0) &&
              hwloc_topology_load(topology_) == 0;
  }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  // Returns the first node that contains all of the cores. Nodes of faster or more distant memory may share
  // cores.
  int32_t node_of(hwloc_const_cpuset_t cores) const {
    const int count = loaded_ ? hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_NUMANODE) : 0;
    for (int i = 0; i < count; i++) {
      const hwloc_obj_t node = hwloc_get_obj_by_type(topology_, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
      if (node->cpuset == nullptr || hwloc_bitmap_isincluded(cores, node->cpuset) == 0) continue;
      return node->os_index < kMostNodes ? static_cast<int32_t>(node->os_index) : kNoNode;
    }
    return kNoNode;
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool loaded_ = false;
};

}  // namespace

int Nodes::width() const {
  const size_t first = ranks.empty() ? 0 : ranks.front().size();
  const bool even = std::all_of(ranks.begin(), ranks.end(),
                                [first](const std::vector<int>& each) { return each.size() == first; });
  return even ? static_cast<int>(first) : 0;
}

Nodes group_nodes(const std::vector<int32_t>& numbers) {
  const bool known = std::all_of(numbers.begin(), numbers.end(), [](int32_t number) { return number >= 0; });
  Nodes nodes;
  std::map<int32_t, int> node_of_number;
  for (size_t rank = 0; rank < numbers.size(); rank++) {
    const int next = nodes.count();
    const int node = node_of_number.emplace(known ? numbers[rank] : 0, next).first->second;
    if (node == next) nodes.ranks.emplace_back();
    std::vector<int>& members = nodes.ranks[static_cast<size_t>(node)];
    nodes.node_of.push_back(node);
    nodes.index_of.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
  return nodes;
}

int32_t node_of_cores(ByteView cores, const char* synthetic) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set == nullptr) return kNoNode;
  for (unsigned core = 0; core < 8 * cores.size(); core++) {
    if (has_core(cores, core)) hwloc_bitmap_set(set, core);
  }
  const int32_t node = hwloc_bitmap_iszero(set) != 0 ? kNoNode : Topology(synthetic).node_of(set);
  hwloc_bitmap_free(set);
  return node;
}

int32_t node_of_this_thread() {
  const Bytes cores = allowed_cores();
  if (count_cores(cores) >= static_cast<uint64_t>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1L)))
    return kNoNode;
  return node_of_cores(cores);
}

}  // namespace weft::shm
