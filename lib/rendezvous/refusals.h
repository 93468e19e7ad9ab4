// Rate-limited log lines about refused connections, so that clients cannot fill the log. Threads: one thread
// at a time; the log is called on it.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/log.h"

namespace weft {

class Refusals {
 public:
  // who: "store", the prefix of every line. clock and log outlive this.
  Refusals(std::string who, Clock& clock, Log& log) : who_(std::move(who)), clock_(clock), log_(log) {}
  // Logs the number of refusals without a line.
  ~Refusals();
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

  // Logs a line, unless kLines were logged already in this period of kPeriodMs.
  void report(LogLevel level, const std::string& why);

  static constexpr int kLines = 10;
  static constexpr int64_t kPeriodMs = 10'000;

 private:
  void write_count();

  const std::string who_;
  Clock& clock_;
  Log& log_;
  Deadline period_end_ = Deadline::at(0);
  int lines_ = 0;                               // in this period
  uint64_t left_out_ = 0;                       // refusals without a line
  LogLevel left_out_level_ = LogLevel::kDebug;  // the most severe of them
};

}  // namespace weft
