// weft status: asks the live processes of this user what their ranks do, and which rank the others wait for.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/text.h"
#include "commands.h"
#include "diagnosis.h"
#include "hosts.h"
#include "status_lines.h"

namespace {

using nlohmann::json;
using weft::cat;

constexpr int kAnswerMs = 700;
constexpr size_t kMostRanksShown = 64;

struct StatusOptions {
  std::string job;    // name, or digits of a communicator; empty: all
  std::string hosts;  // empty: this one
  std::string ssh = HostsOptions().ssh;
  bool as_json = false;
  bool lines = false;  // what another `weft status` asks for
};

struct RankRow {
  int rank = 0;
  std::string host;
  int64_t pid = 0;
  std::string doing;
  std::vector<int> waits_for;
  int64_t waiting_ms = -1;  // -1: it does not wait
  bool answered = false;
};

// The ranks of a communicator. Those without a record have not answered, or run on a host that was not asked.
struct JobRow {
  std::string comm;
  std::string job;
  std::string backend;
  int size = 0;
  Diagnosis diagnosis;
  std::vector<RankRow> ranks;
};

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
  if (process == nullptr) return "no answer: its process has ended, or its host was not asked (--hosts)";
  if (process->state == 'T' || process->state == 't') return "stopped (SIGSTOP, or a debugger)";
  if (process->state == 'D') return "no answer: it waits for a device or a file system (state D)";
  if (process->state == 'Z') return "its process has ended";
  return cat("no answer within ", kAnswerMs, " ms (state ", std::string(1, process->state), ")");
}

std::string digits(uint64_t comm) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(comm));
  return text;
}

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
    JobRow job{digits(any.comm), any.job, any.backend, any.size, {}, {}};
    if (!wanted.empty() && job.job != wanted && !job.comm.starts_with(wanted)) continue;
    std::vector<FlightFile> files;
    for (const auto& [rank, comm] : ranks) files.push_back(comm->flight);
    job.diagnosis = diagnose(files);
    const std::vector<RankPlace>& places = ranks.begin()->second->places;
    for (int rank = 0; rank < any.size; ++rank) {
      RankRow row;
      row.rank = rank;
      const auto found = ranks.find(rank);
      if (found != ranks.end()) {
        row.host = found->second->flight.host;
        row.pid = found->second->flight.pid;
        row.answered = true;
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

// Returns true if a rank waits, or does not answer.
bool is_busy(const JobRow& job) {
  return std::any_of(job.ranks.begin(), job.ranks.end(),
                     [](const RankRow& row) { return !row.answered || row.waiting_ms >= 0; });
}

void print(const JobRow& job) {
  std::printf("communicator %s%s, %d ranks over %s\n", job.comm.c_str(),
              job.job.empty() ? "" : cat(" (job ", job.job, ")").c_str(), job.size, job.backend.c_str());
  std::printf("  %5s  %-16s %8s  %-12s %9s  %s\n", "rank", "host", "process", "waits for", "for",
              "what it does");
  // With many ranks, those that do not answer and those at fault come first.
  std::vector<const RankRow*> rows;
  for (const RankRow& row : job.ranks) rows.push_back(&row);
  const auto first = [&](const RankRow* row) {
    const std::vector<int>& faulty = job.diagnosis.ranks;
    return !row->answered || std::find(faulty.begin(), faulty.end(), row->rank) != faulty.end();
  };
  if (rows.size() > kMostRanksShown) std::stable_partition(rows.begin(), rows.end(), first);
  for (size_t i = 0; i < std::min(rows.size(), kMostRanksShown); ++i) {
    const RankRow& row = *rows[i];
    const std::string waited = row.waiting_ms < 0 ? "" : cat(row.waiting_ms, " ms");
    std::printf("  %5d  %-16s %8lld  %-12s %9s  %s\n", row.rank, row.host.c_str(),
                static_cast<long long>(row.pid), weft::list_text(row.waits_for, 4).c_str(), waited.c_str(),
                row.doing.c_str());
  }
  if (rows.size() > kMostRanksShown) std::printf("  and %zu more\n", rows.size() - kMostRanksShown);
  if (is_busy(job) && job.diagnosis.cause != Diagnosis::Cause::kNone)
    std::printf("\n  %s\n", job.diagnosis.text.c_str());
  std::printf("\n");
}

json json_of(const JobRow& job) {
  json ranks = json::array();
  for (const RankRow& row : job.ranks) {
    ranks.push_back({{"rank", row.rank},
                     {"host", row.host},
                     {"pid", row.pid},
                     {"answered", row.answered},
                     {"does", row.doing},
                     {"waits_for", row.waits_for},
                     {"waiting_ms", row.waiting_ms < 0 ? json(nullptr) : json(row.waiting_ms)}});
  }
  return {{"comm", job.comm},
          {"job", job.job},
          {"backend", job.backend},
          {"size", job.size},
          {"cause", name(job.diagnosis.cause)},
          {"ranks_at_fault", job.diagnosis.ranks},
          {"text", job.diagnosis.text},
          {"ranks", ranks}};
}

// Asks the processes of this host, or, over ssh and all at once, those of others.
std::string ask(const StatusOptions& options) {
  if (options.hosts.empty()) return ask_processes(kAnswerMs);
  return run_on_each(options.ssh, parse_host_list(options.hosts), {"status", "--lines"});
}

int show(const StatusOptions& options) {
  const std::string lines = ask(options);
  if (options.lines) {
    std::fwrite(lines.data(), 1, lines.size(), stdout);
    return 0;
  }
  int unread = 0;
  const std::vector<LiveProcess> processes = parse_status(lines, &unread);
  const std::vector<JobRow> jobs = jobs_of(processes, options.job);
  if (options.as_json) {
    json list = json::array();
    for (const JobRow& job : jobs) list.push_back(json_of(job));
    const json all = {{"communicators", list}, {"processes", processes.size()}, {"unread", unread}};
    std::printf("%s\n", all.dump(1, ' ', false, json::error_handler_t::replace).c_str());
    return jobs.empty() ? 1 : 0;
  }
  for (const JobRow& job : jobs) print(job);
  if (unread > 0) std::printf("%d lines of answers could not be read and were left out\n", unread);
  if (!jobs.empty()) return 0;
  std::printf("No process of this user has a communicator%s (%zu use Weft).\n",
              options.job.empty() ? "" : cat(" of the job ", options.job).c_str(), processes.size());
  return 1;
}

}  // namespace

void add_status(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* status =
      app.add_subcommand("status", "Ask running jobs what each rank does and whom it waits for");
  status->footer(
      "Asks the processes of this user on this host, or on those of --hosts. It works while ranks hang. Exit "
      "code: 0\n"
      "if a communicator is found, else 1. WEFT_STATUS=off keeps a process from answering.");
  status->add_option("JOB", options->job,
                     "a job's name (WEFT_JOB), or the first digits of a communicator (default: all)");
  status->add_option("--hosts", options->hosts,
                     "also ask there, over ssh: HOST,HOST,...; this host is one only if it is in the list");
  status->add_option("--ssh", options->ssh, "the command that runs a command on a host")
      ->option_text("COMMAND");
  status->add_flag("--json", options->as_json, "as JSON");
  status->add_flag("--lines", options->lines, "as another weft status reads it")->group("");
  status->callback([options, exit_code] { *exit_code = show(*options); });
}
