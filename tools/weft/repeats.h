// Several runs of the same benchmarks, by one set of rank processes after another, as one. For
// `weft bench --repeat`. Threads: one thread at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// A file without a name that processes started from here see under path(), and that is gone with this.
class PassedFile {
 public:
  PassedFile();  // throws std::system_error
  PassedFile(const PassedFile&) = delete;
  PassedFile& operator=(const PassedFile&) = delete;
  ~PassedFile();
  std::string path() const;

 private:
  const int fd_;
};

// runs: what json_of made in each, at least one. Times are the medians of the processes' times, but for the
// least and for the interval of the median, which is from the lowest to the highest. Counts are the least:
// what the program does by itself is in every process, and others' work only adds. What is no number is that
// of the process whose median is the middle one; paths and thresholds that differ are all named.
nlohmann::json merge(const std::vector<nlohmann::json>& runs);
