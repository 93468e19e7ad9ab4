// The options of `weft bench`: what they are called, what they say, and which make no sense together.
#pragma once

#include <CLI/CLI.hpp>

#include "measure.h"

// options: must live until the words are parsed.
void add_bench_options(CLI::App& bench, BenchOptions& options);

// Complain before processes are started. Throws std::invalid_argument; std::runtime_error for a bad baseline.
void check_options(const BenchOptions& options);
