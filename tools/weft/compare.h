// Two runs of the benchmarks, beside each other.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tuple>

// What --json wrote in an earlier run.
class Baseline {
 public:
  // Work, details, bytes, ranks.
  using Key = std::tuple<std::string, std::string, uint64_t, int>;
  struct Row {
    double median_us = 0, low_us = 0, high_us = 0;
    double page_faults = 0, allocations = 0;
    double system_calls = -1, moved_bytes = -1;  // negative: not known
  };

  // Throws std::runtime_error, with the path, for a file that is none of ours.
  explicit Baseline(const std::string& path);
  // Print what is slower or faster now, and what counts more page faults, allocations, system calls or moved
  // bytes a call. Slower: the intervals that hold the medians with 99 % do not touch, and the median grew by
  // more than `tolerance` (0.1: a tenth). Returns false if something is slower or counts more. Throws
  // std::runtime_error if no work is in both.
  bool compare(const nlohmann::json& now, double tolerance) const;

 private:
  const std::string path_;
  std::string cpu_;
  std::map<Key, Row> rows_;
};
