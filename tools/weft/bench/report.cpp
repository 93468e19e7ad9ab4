// Formats the results of the benchmarks as a table and as JSON.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "measure.h"
#include "names.h"

namespace {

// Returns GB/s, where 1 GB is 1e9 bytes.
double algorithm_bandwidth(const Result& result) {
  return result.times.median_us > 0 ? static_cast<double>(result.bytes) / result.times.median_us * 1e-3 : 0;
}

// Returns null for a negative value, which means unknown.
nlohmann::json or_null(double value) {
  return value < 0 ? nlohmann::json() : nlohmann::json(value);
}

nlohmann::json json_of(const std::optional<HeldUp>& held_up) {
  if (!held_up.has_value() || held_up->rank < 0) return {};
  return {{"rank", held_up->rank},
          {"steps", held_up->steps},
          {"of_steps", held_up->of_steps},
          {"mean_us", held_up->mean_us}};
}

}  // namespace

void print_results(const nlohmann::json& run) {
  std::printf("%-16s %9s %11s %11s %11s %12s %8s %8s  %-12s %s\n", "work", "bytes", "median us", "p99 us",
              "min us", "+rewrite us", "algbw", "busbw", "algorithm", "");
  for (const nlohmann::json& row : run.at("results")) {
    const auto text = [&](const char* name) { return row.at(name).get<std::string>(); };
    const auto number = [&](const char* name) { return row.at(name).get<double>(); };
    const std::string remarks = text("remarks");
    // If the bus bandwidth is meaningless, so is the algorithm bandwidth.
    const bool wide = number("busbw_gb_s") > 0;
    std::printf("%-16s %9s %11.2f %11.2f %11.2f %12.2f %8.2f %8.2f  %-12s %s%s%s%s\n", text("work").c_str(),
                bytes_text(row.at("bytes")).c_str(), number("median_us"), number("p99_us"), number("min_us"),
                number("wall_median_us"), wide ? number("algbw_gb_s") : 0, number("busbw_gb_s"),
                text("algorithm").c_str(), text("details").c_str(), remarks.empty() ? "" : ", ",
                remarks.c_str(), row.at("correct") == false ? "  WRONG RESULT" : "");
  }
  std::printf(
      "Times are the slowest rank's; +rewrite is the operation and writing its input; algbw and busbw in "
      "GB/s.\n");
  if (const size_t processes = run.at("processes"); processes > 1) {
    std::printf("Of %zu processes, one after the other: medians of their times, and the least of all.\n",
                processes);
  }
  const std::string transports = run.at("transports");
  if (!transports.empty())
    std::printf("%s: %s.\n", run.at("backend").get<std::string>().c_str(), transports.c_str());
  std::fflush(stdout);
}

nlohmann::json json_of(const std::vector<Result>& results, const nlohmann::json& machine, const Job& job,
                       const BenchOptions& options) {
  nlohmann::json list = nlohmann::json::array();
  for (const Result& result : results) {
    list.push_back({{"work", result.work},
                    {"details", result.details},
                    {"remarks", result.remarks},
                    {"bytes", result.bytes},
                    {"count", result.count},
                    {"ranks", job.size()},
                    {"iterations", result.times.iterations},
                    {"calls", result.times.calls},
                    {"median_us", result.times.median_us},
                    {"median_low_us", result.times.median_low_us},
                    {"median_high_us", result.times.median_high_us},
                    {"process_medians_us", nlohmann::json::array({result.times.median_us})},
                    {"p99_us", result.times.p99_us},
                    {"min_us", result.times.least_us},
                    {"wall_median_us", result.times.wall_median_us},
                    {"page_faults", result.times.page_faults},
                    {"allocations", result.times.allocations},
                    {"system_calls", or_null(result.times.system_calls)},
                    {"moved_bytes", result.times.moved_bytes},
                    {"exposed_us", or_null(result.exposed_us)},
                    {"straggler", json_of(result.held_up)},
                    {"algbw_gb_s", algorithm_bandwidth(result)},
                    {"busbw_gb_s", algorithm_bandwidth(result) * result.bus_factor},
                    {"algorithm", result.algorithm},
                    {"correct", result.checked ? nlohmann::json(result.times.correct) : nlohmann::json()}});
    if (result.memory.gradients == 0) continue;
    list.back()["memory"] = {{"gradient_bytes", result.memory.gradients},
                             {"bucket_bytes", result.memory.buckets},
                             {"other_bytes", result.memory.other}};
  }
  const weft_comm_info info = job.info();
  return {{"machine", machine},
          {"processes", 1},
          {"backend", info.backend},
          {"bytes_shared", info.bytes_shared},
          {"bytes_direct", info.bytes_direct},
          {"bytes_sent", info.bytes_sent},
          {"transports", info.transports},
          {"memory", options.memory},
          {"pinned", options.pin},
          {"results", list}};
}
