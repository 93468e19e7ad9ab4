// Rates of live communicators: differences of their counters between two samples. Called by `weft top`.
#pragma once

#include <map>
#include <string>
#include <vector>

struct JobRow;

struct RankRates {
  double steps = 0;       // per second
  double operations = 0;  // per second
  double bytes = 0;       // per second; payload that the rank moved
  double late_share = 0;  // the part of the steps of the others in which they waited longest for this rank
  double late_s = 0;      // for how long in the mean of these
};

struct JobRates {
  double steps = 0;       // per second, of the rank with most
  double operations = 0;  // per second, of the rank with most
  double bytes = 0;       // per second, of all ranks
  int straggler = -1;     // the rank that cost the others most time; -1: none
  std::map<int, RankRates> ranks;
};

// Threads: one thread at a time.
class RateMeter {
 public:
  // Returns the rates since the previous call, by communicator. Communicators and ranks that have no sample
  // in both calls have no rates. now_s: a steady clock.
  std::map<std::string, JobRates> take(const std::vector<JobRow>& jobs, double now_s);

 private:
  std::vector<JobRow> before_;
  double before_s_ = 0;
};
