// Two runs of the benchmarks, beside each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tuple>
#include <vector>

constexpr size_t kMostRepeats = 100;  // sets of processes in a run

// A run to compare with: what --json wrote in an earlier one, or another program's.
class Baseline {
 public:
  // Work, details, bytes, ranks.
  using Key = std::tuple<std::string, std::string, uint64_t, int>;
  struct Row {
    double median_us = 0, low_us = 0, high_us = 0;
    std::vector<double> processes;  // the median of each; runs of earlier versions have one
    double page_faults = 0, allocations = 0;
    double system_calls = -1, moved_bytes = -1;  // negative: not known
  };

  // Throws std::runtime_error, with the path, for a file that is none of ours.
  explicit Baseline(const std::string& path);
  // Of a run, and what to call it.
  Baseline(const nlohmann::json& run, std::string name);
  // Print what is slower or faster now, and what counts more page faults, allocations, system calls or moved
  // bytes a call. Slower: the median grew by more than `tolerance` (0.1: a tenth), and that is beyond the
  // noise. Where there are enough processes then and now, as five and five, by the exact rank-sum test of
  // their medians, one-sided, at 1 %; else if the intervals that hold the medians with 99 % do not touch.
  // Works that only one of the two has are named. Returns false if something is slower or counts more. Throws
  // std::runtime_error if no work is in both.
  bool compare(const nlohmann::json& now, double tolerance) const;

 private:
  std::string name_;
  std::string cpu_, backend_;
  std::map<Key, Row> rows_;
};
