// The options of `weft bench`: their names, their help, and checks of their combinations.
#pragma once

#include <CLI/CLI.hpp>

#include "measure.h"

// options must outlive the parse.
void add_bench_options(CLI::App& bench, BenchOptions& options);

// Reports bad options before processes are started. Throws std::invalid_argument; std::runtime_error for a
// bad baseline.
void check_options(const BenchOptions& options);
