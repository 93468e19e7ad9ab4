// weft trace explain: reads the flight records of all ranks, and names the rank and the operation at fault.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/text.h"
#include "commands.h"
#include "diagnosis.h"
#include "flight.h"

namespace {

using nlohmann::json;
using weft::cat;

constexpr size_t kMostRows = 32;

// The records of one communicator, ascending by rank.
struct Group {
  std::vector<FlightFile> files;
  int64_t written = 0;
  Diagnosis diagnosis;
  const weft::FlightRecord& record() const { return files.front().record; }
};

// Groups the records. Of several records of one rank the newest one counts.
std::vector<Group> grouped(FlightFolder* folder) {
  std::map<std::pair<uint64_t, int>, Group> groups;
  std::stable_sort(folder->files.begin(), folder->files.end(), [](const FlightFile& a, const FlightFile& b) {
    return a.record.rank != b.record.rank ? a.record.rank < b.record.rank : a.written > b.written;
  });
  for (FlightFile& file : folder->files) {
    Group& group = groups[{file.record.comm, file.record.size}];
    if (!group.files.empty() && group.files.back().record.rank == file.record.rank) {
      folder->unread.emplace_back(file.name, cat("is not the newest record of rank ", file.record.rank));
      continue;
    }
    group.written = std::max(group.written, file.written);
    group.files.push_back(std::move(file));
  }
  std::vector<Group> ordered;
  for (auto& [key, group] : groups) ordered.push_back(std::move(group));
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const Group& a, const Group& b) { return a.written < b.written; });
  for (Group& group : ordered) group.diagnosis = diagnose(group.files);
  return ordered;
}

std::string comm_text(const weft::FlightRecord& record) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(record.comm));
  return digits;
}

// One rank's line of the table: its activity, its waits, and its error.
struct Row {
  int rank = 0;
  std::string doing, waits, says;
};

Row row_of(const FlightFile& file) {
  Row row;
  row.rank = file.record.rank;
  for (const weft::FlightLane& lane : file.record.lanes) {
    const weft::FlightOperation* operation = running(lane);
    if (operation == nullptr) continue;
    row.doing = cat("in ", place_text(lane.key, operation->slot, operation->call.text()));
    if (!lane.waits_for.empty()) row.waits = weft::list_text(lane.waits_for, 4);
    if (operation->waiting_since_ns != 0) {
      const uint64_t ms = (file.record.now_ns - operation->waiting_since_ns) / 1'000'000;
      row.waits += cat(row.waits.empty() ? "" : ", ", "for ", ms, " ms");
    }
    break;
  }
  if (const weft::FlightMessage* const message = running(file.record);
      row.doing.empty() && message != nullptr) {
    row.doing = cat("in ", message->text());
    row.waits = message->peer == weft::FlightMessage::kAnyPeer ? "any" : std::to_string(message->peer);
    if (message->waiting_since_ns != 0)
      row.waits += cat(", for ", (file.record.now_ns - message->waiting_since_ns) / 1'000'000, " ms");
  }
  if (row.doing.empty()) {
    row.doing = cat("in no operation; ", file.record.operations, " completed");
  }
  row.says = file.record.failure.ok() ? "no failure" : file.record.failure.text();
  return row;
}

bool at_fault(const Group& group, int rank) {
  const std::vector<int>& ranks = group.diagnosis.ranks;
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<int> without_record(const Group& group) {
  std::vector<int> missing;
  size_t next = 0;
  for (int rank = 0; rank < group.record().size; rank++) {
    const bool there = next < group.files.size() && group.files[next].record.rank == rank;
    there ? static_cast<void>(next++) : missing.push_back(rank);
  }
  return missing;
}

std::string cut(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

void print_row(const Group& group, const Row& row) {
  std::printf("%c %5d  %-58s %-16s %s\n", at_fault(group, row.rank) ? '*' : ' ', row.rank,
              cut(row.doing, 58).c_str(), cut(row.waits, 16).c_str(), cut(row.says, 100).c_str());
}

void print(const Group& group) {
  const weft::FlightRecord& record = group.record();
  std::printf("Communicator %s%s of %d ranks over %s: %zu flight records.\n\n%s\n\n",
              comm_text(record).c_str(), record.job.empty() ? "" : cat(" (job ", record.job, ")").c_str(),
              record.size, record.backend.c_str(), group.files.size(), group.diagnosis.text.c_str());
  std::printf("%7s  %-58s %-16s %s\n", "rank", "was", "waiting", "says");
  // With many ranks, those at fault come first.
  std::vector<const FlightFile*> files;
  for (const FlightFile& file : group.files) files.push_back(&file);
  if (files.size() > kMostRows) {
    std::stable_partition(files.begin(), files.end(),
                          [&](const FlightFile* file) { return at_fault(group, file->record.rank); });
  }
  for (size_t i = 0; i < std::min(files.size(), kMostRows); i++) print_row(group, row_of(*files[i]));
  if (files.size() > kMostRows) std::printf("  and %zu more\n", files.size() - kMostRows);
  const std::vector<int> missing = without_record(group);
  for (size_t i = 0; i < std::min(missing.size(), kMostRows); i++) {
    print_row(group, {missing[i], "no flight record", "", ""});
  }
  if (missing.size() > kMostRows) std::printf("  and %zu more without one\n", missing.size() - kMostRows);
  std::printf("\n");
}

json json_of(const Group& group) {
  const Diagnosis& diagnosis = group.diagnosis;
  const weft::FlightRecord& record = group.record();
  json result{{"comm", comm_text(record)},
              {"job", record.job},
              {"size", record.size},
              {"backend", record.backend},
              {"cause", name(diagnosis.cause)},
              {"ranks", diagnosis.ranks},
              {"text", diagnosis.text},
              {"without_record", without_record(group)}};
  if (diagnosis.has_operation) {
    json& operation = result["operation"] = {{"call", diagnosis.operation}};
    if (!diagnosis.tagged) {
      operation["lane"] = diagnosis.lane.id;
      operation["slot"] = diagnosis.slot;
    }
  }
  json& records = result["records"] = json::array();
  for (const FlightFile& file : group.files) {
    const Row row = row_of(file);
    records.push_back({{"rank", row.rank},
                       {"file", file.name},
                       {"host", file.host},
                       {"pid", file.pid},
                       {"was", row.doing},
                       {"waiting", row.waits},
                       {"says", row.says}});
  }
  return result;
}

int explain(const std::string& path, bool as_json) {
  FlightFolder folder;
  if (const weft::Status status = read_flights(path, &folder); !status.ok())
    throw std::runtime_error(status.text());
  const std::vector<Group> groups = grouped(&folder);
  bool named = false;
  json list = json::array();
  for (const Group& group : groups) {
    named |= !group.diagnosis.ranks.empty();
    as_json ? list.push_back(json_of(group)) : print(group);
  }
  if (as_json) {
    json unread = json::array();
    for (const auto& [file, why] : folder.unread) unread.push_back({{"file", file}, {"why", why}});
    const json result{{"communicators", list}, {"unread", unread}};
    std::printf("%s\n", result.dump(1, ' ', false, json::error_handler_t::replace).c_str());
    return named ? 0 : 1;
  }
  for (const auto& [file, why] : folder.unread)
    std::printf("%s was left out: it %s\n", file.c_str(), why.c_str());
  if (groups.empty()) std::printf("There are no flight records in %s.\n", path.c_str());
  return named ? 0 : 1;
}

}  // namespace

void add_trace(CLI::App& app, int* exit_code) {
  CLI::App* trace = app.add_subcommand("trace", "Analyse records that ranks have written");
  trace->require_subcommand(1);
  CLI::App* command =
      trace->add_subcommand("explain", "Find the rank and the operation at fault in flight records");
  command->footer(
      "Ranks write a flight record when their communicator fails, into the folder that WEFT_FLIGHT or\n"
      "weft_context_options.flight_path names. Exit code: 0 if a rank at fault is found, else 1.");
  auto folder = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  command->add_option("DIR", *folder, "the folder of the flight records")->required();
  command->add_flag("--json", *as_json, "as JSON");
  command->callback([folder, as_json, exit_code] { *exit_code = explain(*folder, *as_json); });
}
