// Compares two runs of the benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tuple>
#include <vector>

constexpr size_t kMostRepeats = 100;  // sets of processes in a run

// A run to compare with: the --json file of an earlier run, or another program's results.
class Baseline {
 public:
  // Work, details, bytes, ranks.
  using Key = std::tuple<std::string, std::string, uint64_t, int>;
  struct Row {
    double median_us = 0, low_us = 0, high_us = 0;
    std::vector<double> processes;  // the median of each; runs of earlier versions have one
    double page_faults = 0, allocations = 0;
    double system_calls = -1, moved_bytes = -1;  // negative: unknown
  };

  // Throws std::runtime_error, with the path, for a file that `weft bench` has not written.
  explicit Baseline(const std::string& path);
  // Takes a run, and the name that reports give it.
  Baseline(const nlohmann::json& run, std::string name);
  // Prints works that are slower or faster now, and works with more page faults, allocations, system calls or
  // moved bytes per call. Slower: the median grew by more than `tolerance` (0.1: a tenth), beyond the noise.
  // With enough processes before and now, such as five each, the exact rank-sum test of their medians
  // decides, one-sided, at 1 %. Otherwise the 99 % intervals of the medians must not touch. Works that only
  // one of the two has are named. Returns false if something is slower or has higher counts. Throws
  // std::runtime_error if no work is in both.
  bool compare(const nlohmann::json& now, double tolerance) const;

 private:
  std::string name_;
  std::string cpu_, backend_;
  std::map<Key, Row> rows_;
};
