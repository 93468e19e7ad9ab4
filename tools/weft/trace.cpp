// weft trace explain: reads the flight records of all ranks, and names the rank and the operation at fault.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/text.h"
#include "commands.h"
#include "flight_groups.h"

namespace {

using nlohmann::json;
using weft::cat;

constexpr size_t kMostRows = 32;

std::string cut(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

void print_row(const FlightGroup& group, const FlightRow& row) {
  std::printf("%c %5d  %-58s %-16s %s\n", at_fault(group, row.rank) ? '*' : ' ', row.rank,
              cut(row.doing, 58).c_str(), cut(row.waits, 16).c_str(), cut(row.says, 100).c_str());
}

void print(const FlightGroup& group) {
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

json json_of(const FlightGroup& group) {
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
    const FlightRow row = row_of(file);
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
  const std::vector<FlightGroup> groups = grouped(&folder);
  bool named = false;
  json list = json::array();
  for (const FlightGroup& group : groups) {
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
  add_trace_merge(*trace, exit_code);
  add_trace_convert(*trace, exit_code);
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
