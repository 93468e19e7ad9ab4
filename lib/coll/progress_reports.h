// Progress reports of operations that do not advance. A rank that waits for another rank cannot tell whether
// that rank is absent or itself waits, perhaps on its own host. So a rank that has waited for a while sends
// its position and its call to all other ranks over the transport. The error of a deadline then names the
// ranks that sent no report, and ranks that wait in different calls learn of it. An operation that advances
// pays only for an occasional clock read.
//
// A communicator has one, which its lanes use whose operations do not hear from every rank at once. Needs the
// progress lock, except for construction and destruction.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/transport.h"

namespace weft::coll {

class ProgressReports {
 public:
  // transport and clock outlive it.
  ProgressReports(Transport& transport, Clock& clock, int rank, int size);
  ~ProgressReports();
  ProgressReports(const ProgressReports&) = delete;
  ProgressReports& operator=(const ProgressReports&) = delete;

  // The wait of a lane's operation.
  struct Wait {
    uint64_t lane = 0;  // lane_of
    uint64_t slot = 0;
    Descriptor descriptor;
    uint64_t idle_polls = 0;  // polls since it advanced
    uint64_t since_ns = 0;    // approximate time of its last advance
    bool reporting = false;   // has begun to send reports
    std::vector<int> unreported;
  };
  // Lanes that are pipelined with each other have different slots, and so report as two lanes.
  static uint64_t lane_of(const LaneKey& key) { return uint64_t{key.pipeline_index} << 32 | key.id; }
  // Called by a lane when an operation begins, when it has advanced, and when a poll made no progress. waits
  // returns true if it has looked for reports.
  void begins();
  void advanced(Wait* wait) { wait->idle_polls = 0; }
  bool waits(Wait* wait);
  // Returns those of `ranks`, or of all ranks, that have not reported that they reached this operation.
  std::vector<int> silent(const Wait& wait, const std::vector<int>& ranks) const;
  std::vector<int> silent(const Wait& wait) const;
  // Returns a rank that waits in the same operation with a different call, and that call.
  std::optional<std::pair<int, Descriptor>> different(const Wait& wait) const;

 private:
  // The report on the wire.
  struct Report {
    uint64_t lane = 0;
    uint64_t arrived = 0;  // the slot, plus one
  };
  struct Arrival {
    uint64_t end = 0;  // Report::arrived
    Descriptor descriptor;
  };
  struct Line {
    Message receive;
    Message send;
    Report incoming;
    Report outgoing;
    uint64_t received = 0;  // notes
    uint64_t sent = 0;
    std::map<uint64_t, Arrival> arrived;  // by lane; few entries
  };
  void listen(int peer);
  void receive_reports();
  void send_reports(Wait* wait);

  Transport& transport_;
  Clock& clock_;
  const int rank_;
  std::vector<Line> lines_;  // by rank; never moves
  bool listens_ = false;
  uint32_t begun_ = 0;
};

}  // namespace weft::coll
