#include "base/log.h"

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/callback_mark.h"
#include "base/fd.h"
#include "base/guard.h"
#include "base/text.h"

namespace weft {
namespace {

LogLevel from_spdlog(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::err:
      return LogLevel::kError;
    case spdlog::level::warn:
      return LogLevel::kWarn;
    case spdlog::level::info:
      return LogLevel::kInfo;
    default:
      return LogLevel::kDebug;
  }
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kOff:
      return spdlog::level::off;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kDebug:
      return spdlog::level::debug;
  }
  return spdlog::level::off;
}

class CallbackSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit CallbackSink(Log::Sink sink) : sink_(std::move(sink)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string line(message.payload.data(), message.payload.size());
    const CallbackMark mark(CallbackMark::Calls::kNone);
    sink_(from_spdlog(message.level), line.c_str());
  }
  void flush_() override {}

 private:
  Log::Sink sink_;
};

// Passes at most kMostLines lines a second on, and says how many it left out: before the next line, or at the
// end.
class LimitedSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LimitedSink(spdlog::sink_ptr inner) : inner_(std::move(inner)) {}
  ~LimitedSink() override {
    (void)guarded_run([this] { report_left_out(); }).ok();
  }
  LimitedSink(const LimitedSink&) = delete;
  LimitedSink& operator=(const LimitedSink&) = delete;

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.time - begin_ >= std::chrono::seconds(1)) {
      begin_ = message.time;
      lines_ = 0;
      report_left_out();
    }
    if (lines_ == Log::kMostLines) {
      left_out_++;
      return;
    }
    lines_++;
    inner_->log(message);
    inner_->flush();
  }
  void flush_() override { inner_->flush(); }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    inner_->set_formatter(std::move(formatter));
  }

 private:
  void report_left_out() {
    if (left_out_ == 0) return;
    const std::string text =
        cat(left_out_, " lines were left out: at most ", Log::kMostLines, " a second are written");
    left_out_ = 0;
    inner_->log(spdlog::details::log_msg("weft", spdlog::level::warn, text));
    inner_->flush();
  }

  spdlog::sink_ptr inner_;
  spdlog::log_clock::time_point begin_{};
  int lines_ = 0;
  uint64_t left_out_ = 0;
};

// Returns the error of a WEFT_LOG_FILE to which lines cannot be appended. Opening a FIFO would wait for its
// reader.
Status check_file(const std::string& path) {
  struct stat found{};
  const bool exists = ::stat(path.c_str(), &found) == 0;
  if (exists && !S_ISREG(found.st_mode) && !S_ISCHR(found.st_mode)) {
    return Status::error(Code::kArg, cat("WEFT_LOG_FILE ", path, " is a ",
                                         S_ISDIR(found.st_mode)    ? "folder"
                                         : S_ISFIFO(found.st_mode) ? "FIFO"
                                         : S_ISSOCK(found.st_mode) ? "socket"
                                                                   : "block device",
                                         ": give the name of a file"));
  }
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644));
  return file.valid() ? Status() : Status::system(cat("cannot open WEFT_LOG_FILE ", path), errno);
}

// Opens what the settings name. A file that cannot be opened is an error here, and none of spdlog's
// exceptions.
Status open_sink(const LogSettings& settings, spdlog::sink_ptr* sink) {
  constexpr size_t kKept = 3;  // older files
  if (settings.file.empty()) {
    *sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    WEFT_TRY(check_file(settings.file));
    spdlog::file_event_handlers handlers;
    handlers.after_open = [](const spdlog::filename_t& /*path*/, std::FILE* file) {
      ::fcntl(::fileno(file), F_SETFD, FD_CLOEXEC);  // programs that the job starts do not inherit it
    };
    if (settings.rotate_bytes > 0) {
      *sink = std::make_shared<spdlog::sinks::rotating_file_sink_mt>(settings.file, settings.rotate_bytes,
                                                                     kKept, false, handlers);
    } else {
      *sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(settings.file, false, handlers);
    }
  }
  std::string origin;  // % begins a flag of spdlog's patterns
  for (const char c : settings.origin) origin += c == '%' ? "%%" : std::string(1, c);
  (*sink)->set_formatter(
      std::make_unique<spdlog::pattern_formatter>(cat("%Y-%m-%dT%H:%M:%S.%e%z ", origin, " weft %l: %v")));
  *sink = std::make_shared<LimitedSink>(std::move(*sink));
  return {};
}

}  // namespace

struct Log::Logger {
  Logger() : logger("weft") {
    // By default spdlog prints what it cannot write.
    logger.set_error_handler([](const std::string& /*text*/) {});
  }
  void add(spdlog::sink_ptr sink, LogLevel level) {
    sink->set_level(to_spdlog(level));
    logger.sinks().push_back(std::move(sink));
  }
  void raise(LogLevel level) {
    if (function != nullptr && to_spdlog(level) < function->level()) function->set_level(to_spdlog(level));
  }
  spdlog::logger logger;      // private to this context: not in spdlog's registry
  spdlog::sink_ptr function;  // the program's; null: none
};

Log::Log() : level_(LogLevel::kOff) {}

Log::Log(Sink sink, LogLevel level) : level_(sink ? level : LogLevel::kOff) {
  if (level_ == LogLevel::kOff) return;
  logger_ = std::make_unique<Logger>();
  logger_->function = std::make_shared<CallbackSink>(std::move(sink));
  logger_->add(logger_->function, level_);
  logger_->logger.set_level(to_spdlog(level_));
}

Log::~Log() = default;

Status Log::add(const LogSettings& settings) {
  if (settings.level == LogLevel::kOff) return {};
  const bool to_function = settings.file.empty() && logger_ != nullptr && logger_->function != nullptr;
  if (to_function) {
    logger_->raise(settings.level);
  } else {
    spdlog::sink_ptr sink;
    WEFT_TRY(open_sink(settings, &sink));
    if (logger_ == nullptr) logger_ = std::make_unique<Logger>();
    logger_->add(std::move(sink), settings.level);
  }
  level_ = std::max(level_, settings.level);
  logger_->logger.set_level(to_spdlog(level_));
  return {};
}

void Log::write(LogLevel level, const std::string& text) {
  if (logger_ && enabled(level)) logger_->logger.log(to_spdlog(level), spdlog::string_view_t(text));
}

}  // namespace weft
