// The context's log: lines go only to the user's callback. Only log.cpp uses spdlog. Threads: any thread;
// lines are delivered one at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace weft {

enum class LogLevel : int { kOff = 0, kError = 1, kWarn = 2, kInfo = 3, kDebug = 4 };

class Log {
 public:
  using Sink = std::function<void(LogLevel, const char* line)>;

  Log();  // a log without output
  Log(Sink sink, LogLevel level);
  ~Log();
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
