#include "jobs.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "base/text.h"
#include "weft/flight_groups.h"

namespace {

using weft::cat;

constexpr size_t kMostRanksShown = 64;

int64_t waiting_ms(uint64_t now_ns, uint64_t since_ns) {
  return since_ns == 0 ? 0 : static_cast<int64_t>((now_ns - since_ns) / 1'000'000);
}

void describe(const weft::FlightRecord& record, RankRow* row) {
  if (!record.failure.ok()) {
    row->doing = cat("failed: ", record.failure.text());
    return;
  }
  // A step says most: it names the bucket, and the stage of a hook that does not return.
  std::string step;
  for (const weft::FlightLane& lane : record.lanes) {
    if (lane.has_step && lane.step.step != weft::kNoStep)
      step = cat("step ", lane.step.step, " (", lane.step.done, " of ", lane.step.buckets,
                 " buckets): ", lane.step.where);
    const weft::FlightOperation* const operation = running(lane);
    if (operation == nullptr) continue;
    row->doing = cat("in ", place_text(lane.key, operation->slot, operation->call.text()));
    row->waits_for = lane.waits_for;
    row->waiting_ms = waiting_ms(record.now_ns, operation->waiting_since_ns);
  }
  const weft::FlightMessage* const message = running(record);
  if (row->doing.empty() && message != nullptr) {
    row->doing = cat("in ", message->text());
    if (message->peer != weft::FlightMessage::kAnyPeer) row->waits_for = {message->peer};
    row->waiting_ms = waiting_ms(record.now_ns, message->waiting_since_ns);
  }
  if (!step.empty()) row->doing = row->doing.empty() ? step : cat(row->doing, ", ", step);
  if (row->doing.empty()) row->doing = cat("in no operation; ", record.operations, " completed");
}

// Returns why a process that has not answered did not.
std::string silent_text(const LiveProcess* process) {
  if (process == nullptr) {
    return "no answer: its process has ended or has WEFT_STATUS=off, or its host was not asked (--hosts)";
  }
  if (process->state == 'T' || process->state == 't') return "stopped (SIGSTOP, or a debugger)";
  if (process->state == 'D') return "no answer: it waits for a device or a file system (state D)";
  if (process->state == 'Z') return "its process has ended";
  return cat("no answer within ", kAnswerMs, " ms (state ", std::string(1, process->state), ")");
}

// Returns true if a rank waits, or does not answer.
bool is_busy(const JobRow& job) {
  return std::any_of(job.ranks.begin(), job.ranks.end(),
                     [](const RankRow& row) { return !row.answered || row.waiting_ms >= 0; });
}

std::string padded(const std::string& text, int width, bool right) {
  const auto wanted = static_cast<size_t>(width);
  const std::string space(text.size() < wanted ? wanted - text.size() : 0, ' ');
  return right ? space + text : text + space;
}

std::string rate_text(double per_second) {
  char text[32];
  std::snprintf(text, sizeof text, per_second < 100 ? "%.1f" : "%.0f", per_second);
  return text;
}

std::string bytes_rate(double per_second) {
  return weft::bytes_text(static_cast<uint64_t>(per_second)) + "/s";
}

std::string late_text(const RankRates& rates) {
  char text[48];
  std::snprintf(text, sizeof text, "%.0f %% by %.1f ms", 100 * rates.late_share, 1000 * rates.late_s);
  return rates.late_share > 0 ? text : "";
}

// One row of the table; the first one names the columns.
struct Cells {
  std::string rank, host, process, steps, operations, bytes, late, waits_for, waited, doing;
};

std::string line_of(const Cells& cells, bool with_rates) {
  std::string line = cat("  ", padded(cells.rank, 5, true), "  ", padded(cells.host, 16, false), " ",
                         padded(cells.process, 8, true), "  ");
  if (with_rates) {
    line += cat(padded(cells.steps, 8, true), " ", padded(cells.operations, 8, true), " ",
                padded(cells.bytes, 12, true), "  ", padded(cells.late, 18, false), "  ");
  }
  return line +
         cat(padded(cells.waits_for, 12, false), " ", padded(cells.waited, 9, true), "  ", cells.doing, "\n");
}

std::string row_text(const RankRow& row, const JobRates* rates) {
  Cells cells{std::to_string(row.rank),
              row.host,
              std::to_string(row.pid),
              {},
              {},
              {},
              {},
              weft::list_text(row.waits_for, 4),
              row.waiting_ms < 0 ? "" : cat(row.waiting_ms, " ms"),
              row.doing};
  if (rates == nullptr) return line_of(cells, false);
  if (const auto found = rates->ranks.find(row.rank); found != rates->ranks.end()) {
    cells.steps = rate_text(found->second.steps);
    cells.operations = rate_text(found->second.operations);
    cells.bytes = bytes_rate(found->second.bytes);
    cells.late = late_text(found->second);
  }
  return line_of(cells, true);
}

std::string summary_text(const JobRates& rates) {
  std::string text = cat("  ", rate_text(rates.steps), " steps/s, ", rate_text(rates.operations),
                         " operations/s, ", bytes_rate(rates.bytes));
  if (rates.straggler >= 0) {
    const RankRates& late = rates.ranks.at(rates.straggler);
    char percent[16];
    std::snprintf(percent, sizeof percent, "%.0f %%", 100 * late.late_share);
    text += cat("; rank ", rates.straggler, " was last in ", percent, " of the steps, by ",
                rate_text(1000 * late.late_s), " ms");
  }
  return text + "\n";
}

}  // namespace

std::vector<JobRow> jobs_of(const std::vector<LiveProcess>& processes, const std::string& wanted) {
  std::map<std::pair<std::string, int64_t>, const LiveProcess*> by_place;
  std::map<std::pair<uint64_t, int>, std::map<int, const LiveComm*>> comms;  // by communicator, then rank
  for (const LiveProcess& process : processes) {
    by_place[{process.host, process.pid}] = &process;
    for (const LiveComm& comm : process.comms)
      comms[{comm.flight.record.comm, comm.flight.record.size}][comm.flight.record.rank] = &comm;
  }
  std::vector<JobRow> jobs;
  for (const auto& [key, ranks] : comms) {
    const weft::FlightRecord& any = ranks.begin()->second->flight.record;
    JobRow job{comm_text(any), any.job, any.backend, any.size, {}, {}};
    if (!wanted.empty() && job.job != wanted && !job.comm.starts_with(wanted)) continue;
    std::vector<FlightFile> files;
    for (const auto& [rank, comm] : ranks) files.push_back(comm->flight);
    job.diagnosis = diagnose(files, RecordSource::kAnswers);
    const std::vector<RankPlace>& places = ranks.begin()->second->places;
    for (int rank = 0; rank < any.size; ++rank) {
      RankRow row;
      row.rank = rank;
      const auto found = ranks.find(rank);
      if (found != ranks.end()) {
        row.host = found->second->flight.host;
        row.pid = found->second->flight.pid;
        row.answered = true;
        row.operations = found->second->flight.record.operations;
        row.counters = found->second->counters;
        describe(found->second->flight.record, &row);
      } else if (static_cast<size_t>(rank) < places.size()) {
        row.host = places[static_cast<size_t>(rank)].host;
        row.pid = places[static_cast<size_t>(rank)].pid;
        const auto process = by_place.find({row.host, row.pid});
        row.doing = silent_text(process == by_place.end() ? nullptr : process->second);
      }
      job.ranks.push_back(std::move(row));
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

std::string text_of(const JobRow& job, const JobRates* rates) {
  std::string text = cat("communicator ", job.comm, job.job.empty() ? "" : cat(" (job ", job.job, ")"), ", ",
                         job.size, " ranks over ", job.backend, "\n");
  if (rates != nullptr) text += summary_text(*rates);
  text += line_of({"rank", "host", "process", "steps/s", "ops/s", "bytes/s", "last in steps", "waits for",
                   "for", "what it does"},
                  rates != nullptr);
  // With many ranks, those that do not answer and those at fault come first.
  std::vector<const RankRow*> rows;
  for (const RankRow& row : job.ranks) rows.push_back(&row);
  const auto first = [&](const RankRow* row) {
    const std::vector<int>& faulty = job.diagnosis.ranks;
    return !row->answered || std::find(faulty.begin(), faulty.end(), row->rank) != faulty.end();
  };
  if (rows.size() > kMostRanksShown) std::stable_partition(rows.begin(), rows.end(), first);
  for (size_t i = 0; i < std::min(rows.size(), kMostRanksShown); ++i) text += row_text(*rows[i], rates);
  if (rows.size() > kMostRanksShown) text += cat("  and ", rows.size() - kMostRanksShown, " more\n");
  if (is_busy(job) && job.diagnosis.cause != Diagnosis::Cause::kNone)
    text += cat("\n  ", job.diagnosis.text, "\n");
  return text + "\n";
}
