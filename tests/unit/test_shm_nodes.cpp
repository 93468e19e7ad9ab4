// Which ranks share a NUMA node: by the ranks' own numbers, by cores on machines that hwloc describes, and
// with invalid claims of another process.
#include "base/cores.h"
#include "shm/group_setup_wire.h"
#include "shm/nodes.h"
#include "shm/thresholds.h"
#include "shm_rank.h"
#include "support/catch.h"

namespace unit_shm_nodes {

using namespace weft;
using namespace weft::shm;
using namespace weft::test;

namespace {

Bytes cores(std::initializer_list<uint64_t> numbers) {
  Bytes set;
  for (const uint64_t number : numbers) add_core(&set, number);
  return set;
}

}  // namespace

TEST_CASE("ranks are grouped by their nodes' numbers") {
  const Nodes nodes = group_nodes({7, 3, 7, 3, 7, 3});
  CHECK(nodes.ranks == std::vector<std::vector<int>>{{0, 2, 4}, {1, 3, 5}});
  CHECK(nodes.node_of == std::vector<int>{0, 1, 0, 1, 0, 1});
  CHECK(nodes.index_of == std::vector<int>{0, 0, 1, 1, 2, 2});
  CHECK((nodes.count() == 2 && nodes.width() == 3 && nodes.two_levels()));
  CHECK((nodes.together(0, 4) && !nodes.together(0, 1)));

  // Nodes of different sizes, of one rank each, or a single node: one level.
  CHECK((group_nodes({0, 0, 1}).width() == 0 && !group_nodes({0, 0, 1}).two_levels()));
  CHECK_FALSE(group_nodes({0, 1, 1, 0, 2}).two_levels());
  CHECK_FALSE(group_nodes({0, 1, 2, 3}).two_levels());
  CHECK_FALSE(group_nodes({5, 5, 5, 5}).two_levels());
  CHECK_FALSE(group_nodes({2}).two_levels());
  // One rank does not know its node.
  const Nodes unknown = group_nodes({0, 0, kNoNode, 1});
  CHECK((unknown.count() == 1 && unknown.ranks[0] == std::vector<int>{0, 1, 2, 3}));
  CHECK_FALSE(unknown.two_levels());
}

TEST_CASE("the node of a set of cores is the node that has all of them") {
  const char* const two = "numa:2 core:2 pu:2";  // 0-3 and 4-7
  CHECK(node_of_cores(cores({0}), two) == 0);
  CHECK(node_of_cores(cores({1, 2, 3}), two) == 0);
  CHECK(node_of_cores(cores({5}), two) == 1);
  CHECK(node_of_cores(cores({4, 5, 6, 7}), two) == 1);
  CHECK(node_of_cores(cores({3, 4}), two) == kNoNode);
  CHECK(node_of_cores(cores({0, 1, 2, 3, 4, 5, 6, 7}), two) == kNoNode);
  CHECK(node_of_cores(cores({8}), two) == kNoNode);
  CHECK(node_of_cores(cores({}), two) == kNoNode);
  CHECK(node_of_cores(cores({6}), "package:2 numa:2 core:1 pu:2") == 3);
  CHECK(node_of_cores(cores({0}), "no topology") == kNoNode);
  // This machine, whatever it is.
  CHECK(node_of_cores(cores({0})) >= kNoNode);
  CHECK(node_of_this_thread() >= kNoNode);
}

TEST_CASE("a rank's claim about its node must be a valid number") {
  RankInfo said, heard;
  for (const int32_t node : {kNoNode, 0, 1, kMostNodes - 1}) {
    said.node = node;
    CHECK((decode(encode(said), &heard) && heard.node == node));
  }
  for (const int32_t node : {-2, kMostNodes, INT32_MAX, INT32_MIN}) {
    said.node = node;
    CHECK_FALSE(decode(encode(said), &heard));
  }
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          SystemClock clock;
          Log log;
          BackendArgs args{links, clock, log, host_ops(), 4 << 20, Deadline::after(clock, 20'000, 0), &links};
          args.node = links.rank() == 1 ? kMostNodes : 0;
          std::shared_ptr<Group> group;
          const Status status = Group::make(args, &group);
          WEFT_EXPECT(!status.ok());
          WEFT_EXPECT(status.info().ranks == std::vector<int>{1});
        })) == "");
}

TEST_CASE("the text about nodes") {
  Thresholds thresholds;
  CHECK(text(group_nodes({0, 0}), thresholds) == "");
  CHECK(text(group_nodes({0, 0, 1, 1}), thresholds) == "; 2 NUMA nodes of 2 ranks: one level");
  CHECK(text(group_nodes({0, 0, 1}), thresholds) == "; 2 NUMA nodes, unevenly used: one level");
  thresholds.two_level = 1 << 20;
  CHECK(text(group_nodes({0, 0, 1, 1}), thresholds) == "; 2 NUMA nodes of 2 ranks: two levels from 1 MiB on");
  CHECK(text(group_nodes({0, 0, 1}), thresholds) == "; 2 NUMA nodes, unevenly used: one level");
}

}  // namespace unit_shm_nodes
