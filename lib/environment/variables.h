// Weft's environment variables: the table of all of them, and the code that reads the environment; no other
// file does. Threads: any thread, as long as the program does not change its environment at the same time
// (getenv's rule).
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace weft {

// In the order of the table.
enum class Variable : uint8_t {
  kRank,
  kSize,
  kLocalRank,
  kLocalSize,
  kStore,
  kStoreExternal,
  kPorts,
  kInterfaces,
  kJob,
  kSecretFile,
  kSecret,
  kBackend,
  kAlgorithms,
  kShmThresholds,
  kHeartbeatMs,
  kHosts,
  kFlight,
  kLog,
  kLogFile,
  kLogRotate,
  kMetrics,
  kMetricsSeconds,
  kStatus,
  kTrace,
  kCudaRuntime,
  kNcclLibrary,
  kLibrary,
  kJaxLibrary,
  kLightgbmLibrary,
  kFailpoints,
};

struct VariableInfo {
  Variable variable;
  const char* name;
  const char* values;   // that are allowed
  const char* unset;    // what holds if it is not set
  const char* meaning;  // one sentence
  bool equal = false;   // it must be equal on all ranks
  bool secret = false;  // its value is never shown
};

// Returns the table, in the order of the enum.
std::span<const VariableInfo> variable_table();
const char* name(Variable variable);  // "WEFT_RANK"

// Returns the value of a variable, or null.
using Getter = std::function<const char*(const char* name)>;

inline constexpr size_t kShownBytes = 64;  // most bytes of a value that an error shows; it may be anything

// Reads variables, treating empty ones as unset, and makes the errors about them. The getter must live
// longer.
class Variables {
 public:
  explicit Variables(const Getter& get) : get_(get) {}

  const char* text(const char* name) const {
    const char* value = get_(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
  }
  const char* text(Variable variable) const { return text(weft::name(variable)); }
  bool has(const char* name) const { return text(name) != nullptr; }
  bool has(Variable variable) const { return text(variable) != nullptr; }
  std::string text_or_empty(const char* name) const;
  std::string text_or_empty(Variable variable) const { return text_or_empty(weft::name(variable)); }
  // Returns "RANK=3".
  std::string shown(const char* name) const;
  // Parses decimal digits only, from `least` to `most`; *number is unchanged if the variable is unset.
  Status number(const char* name, int least, int most, int* number) const;
  Status number(Variable variable, int least, int most, int* number) const {
    return this->number(weft::name(variable), least, most, number);
  }
  // Returns kArg: the variable's value, and which values are wanted.
  Status bad(const char* name, const std::string& wanted) const;

 private:
  const Getter& get_;
};

// Calls read(variables) with the variables of this process, while no TemporaryEnvironment exists.
Status with_process_variables(const std::function<Status(const Variables&)>& read);

// Returns the variables of this process that begin with WEFT_ and are not in the table, which are mostly
// misspelt. WEFT_TEST_ is left to the tests, WEFT_UCX_ to UCX.
std::vector<std::string> unknown_variables();

// Returns the name of the table that differs least from `name`; empty if none is similar.
std::string similar_variable(const std::string& name);

// Sets environment variables for a library that reads its settings while it is loaded, unless the program has
// set them. They stay set while this object lives; at most one object exists at a time. Reads in this file
// wait for its end. The program's own threads do not wait when they read the environment, so use this only
// for the first context of a process.
struct EnvironmentVariable {
  const char* name;
  const char* value;
};
class TemporaryEnvironment {
 public:
  explicit TemporaryEnvironment(std::vector<EnvironmentVariable> variables);
  ~TemporaryEnvironment();
  TemporaryEnvironment(const TemporaryEnvironment&) = delete;
  TemporaryEnvironment& operator=(const TemporaryEnvironment&) = delete;

 private:
  const std::lock_guard<std::mutex> lock_;
  std::vector<EnvironmentVariable> set_;
};

}  // namespace weft
