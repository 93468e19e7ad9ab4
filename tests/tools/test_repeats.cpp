// How `weft bench --repeat` combines the runs of several processes.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "weft/bench/repeats.h"

using nlohmann::json;

namespace {

// Returns a run of one work with this median; its other numbers follow from the median and from `count`.
json run(double median, double count, const std::string& algorithm, const std::string& transports = "same") {
  const json row = {{"work", "all_reduce"},
                    {"details", "of " + std::to_string(static_cast<int>(median))},
                    {"bytes", 1000},
                    {"median_us", median},
                    {"median_low_us", median - 1},
                    {"median_high_us", median + 1},
                    {"process_medians_us", {median}},
                    {"p99_us", 2 * median},
                    {"min_us", median / 2},
                    {"wall_median_us", 3 * median},
                    {"exposed_us", nullptr},
                    {"page_faults", count},
                    {"allocations", 7 - count},
                    {"system_calls", nullptr},
                    {"moved_bytes", 10 * count},
                    {"algbw_gb_s", 1 / median},
                    {"busbw_gb_s", 2 / median},
                    {"algorithm", algorithm},
                    {"correct", true}};
  return {{"processes", 1}, {"transports", transports}, {"results", {row}}};
}

}  // namespace

TEST_CASE("times of several processes are combined by median, counts by minimum") {
  const json whole = merge({run(40, 3, "owner"), run(20, 1, "owner"), run(30, 2, "owner")});
  CHECK(whole.at("processes") == 3);
  CHECK(whole.at("transports") == "same");
  json row = whole.at("results").at(0);
  CHECK(row.at("process_medians_us") == json({40.0, 20.0, 30.0}));
  CHECK(row.at("details") == "of 30");  // of the process with the median
  for (const auto& [name, value] : {std::pair<const char*, double>{"median_us", 30},
                                    {"median_low_us", 19},
                                    {"median_high_us", 41},
                                    {"p99_us", 60},
                                    {"min_us", 10},
                                    {"wall_median_us", 90},
                                    {"page_faults", 1},
                                    {"allocations", 4},
                                    {"moved_bytes", 10}}) {
    CAPTURE(name);
    CHECK(row.at(name) == value);
  }
  CHECK(row.at("exposed_us").is_null());
  CHECK(row.at("system_calls").is_null());
  CHECK(row.at("algorithm") == "owner");
}

TEST_CASE("the median of an even number of processes lies between the middle two, and bandwidths follow it") {
  const json row =
      merge({run(10, 1, "a"), run(40, 1, "a"), run(30, 1, "a"), run(20, 1, "a")}).at("results").at(0);
  CHECK(row.at("median_us") == 25);
  CHECK(row.at("details") == "of 20");
  CHECK(std::abs(row.at("algbw_gb_s").get<double>() - 1.0 / 25) < 1e-12);
  CHECK(std::abs(row.at("busbw_gb_s").get<double>() - 2.0 / 25) < 1e-12);
}

TEST_CASE("all differences between processes are listed, and one wrong result makes the row wrong") {
  json wrong = run(20, 1, "pulled", "pull from 2 MiB");
  wrong["results"][0]["correct"] = false;
  const json whole = merge({run(10, 1, "two-shot", "one-shot"), wrong, run(30, 1, "two-shot", "one-shot")});
  CHECK(whole.at("results").at(0).at("algorithm") == "two-shot/pulled");
  CHECK(whole.at("transports") == "one-shot (2 of 3 processes); pull from 2 MiB (1 of 3 processes)");
  CHECK(whole.at("results").at(0).at("correct") == false);
}

TEST_CASE("one process is returned unchanged") {
  const json one = run(10, 1, "owner");
  CHECK(merge({one}) == one);
}
