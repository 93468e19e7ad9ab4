#include "compare.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "names.h"

namespace {

// A count that runs of earlier versions, or of other options, do not have.
double known(const nlohmann::json& row, const char* count) {
  return row.contains(count) && row.at(count).is_number() ? row.at(count).get<double>() : -1;
}

std::map<Baseline::Key, Baseline::Row> rows_of(const nlohmann::json& run) {
  std::map<Baseline::Key, Baseline::Row> rows;
  for (const nlohmann::json& row : run.at("results")) {
    const Baseline::Key key{row.at("work"), row.at("details"), row.at("bytes"), row.at("ranks")};
    rows[key] = {row.at("median_us"),      row.at("median_low_us"), row.at("median_high_us"),
                 row.at("page_faults"),    row.at("allocations"),   known(row, "system_calls"),
                 known(row, "moved_bytes")};
  }
  return rows;
}

// Now and then one more is somebody else's: the kernel's, a transport's.
bool more(double now, double before, double slack) {
  return now > before + slack && now > before * 1.1;
}

// What changed; empty: nothing beyond the noise.
std::string verdict(const Baseline::Row& now, const Baseline::Row& before, double tolerance, bool* worse) {
  const double ratio = now.median_us / before.median_us;
  std::string text;
  if (now.low_us > before.high_us && ratio > 1 + tolerance) {
    text = "SLOWER";
    *worse = true;
  } else if (now.high_us < before.low_us && ratio < 1 / (1 + tolerance)) {
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

}  // namespace

Baseline::Baseline(const std::string& path) : path_(path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  try {
    const nlohmann::json run = nlohmann::json::parse(file);
    cpu_ = run.at("machine").at("cpu");
    rows_ = rows_of(run);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(path + " is not what `weft bench --json` writes: " + error.what());
  }
}

bool Baseline::compare(const nlohmann::json& now, double tolerance) const {
  const std::string cpu = now.at("machine").at("cpu");
  if (cpu != cpu_) {
    std::printf("Another machine: %s now, %s then. Times say little.\n", cpu.c_str(), cpu_.c_str());
  }
  std::printf("%-16s %9s %6s %11s %11s %7s\n", "work", "bytes", "ranks", "then us", "now us", "ratio");
  bool worse = false;
  size_t common = 0;
  for (const auto& [key, row] : rows_of(now)) {
    const auto& [work, details, bytes, ranks] = key;
    const auto old = rows_.find(key);
    if (old == rows_.end()) continue;
    common++;
    const std::string text = verdict(row, old->second, tolerance, &worse);
    std::printf("%-16s %9s %6d %11.2f %11.2f %7.2f  %s%s%s\n", work.c_str(), bytes_text(bytes).c_str(), ranks,
                old->second.median_us, row.median_us, row.median_us / old->second.median_us, text.c_str(),
                text.empty() ? "" : "  ", details.c_str());
  }
  if (common == 0) throw std::runtime_error("nothing that was measured now is in " + path_);
  std::printf("%zu compared; slower is more than %.0f %% and outside the 99 %% intervals of both medians.\n",
              common, tolerance * 100);
  return !worse;
}
