// Describes this machine, for `weft info` and for the results of benchmarks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// Returns cpu, cores (that this process may use), memory_bytes, kernel, system, weft and compiler.
nlohmann::json describe_machine();
// Returns the vector extensions that Weft's kernels have code for, with the kernel's names for them.
std::vector<std::string> cpu_features();
// Returns the first line of a file, or "".
std::string first_line(const std::string& path);
