// The samples in answers to `weft status`, from processes that nobody needs to trust.
#include "support/catch.h"
#include "weft/status/live_counters.h"

namespace {

// Returns the counters of the only rank in the samples.
LiveCounters only(const std::string& samples) {
  const CountersByRank all = parse_counters(samples);
  REQUIRE(all.size() == 1);
  return all.begin()->second;
}

}  // namespace

TEST_CASE("samples of reducers are added up, by communicator and rank") {
  const CountersByRank all = parse_counters(
      "weft_reducer_steps_total{comm=\"ab\",rank=\"1\",hook=\"allreduce\",result=\"synchronised\"} 7\n"
      "weft_reducer_steps_total{comm=\"ab\",rank=\"1\",hook=\"fp16\",result=\"synchronised\"} 3\n"
      "weft_reducer_steps_total{comm=\"ab\",rank=\"1\",hook=\"fp16\",result=\"failed\"} 100\n"
      "weft_reducer_straggler_steps_total{comm=\"ab\",rank=\"1\",hook=\"fp16\",for_rank=\"2\"} 4\n"
      "weft_reducer_straggler_seconds_total{comm=\"ab\",rank=\"1\",hook=\"fp16\",for_rank=\"2\"} "
      "0.250000000\n"
      "weft_comm_bytes_total{comm=\"ab\",rank=\"1\",way=\"shared\"} 1000\n"
      "weft_comm_bytes_total{comm=\"ab\",rank=\"1\",way=\"sent\"} 10\n"
      "weft_comm_bytes_total{comm=\"ab\",rank=\"1\",way=\"received\"} 5000\n"
      "weft_comm_bytes_total{comm=\"cd\",rank=\"0\",way=\"direct\"} 1\n");
  REQUIRE(all.size() == 2);
  const LiveCounters& one = all.at({"ab", 1});
  CHECK(one.steps == 10);
  CHECK(one.bytes == 1010);
  REQUIRE(one.waited.size() == 1);
  CHECK(one.waited.at(2).steps == 4);
  CHECK(one.waited.at(2).seconds == 0.25);
  CHECK(all.at({"cd", 0}).bytes == 1);
}

TEST_CASE("a label may contain any character") {
  CHECK(
      only("weft_comm_bytes_total{comm=\"ab\",rank=\"0\",job=\"a\\\"},b=\\\\\\n\",way=\"sent\"} 3\n").bytes ==
      3);
}

TEST_CASE("lines that are no samples are left out") {
  for (const char* line :
       {"", "#", "{", "weft_comm_bytes_total 3", "weft_comm_bytes_total{", "weft_comm_bytes_total{rank=\"0",
        "weft_comm_bytes_total{rank=\"0\"", "weft_comm_bytes_total{rank=\"0\"}",
        "weft_comm_bytes_total{rank=\"0\"} ", "weft_comm_bytes_total{rank=\"0\"} x",
        "weft_comm_bytes_total{rank=\"0\"} 3x", "weft_comm_bytes_total{rank=\"0\"} nan",
        "weft_comm_bytes_total{rank=\"0\"} inf", "weft_comm_bytes_total{rank=\"-1\"} 3",
        "weft_comm_bytes_total{rank=\"65536\"} 3", "weft_comm_bytes_total{rank=\"99999999999\"} 3",
        "weft_comm_bytes_total{rank=\"0\\"}) {
    CAPTURE(line);
    CHECK(parse_counters(line).empty());
  }
  CHECK(only("nonsense\nweft_comm_bytes_total{rank=\"0\",way=\"sent\"} 3\nweft_comm").bytes == 3);
  CHECK(only("weft_reducer_straggler_steps_total{rank=\"0\",for_rank=\"x\"} 3\n").waited.empty());
}
