#include "run_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "environment/launch.h"

namespace report {
namespace {

using weft::cat;
using weft::Code;
using weft::Status;

constexpr size_t kMostFiles = 2 * weft::kMaxRanks;
constexpr size_t kMostEventsOfRun = size_t{1} << 23;

// Replaces folders by their *.json files.
std::vector<std::string> expanded(const std::vector<std::string>& paths, UnreadFiles* damaged) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    std::filesystem::directory_iterator it(path, error);
    for (const std::filesystem::directory_iterator end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == ".json" && inside.size() < kMostFiles)
        inside.push_back(it->path().string());
    }
    if (error) damaged->emplace_back(printable(path), cat("cannot be read: ", error.message()));
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  if (files.size() > kMostFiles) {
    damaged->emplace_back("the rest", cat("is beyond the limit of ", kMostFiles, " files"));
    files.resize(kMostFiles);
  }
  return files;
}

bool is_flight(const std::string& text) {
  return text.substr(0, 64).find("\"weft_flight\"") != std::string::npos;
}

// Reads a flight record or a trace. Returns why the file cannot be used.
Status read_file(const std::string& path, RunFiles* run, std::vector<TraceFile>* traces) {
  std::string text;
  int64_t written = 0;
  WEFT_TRY(read_text(path, kMostTraceBytes, &text, &written));
  const std::string name = printable(path);
  if (is_flight(text)) {
    FlightFile flight;
    WEFT_TRY(parse_flight(text, &flight));
    flight.name = name;
    flight.written = written;
    run->flights.files.push_back(std::move(flight));
    return {};
  }
  TraceFile trace;
  WEFT_TRY(parse_trace(text, &trace));
  if (trace.comms.empty()) {
    return Status::error(
        Code::kArg, trace.events.empty()
                        ? "has no events: its process ended before it wrote them, or made no communicator"
                        : "has no communicator");
  }
  trace.name = name;
  trace.path = path;
  trace.written = written;
  if (!trace.damage.empty()) run->damaged.emplace_back(name, trace.damage);
  if (trace.left_out > 0) run->damaged.emplace_back(name, cat("has ", trace.left_out, " malformed events"));
  traces->push_back(std::move(trace));
  return {};
}

// Returns the communicator that most files have; of equals, the one with the newest file, then the largest.
const weft::TraceComm* main_comm(const std::vector<TraceFile>& traces) {
  std::map<uint64_t, std::pair<size_t, int64_t>>
      weights;  // by id: its files, and when the newest was written
  for (const TraceFile& trace : traces) {
    for (const weft::TraceComm& comm : trace.comms) {
      auto& [files, newest] = weights[comm.id];
      files++;
      newest = std::max(newest, trace.written);
    }
  }
  const weft::TraceComm* best = nullptr;
  for (const TraceFile& trace : traces) {
    for (const weft::TraceComm& comm : trace.comms) {
      const auto weight = [&](const weft::TraceComm& one) { return std::pair(weights[one.id], one.size); };
      if (best == nullptr || weight(comm) > weight(*best)) best = &comm;
    }
  }
  return best;
}

const weft::TraceComm* comm_with(const TraceFile& trace, uint64_t id) {
  const auto found = std::find_if(trace.comms.begin(), trace.comms.end(),
                                  [&](const weft::TraceComm& comm) { return comm.id == id; });
  return found == trace.comms.end() ? nullptr : &*found;
}

// Moves the traces of the run's communicator into processes: of each rank the newest one that is whole, or
// the newest if none is.
void choose_processes(std::vector<TraceFile> traces, RunFiles* run) {
  std::map<int, Process> by_rank;
  for (TraceFile& trace : traces) {
    const weft::TraceComm* const comm = comm_with(trace, run->comm);
    if (comm == nullptr) {
      run->damaged.emplace_back(trace.name, cat("belongs to another run, of ", trace.comms.front().size,
                                                " ranks, which is left out; give only its files to see it"));
      continue;
    }
    const int rank = comm->rank;
    const auto found = by_rank.find(rank);
    if (found != by_rank.end()) {
      TraceFile& other = found->second.file;
      const auto worth = [](const TraceFile& one) { return std::pair(one.damage.empty(), one.written); };
      if (worth(trace) > worth(other)) std::swap(trace, other);
      run->damaged.emplace_back(trace.name, trace.written > other.written
                                                ? cat("is left out: ", other.name,
                                                      " is an older trace of rank ", rank, ", and whole")
                                                : cat("is not the newest trace of rank ", rank));
      continue;
    }
    by_rank[rank] = {std::move(trace), rank, 0, std::nullopt};
  }
  for (auto& [rank, process] : by_rank) run->processes.push_back(std::move(process));
}

// Puts all processes on rank 0's clock. Processes with the same clock have the same offset: that of the
// process whose measurement was the most exact.
void align(RunFiles* run) {
  std::map<std::string, std::optional<weft::ClockOffset>> clocks;
  const auto key = [](const Process& process) {
    return process.file.clock.empty() ? cat("rank ", process.rank) : process.file.clock;
  };
  for (const Process& process : run->processes) {
    const std::optional<weft::ClockOffset>& its = comm_with(process.file, run->comm)->clock;
    std::optional<weft::ClockOffset>& best = clocks[key(process)];
    if (its && (!best || its->error_ns < best->error_ns)) best = its;
  }
  const bool one_clock = clocks.size() == 1;
  for (Process& process : run->processes) {
    const std::optional<weft::ClockOffset>& clock = clocks[key(process)];
    if (one_clock || clock) process.clock_error_ns = one_clock ? 0 : clock->error_ns;
    if (one_clock || !clock) continue;
    process.offset_ns = clock->offset_ns;
    for (Event& event : process.file.events) {
      event.begin_ns += clock->offset_ns;
      event.end_ns += clock->offset_ns;
    }
  }
}

std::string reasons(const UnreadFiles& damaged) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(damaged.size(), 16); i++)
    text += cat("\n  ", damaged[i].first, " ", damaged[i].second);
  if (damaged.size() > 16) text += cat("\n  and ", damaged.size() - 16, " more");
  return text;
}

}  // namespace

Status read_run(const std::vector<std::string>& paths, RunFiles* run) {
  std::vector<TraceFile> traces;
  size_t events = 0;
  for (const std::string& path : expanded(paths, &run->damaged)) {
    if (events >= kMostEventsOfRun) {
      run->damaged.emplace_back(printable(path), cat("is beyond the limit of ", kMostEventsOfRun, " events"));
      continue;
    }
    const Status status = read_file(path, run, &traces);
    if (!status.ok()) run->damaged.emplace_back(printable(path), status.text());
    events += status.ok() && !traces.empty() ? traces.back().events.size() : 0;
  }
  if (traces.empty() && run->flights.files.empty()) {
    return Status::error(
        Code::kArg, cat("no trace and no flight record can be used",
                        run->damaged.empty() ? ": there is no *.json file" : ":", reasons(run->damaged)));
  }
  if (traces.empty()) return {};
  const weft::TraceComm main = *main_comm(traces);
  run->comm = main.id;
  run->size = main.size;
  choose_processes(std::move(traces), run);
  align(run);
  return {};
}

}  // namespace report
