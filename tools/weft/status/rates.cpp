#include "rates.h"

#include <algorithm>

#include "jobs.h"

namespace {

// The waits of the other ranks for one rank, between the samples.
struct Late {
  double steps = 0, seconds = 0;
  double of_steps = 0;  // steps of the ranks that say so
};

// Counters begin anew in a new process.
double grown(double now, double before) {
  return std::max(now - before, 0.0);
}

const RankRow* answered_row(const JobRow& job, int rank) {
  const auto found = std::find_if(job.ranks.begin(), job.ranks.end(),
                                  [&](const RankRow& row) { return row.rank == rank && row.answered; });
  return found == job.ranks.end() ? nullptr : &*found;
}

void add_waits(const LiveCounters& now, const LiveCounters& before, std::map<int, Late>* late) {
  for (const auto& [rank, waited] : now.waited) {
    const auto earlier = before.waited.find(rank);
    const LiveCounters::Waited was =
        earlier == before.waited.end() ? LiveCounters::Waited() : earlier->second;
    (*late)[rank].steps += grown(waited.steps, was.steps);
    (*late)[rank].seconds += grown(waited.seconds, was.seconds);
    (*late)[rank].of_steps += grown(now.steps, before.steps);
  }
}

JobRates rates_of(const JobRow& now, const JobRow& before, double seconds) {
  JobRates job;
  std::map<int, Late> late;
  for (const RankRow& row : now.ranks) {
    const RankRow* const was = answered_row(before, row.rank);
    if (!row.answered || was == nullptr) continue;
    RankRates& rank = job.ranks[row.rank];
    rank.steps = grown(row.counters.steps, was->counters.steps) / seconds;
    rank.operations =
        grown(static_cast<double>(row.operations), static_cast<double>(was->operations)) / seconds;
    rank.bytes = grown(row.counters.bytes, was->counters.bytes) / seconds;
    job.steps = std::max(job.steps, rank.steps);
    job.operations = std::max(job.operations, rank.operations);
    job.bytes += rank.bytes;
    add_waits(row.counters, was->counters, &late);
  }
  double most = 0;
  for (const auto& [rank, waits] : late) {
    const auto found = job.ranks.find(rank);
    if (found == job.ranks.end() || waits.steps <= 0) continue;
    found->second.late_share = waits.of_steps > 0 ? std::min(waits.steps / waits.of_steps, 1.0) : 0;
    found->second.late_s = waits.seconds / waits.steps;
    if (waits.seconds <= most) continue;
    most = waits.seconds;
    job.straggler = rank;
  }
  return job;
}

}  // namespace

std::map<std::string, JobRates> RateMeter::take(const std::vector<JobRow>& jobs, double now_s) {
  std::map<std::string, JobRates> rates;
  for (const JobRow& job : jobs) {
    const auto before = std::find_if(before_.begin(), before_.end(),
                                     [&](const JobRow& other) { return other.comm == job.comm; });
    if (before != before_.end() && now_s > before_s_)
      rates[job.comm] = rates_of(job, *before, now_s - before_s_);
  }
  before_ = jobs;
  before_s_ = now_s;
  return rates;
}
