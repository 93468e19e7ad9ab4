// Reads facts about this machine and about what the library finds on it, for `weft info`, `weft doctor` and
// the results of benchmarks. Threads: any thread, but the try_ functions fork.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// Returns cpu, cores (that this process may use), memory_bytes, kernel, system, weft and compiler.
nlohmann::json describe_machine();
// Returns the vector extensions that Weft's kernels have code for, with the kernel's names for them.
std::vector<std::string> cpu_features();
// Returns "0.9.0".
std::string weft_version_text();
// Returns what the library reports about each backend that it knows.
std::vector<weft_backend_info> known_backends(weft_context* context);

// Values of numbers that the system does not report, and of limits that do not exist.
inline constexpr int64_t kUnknown = -1;
inline constexpr int64_t kUnlimited = INT64_MAX;

// Returns the soft limit of a resource (RLIMIT_...), kUnlimited or kUnknown.
int64_t soft_limit(int resource);

inline constexpr char kPtraceScope[] = "/proc/sys/kernel/yama/ptrace_scope";
inline constexpr char kWorks[] = "works";
// Try whether a process may read a sibling's memory, as with two ranks of one launcher, and whether it can
// make shared memory without a file. Return kWorks or the reason.
std::string try_cross_memory();
std::string try_memfd();

// Returns the first line of a file, or "".
std::string first_line(const std::string& path);
// Returns the number at the begin of a file; kUnknown if there is none.
int64_t number_in(const std::string& path);
