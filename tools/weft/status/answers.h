// Answers of live processes of this user to `weft status`: lines of JSON, one for each process, followed by
// one with samples of its metrics and one for each of its communicators (lib/capi/status.cpp).
#pragma once

#include <string>
#include <vector>

#include "live_counters.h"
#include "weft/flight.h"

// A rank's process, as other ranks of its communicator know it.
struct RankPlace {
  std::string host;
  int64_t pid = 0;
};

struct LiveComm {
  std::vector<RankPlace> places;  // by rank; may be cut
  FlightFile flight;
  LiveCounters counters;
};

struct LiveProcess {
  std::string host;
  int64_t pid = 0;
  bool answered = false;
  char state = '?';  // as in /proc/PID/stat: R runs, S sleeps, D waits for a device, T is stopped
  std::vector<LiveComm> comms;
};

constexpr int kAnswerMs = 700;  // that a process has for its answer

// Asks all processes of this user in this network namespace, at the same time. Waits at most timeout_ms for
// their answers. Processes of other users that have taken such a name are left out.
std::string ask_processes(int timeout_ms);

// Parses lines of ask_processes, of this host or another one. Lines that cannot be read are left out and
// counted in *unread. No content is trusted.
std::vector<LiveProcess> parse_status(const std::string& lines, int* unread);
