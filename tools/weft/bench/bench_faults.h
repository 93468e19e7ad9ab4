// The function by which weft bench faults adds itself to `weft bench`.
#pragma once

#include <CLI/CLI.hpp>

void add_bench_faults(CLI::App& bench, int* exit_code);
