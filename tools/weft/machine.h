// What this machine is: for `weft info` and for the results of benchmarks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// cpu, cores (that this process may use), memory_bytes, kernel, system, weft, compiler.
nlohmann::json describe_machine();
// Vector extensions that Weft's kernels have code for, as the kernel names them.
std::vector<std::string> cpu_features();
// The first line of a file, or "".
std::string first_line(const std::string& path);
