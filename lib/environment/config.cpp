#include "environment/config.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/process.h"
#include "base/text.h"
#include "environment/network.h"

namespace weft {

void read_settings(const Variables& variables, Settings* settings) {
  settings->job = variables.text_or_empty(Variable::kJob);
  settings->backend = variables.text_or_empty(Variable::kBackend);
  settings->algorithms = variables.text_or_empty(Variable::kAlgorithms);
  settings->shm_thresholds = variables.text_or_empty(Variable::kShmThresholds);
  settings->hosts = variables.text_or_empty(Variable::kHosts);
  settings->heartbeat = variables.text_or_empty(Variable::kHeartbeatMs);
  settings->flight = variables.text_or_empty(Variable::kFlight);
  settings->log = variables.text_or_empty(Variable::kLog);
  settings->log_file = variables.text_or_empty(Variable::kLogFile);
  settings->log_rotate = variables.text_or_empty(Variable::kLogRotate);
  settings->metrics = variables.text_or_empty(Variable::kMetrics);
  settings->metrics_seconds = variables.text_or_empty(Variable::kMetricsSeconds);
  settings->status = variables.text_or_empty(Variable::kStatus);
  settings->trace = variables.text_or_empty(Variable::kTrace);
  settings->cuda_runtime = variables.text_or_empty(Variable::kCudaRuntime);
  settings->nccl_library = variables.text_or_empty(Variable::kNcclLibrary);
  settings->failpoints = variables.text_or_empty(Variable::kFailpoints);
}

Status read_environment(const Variables& variables, const ProcessFacts& facts, Environment* environment) {
  *environment = Environment();
  read_settings(variables, &environment->settings);
  Launch& launch = environment->launch;
  WEFT_TRY(read_launch(variables, &launch));
  if (environment->settings.job.empty()) environment->settings.job = launch.job;
  environment->store = variables.text_or_empty(Variable::kStore);
  if (environment->store.empty()) WEFT_TRY(default_store(variables, facts, launch, &environment->store));
  int external = 0;
  WEFT_TRY(variables.number(Variable::kStoreExternal, 0, 1, &external));
  environment->store_external = external == 1;
  NetworkSettings network;  // read again where it is used
  WEFT_TRY(read_network(variables, &network));
  return read_secret(variables, &environment->secret);
}

Status parse_hosts(const std::string& text, int rank, int size, int* label) {
  *label = -1;
  if (text.empty()) return {};
  std::string_view rest = text;
  int ranks = 0;
  for (bool more = true; more; ranks++) {
    const size_t comma = rest.find(',');
    const std::string_view number = rest.substr(0, comma);
    more = comma != rest.npos;
    rest.remove_prefix(more ? comma + 1 : rest.size());
    int value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size() || value < 0 || value >= kMaxRanks) {
      return Status::error(
          Code::kArg,
          cat("WEFT_HOSTS is \"", text.substr(0, kShownBytes), "\", but the entry for rank ", ranks, ", \"",
              number.substr(0, kShownBytes), "\", is not a host number from 0 to ", kMaxRanks - 1));
    }
    if (ranks == rank) *label = value;
  }
  if (ranks == size) return {};
  return Status::error(Code::kArg, cat("WEFT_HOSTS has ", ranks, ranks == 1 ? " entry" : " entries",
                                       ", but the communicator has ", size, size == 1 ? " rank" : " ranks",
                                       ": give one host number for each rank, separated by commas"));
}

Status parse_heartbeat(const std::string& text, int64_t* ms) {
  if (text.empty()) return {};
  int64_t number = text == "off" ? -1 : 0;
  if (number == 0) {
    const char* const end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || parsed != end || number < kLeastHeartbeatMs) {
      return Status::error(Code::kArg, cat("WEFT_HEARTBEAT_MS is \"", text.substr(0, kShownBytes),
                                           "\", but must be a whole number of milliseconds from ",
                                           kLeastHeartbeatMs, " on, or \"off\""));
    }
  }
  *ms = number;
  return {};
}

namespace {

struct Place {
  std::string host;
  std::string rank;
  std::string process;
};

// Replaces %h, %r, %p and %% in WEFT_LOG_FILE.
Status expand(const std::string& text, const Place& place, std::string* path) {
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] != '%') {
      *path += text[i];
      continue;
    }
    const char kind = ++i < text.size() ? text[i] : '\0';
    if (kind == 'h') {
      *path += place.host;
    } else if (kind == 'r') {
      *path += place.rank;
    } else if (kind == 'p') {
      *path += place.process;
    } else if (kind == '%') {
      *path += '%';
    } else {
      return Status::error(Code::kArg, cat("WEFT_LOG_FILE is \"", text.substr(0, kShownBytes),
                                           "\": after % it may have h (host), r (rank), p (process) or %"));
    }
  }
  return {};
}

}  // namespace

Status parse_log(const Settings& settings, int rank, LogSettings* log) {
  *log = {};
  constexpr std::pair<const char*, LogLevel> kLevels[] = {{"off", LogLevel::kOff},
                                                          {"error", LogLevel::kError},
                                                          {"warn", LogLevel::kWarn},
                                                          {"info", LogLevel::kInfo},
                                                          {"debug", LogLevel::kDebug}};
  log->level = settings.log_file.empty() ? LogLevel::kOff : LogLevel::kWarn;
  if (!settings.log.empty()) {
    const auto is_it = [&](const auto& level) { return settings.log == level.first; };
    const auto* const found = std::find_if(std::begin(kLevels), std::end(kLevels), is_it);
    if (found == std::end(kLevels)) {
      return Status::error(Code::kArg, cat("WEFT_LOG is \"", settings.log.substr(0, kShownBytes),
                                           "\", but must be off, error, warn, info or debug"));
    }
    log->level = found->second;
  }
  const Place place{host_name(), rank < 0 ? "-" : cat(rank), cat(::getpid())};
  log->origin = cat(place.host, " rank ", place.rank, " process ", place.process);
  WEFT_TRY(expand(settings.log_file, place, &log->file));
  constexpr uint64_t kLeast = uint64_t{64} << 10, kMost = uint64_t{1024} << 20;
  if (!settings.log_rotate.empty() && (!parse_bytes(settings.log_rotate, &log->rotate_bytes) ||
                                       log->rotate_bytes < kLeast || log->rotate_bytes > kMost)) {
    return Status::error(Code::kArg, cat("WEFT_LOG_ROTATE is \"", settings.log_rotate.substr(0, kShownBytes),
                                         "\", but must be a size from 64K to 1024M"));
  }
  return {};
}

namespace {

// Returns the name of a file in which a context describes itself. *files: how many were named before.
std::string file_name(const Settings& settings, const Launch& launch, std::atomic<int>* files) {
  const int number = files->fetch_add(1);
  std::string job = settings.job.empty() ? launch.job : settings.job;
  if (job.empty()) job = cat(::getpid());
  const auto in_name = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-';
  };
  std::replace_if(job.begin(), job.end(), [&](char c) { return !in_name(c); }, '_');
  return cat("/weft-", job.substr(0, 100), "-rank", launch.rank, number == 0 ? "" : cat("-", number));
}

}  // namespace

Status parse_observers(const Settings& settings, const Launch& launch, ObserverSettings* observers) {
  *observers = {};
  if (!settings.status.empty() && settings.status != "on" && settings.status != "off") {
    return Status::error(Code::kArg, cat("WEFT_STATUS is \"", settings.status.substr(0, kShownBytes),
                                         "\", but must be on or off"));
  }
  observers->status = settings.status != "off";
  const std::string& seconds = settings.metrics_seconds;
  if (!seconds.empty()) {
    const char* const end = seconds.data() + seconds.size();
    const auto [parsed, error] = std::from_chars(seconds.data(), end, observers->metrics_seconds);
    if (error != std::errc() || parsed != end || observers->metrics_seconds < 1 ||
        observers->metrics_seconds > 3600) {
      return Status::error(Code::kArg, cat("WEFT_METRICS_SECONDS is \"", seconds.substr(0, kShownBytes),
                                           "\", but must be a whole number from 1 to 3600"));
    }
  }
  static std::atomic<int> metrics_files{0}, trace_files{0};  // a process may have several contexts
  if (!settings.metrics.empty())
    observers->metrics_file = cat(settings.metrics, file_name(settings, launch, &metrics_files), ".prom");
  if (!settings.trace.empty())
    observers->trace_file = cat(settings.trace, file_name(settings, launch, &trace_files), ".json");
  return {};
}

Settings process_settings() {
  Settings settings;
  (void)with_process_variables([&](const Variables& variables) -> Status {
    read_settings(variables, &settings);
    return {};
  }).ok();
  return settings;
}

Status process_environment(Environment* environment) {
  const ProcessFacts facts{::getuid(), ::getpid(), ::getppid()};
  return with_process_variables(
      [&](const Variables& variables) { return read_environment(variables, facts, environment); });
}

Status process_launch(Launch* launch) {
  *launch = Launch();
  return with_process_variables([&](const Variables& variables) { return read_launch(variables, launch); });
}

}  // namespace weft
