#include "compare.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "names.h"
#include "rank_sum.h"

namespace {

constexpr double kLevel = 0.01;  // probability of a difference that means nothing
constexpr size_t kFewest = 3;    // processes on either side: one or two may fall into the same bad moment

// Reads a count that runs of earlier versions, or with other options, lack; negative: unknown.
double known(const nlohmann::json& row, const char* count) {
  return row.contains(count) && row.at(count).is_number() ? row.at(count).get<double>() : -1;
}

// Returns each process's median; earlier versions had one process.
std::vector<double> processes_of(const nlohmann::json& row) {
  if (!row.contains("process_medians_us")) return {row.at("median_us").get<double>()};
  const auto medians = row.at("process_medians_us").get<std::vector<double>>();
  const auto negative = [](double median) { return median < 0; };
  if (medians.empty() || medians.size() > kMostRepeats ||
      std::any_of(medians.begin(), medians.end(), negative)) {
    throw std::invalid_argument("process_medians_us has " + std::to_string(medians.size()) +
                                " times, expected 1 to " + std::to_string(kMostRepeats) + ", none negative");
  }
  return medians;
}

std::map<Baseline::Key, Baseline::Row> rows_of(const nlohmann::json& run) {
  std::map<Baseline::Key, Baseline::Row> rows;
  for (const nlohmann::json& row : run.at("results")) {
    const Baseline::Key key{row.at("work"), row.at("details"), row.at("bytes"), row.at("ranks")};
    rows[key] = {row.at("median_us"),        row.at("median_low_us"),  row.at("median_high_us"),
                 processes_of(row),          row.at("page_faults"),    row.at("allocations"),
                 known(row, "system_calls"), known(row, "moved_bytes")};
  }
  return rows;
}

// Allows for a few counts that have other causes, such as the kernel or a transport.
bool more(double now, double before, double slack) {
  return now > before + slack && now > before * 1.1;
}

// The numbers of processes before and now.
using Processes = std::pair<size_t, size_t>;

// True if the rank-sum test can find a difference at its level with these numbers of processes.
bool enough(const Processes& processes) {
  const auto [then, now] = processes;
  return std::min(then, now) >= kFewest && rank_sum_chance(then, now, then * now) <= kLevel;
}

// True if `longer` has longer times than `shorter`, beyond the noise.
bool differ(const Baseline::Row& shorter, const Baseline::Row& longer) {
  const Processes processes{shorter.processes.size(), longer.processes.size()};
  if (!enough(processes)) return longer.low_us > shorter.high_us;
  const uint64_t pairs = pairs_above(shorter.processes, longer.processes);
  return rank_sum_chance(processes.first, processes.second, pairs) <= kLevel;
}

// Describes the change; empty: nothing beyond the noise.
std::string verdict(const Baseline::Row& now, const Baseline::Row& before, double tolerance, bool* worse) {
  const double ratio = now.median_us / before.median_us;
  std::string text;
  if (ratio > 1 + tolerance && differ(before, now)) {
    text = "SLOWER";
    *worse = true;
  } else if (ratio < 1 / (1 + tolerance) && differ(now, before)) {
    text = "faster";
  }
  const auto counts = [&](double count, double old, double slack, const char* what) {
    if (!more(count, old, slack)) return;
    char words[96];
    std::snprintf(words, sizeof words, "%s%.1f %s A CALL, WERE %.1f", text.empty() ? "" : ", ", count, what,
                  old);
    text += words;
    *worse = true;
  };
  counts(now.page_faults, before.page_faults, 4, "PAGE FAULTS");
  counts(now.allocations, before.allocations, 1, "ALLOCATIONS");
  if (before.system_calls >= 0) counts(now.system_calls, before.system_calls, 1, "SYSTEM CALLS");
  if (before.moved_bytes >= 0) counts(now.moved_bytes, before.moved_bytes, 64, "BYTES MOVED");
  return text;
}

std::string counted(size_t processes) {
  return std::to_string(processes) + (processes == 1 ? " process" : " processes");
}

// Prints the rule that decides whether times differ.
void print_rule(size_t works, const Processes& processes, double tolerance) {
  const auto [then, now] = processes;
  std::printf("%zu compared; slower is more than %.0f %% and ", works, tolerance * 100);
  if (enough(processes)) {
    std::printf("too many longer pairs for chance (%.0f %%), by the rank-sum test of %s then and %zu now.\n",
                kLevel * 100, counted(then).c_str(), now);
  } else {
    std::printf(
        "outside the 99 %% intervals of both medians: %s then and %zu now are too few for the rank-sum test; "
        "--repeat 5 in both runs is enough.\n",
        counted(then).c_str(), now);
  }
}

// Prints the works that only one of the runs has.
void print_alone(const std::map<Baseline::Key, Baseline::Row>& rows,
                 const std::map<Baseline::Key, Baseline::Row>& others, const std::string& where) {
  for (const auto& [key, row] : rows) {
    if (others.contains(key)) continue;
    const auto& [work, details, bytes, ranks] = key;
    std::printf("%s: %s of %s, %d ranks, %s\n", where.c_str(), work.c_str(), bytes_text(bytes).c_str(), ranks,
                details.c_str());
  }
}

}  // namespace

Baseline::Baseline(const std::string& path) : name_(path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open the earlier results " + path);
  try {
    *this = Baseline(nlohmann::json::parse(file), path);
  } catch (const std::exception& error) {
    throw std::runtime_error(path + " is not a file that `weft bench --json` wrote: " + error.what());
  }
}

Baseline::Baseline(const nlohmann::json& run, std::string name)
    : name_(std::move(name)),
      cpu_(run.at("machine").at("cpu")),
      backend_(run.at("backend")),
      rows_(rows_of(run)) {}

bool Baseline::compare(const nlohmann::json& now, double tolerance) const {
  const std::string cpu = now.at("machine").at("cpu");
  if (cpu != cpu_) {
    std::printf("The machines differ: %s now, %s then. Times are hardly comparable.\n", cpu.c_str(),
                cpu_.c_str());
  }
  const std::string backend = now.at("backend");
  if (backend != backend_) {
    std::printf("The backends differ: %s now, %s then.\n", backend.c_str(), backend_.c_str());
  }
  std::printf("%-16s %9s %6s %11s %11s %7s %14s\n", "work", "bytes", "ranks", "then us", "now us", "ratio",
              "longer pairs");
  bool worse = false;
  std::map<Processes, size_t> compared;
  const std::map<Key, Row> rows = rows_of(now);
  for (const auto& [key, row] : rows) {
    const auto& [work, details, bytes, ranks] = key;
    const auto old = rows_.find(key);
    if (old == rows_.end()) continue;
    const Baseline::Row& before = old->second;
    ++compared[{before.processes.size(), row.processes.size()}];
    const std::string pairs = std::to_string(pairs_above(before.processes, row.processes)) + " of " +
                              std::to_string(before.processes.size() * row.processes.size());
    const std::string text = verdict(row, before, tolerance, &worse);
    std::printf("%-16s %9s %6d %11.2f %11.2f %7.2f %14s  %s%s%s\n", work.c_str(), bytes_text(bytes).c_str(),
                ranks, before.median_us, row.median_us, row.median_us / before.median_us, pairs.c_str(),
                text.c_str(), text.empty() ? "" : "  ", details.c_str());
  }
  if (compared.empty())
    throw std::runtime_error(
        name_ + " has none of the measurements of this run: work, details, bytes and ranks must be equal");
  print_alone(rows, rows_, "Not in " + name_);
  print_alone(rows_, rows, "Not measured now");
  for (const auto& [processes, works] : compared) print_rule(works, processes, tolerance);
  return !worse;
}
