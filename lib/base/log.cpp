#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <mutex>
#include <utility>

#include "base/callback_mark.h"

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

}  // namespace

struct Log::Logger {
  Logger(Sink sink, LogLevel level) : logger("weft", std::make_shared<CallbackSink>(std::move(sink))) {
    logger.set_level(to_spdlog(level));
  }
  spdlog::logger logger;  // private to this context: not in spdlog's registry
};

Log::Log() : level_(LogLevel::kOff) {}

Log::Log(Sink sink, LogLevel level) : level_(sink ? level : LogLevel::kOff) {
  if (level_ != LogLevel::kOff) logger_ = std::make_unique<Logger>(std::move(sink), level_);
}

Log::~Log() = default;

void Log::write(LogLevel level, const std::string& text) {
  if (logger_ && enabled(level)) logger_->logger.log(to_spdlog(level), spdlog::string_view_t(text));
}

}  // namespace weft
