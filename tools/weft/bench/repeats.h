// Merges several runs of the same benchmarks, by successive sets of rank processes, into one. For `weft bench
// --repeat`. Threads: one thread at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// An unnamed file that processes started from here open under path(). It ends with this object.
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

// runs: the results of json_of, at least one. Times are the medians of the processes' times. Exceptions are
// the minimum, and the interval of the median, which extends from the lowest to the highest. Counts are the
// minimum: every process has the program's own counts, and others' work only adds to them. Values that are
// not numbers come from the process with the middle median. Differing paths and thresholds are all listed.
nlohmann::json merge(const std::vector<nlohmann::json>& runs);
