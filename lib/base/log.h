// The context's log. Lines go to the program's log function, and where the environment says (WEFT_LOG). Only
// log.cpp uses spdlog. Threads: any thread; lines are delivered one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace weft {

enum class LogLevel : int { kOff = 0, kError = 1, kWarn = 2, kInfo = 3, kDebug = 4 };

// The log that the environment asks for.
struct LogSettings {
  LogLevel level = LogLevel::kOff;
  std::string file;           // empty: the program's function, or standard error
  uint64_t rotate_bytes = 0;  // size at which the file begins anew; 0: never
  std::string origin;         // host, rank and process, for each line of the file or of standard error
};

class Log {
 public:
  using Sink = std::function<void(LogLevel, const char* line)>;

  Log();  // a log without output
  Log(Sink sink, LogLevel level);
  ~Log();
  // Adds what the environment asks for: raises the level of the program's function, or also writes lines into
  // a file or to standard error, at most kMostLines of them a second. A line that cannot be written is lost;
  // a file system that hangs stops the thread that logs. Call it before other threads use the log. kSystem:
  // the file cannot be opened.
  Status add(const LogSettings& settings);
  static constexpr int kMostLines = 200;
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool enabled(LogLevel level) const { return level <= level_; }
  void write(LogLevel level, const std::string& text);
  void error(const std::string& text) { write(LogLevel::kError, text); }
  void warn(const std::string& text) { write(LogLevel::kWarn, text); }
  void info(const std::string& text) { write(LogLevel::kInfo, text); }
  void debug(const std::string& text) { write(LogLevel::kDebug, text); }

 private:
  struct Logger;
  LogLevel level_;
  std::unique_ptr<Logger> logger_;
};

}  // namespace weft
