// The configuration of a process: its launch, the store's address, the secret and the settings, from the
// environment. weft_comm_create reads it with WEFT_BOOTSTRAP_ENV, and so does the weft command. Threads: any
// thread, as long as the program does not change its environment at the same time (getenv's rule).
#pragma once

#include <cstdint>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "environment/launch.h"
#include "environment/secret.h"
#include "environment/variables.h"

namespace weft {

// Settings that apply even if the program supplies the ranks and the store itself. Each has the text of the
// variable of its name (variables.cpp); empty: unset.
struct Settings {
  std::string job;  // of a process with a launcher: else the launcher's name for the job
  std::string backend;
  std::string algorithms;
  std::string shm_thresholds;
  std::string hosts;
  std::string heartbeat;
  std::string flight;
  std::string log;
  std::string log_file;
  std::string log_rotate;
  std::string metrics;
  std::string metrics_seconds;
  std::string status;
  std::string trace;
  std::string cuda_runtime;
  std::string nccl_library;
  std::string failpoints;
};

struct Environment {
  Settings settings;
  Launch launch;
  std::string store;  // WEFT_STORE; else derived from the launcher's job (default_store)
  bool store_external = false;
  SecretSource secret;
};

// Shortest heartbeat timeout that may be set.
inline constexpr int64_t kLeastHeartbeatMs = 100;

void read_settings(const Variables& variables, Settings* settings);

// Parses the environment. Pure. kArg names the variable and its value.
Status read_environment(const Variables& variables, const ProcessFacts& facts, Environment* environment);

// Returns the number of `rank` in WEFT_HOSTS; -1 if the text is empty. kArg unless there is a number (below
// kMaxRanks) for each of the `size` ranks.
Status parse_hosts(const std::string& text, int rank, int size, int* label);

// Parses WEFT_HEARTBEAT_MS: whole milliseconds, at least kLeastHeartbeatMs, or "off", which gives -1
// (WEFT_TIMEOUT_INFINITE). *ms is unchanged if text is empty. kArg states the allowed values.
Status parse_heartbeat(const std::string& text, int64_t* ms);

// Parses WEFT_LOG, WEFT_LOG_FILE and WEFT_LOG_ROTATE. kArg states the allowed values.
// rank: of this process, for the file's name and the lines; -1: unknown.
Status parse_log(const Settings& settings, int rank, LogSettings* log);

struct ObserverSettings {
  std::string metrics_file;  // empty: none
  int metrics_seconds = 15;
  bool status = true;
  std::string trace_file;  // empty: none
};
// Parses WEFT_METRICS, WEFT_METRICS_SECONDS, WEFT_STATUS and WEFT_TRACE. The files' names have job (or
// process), rank, and a number if the process has had such a file before.
Status parse_observers(const Settings& settings, const Launch& launch, ObserverSettings* observers);

// These read this process's environment.
Status process_environment(Environment* environment);
Status process_launch(Launch* launch);
Settings process_settings();

}  // namespace weft
