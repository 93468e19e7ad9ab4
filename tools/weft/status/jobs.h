// The communicators of live processes, what each of their ranks does, and the table that shows it. Called by
// `weft status` and `weft top`. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "answers.h"
#include "live_counters.h"
#include "rates.h"
#include "weft/diagnosis.h"

struct RankRow {
  int rank = 0;
  std::string host;
  int64_t pid = 0;
  std::string doing;
  std::vector<int> waits_for;
  int64_t waiting_ms = -1;  // -1: it does not wait
  bool answered = false;
  uint64_t operations = 0;  // completed
  LiveCounters counters;
};

// The ranks of a communicator. Those that have not answered may run on a host that was not asked.
struct JobRow {
  std::string comm;
  std::string job;
  std::string backend;
  int size = 0;
  Diagnosis diagnosis;
  std::vector<RankRow> ranks;
};

// wanted: a job's name or the first digits of a communicator; empty: all.
std::vector<JobRow> jobs_of(const std::vector<LiveProcess>& processes, const std::string& wanted);

// Returns a title, a table of the ranks, and the diagnosis if a rank waits or does not answer. rates: adds a
// line and columns of them; may be null.
std::string text_of(const JobRow& job, const JobRates* rates);
