// The benchmarks of `weft bench` as subcommands, their options and help, and checks of their combinations.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "measure.h"

// Adds a subcommand for each benchmark, with the options that apply to it. `bench` itself takes all of them
// too, so that they may stand before the benchmark, and those of one may stand behind another. options must
// outlive the parse.
void add_benchmarks(CLI::App& bench, BenchOptions& options);

// Returns the benchmarks that the parser has found, in their order.
std::vector<std::string> chosen_benchmarks(const CLI::App& bench);

// Reports bad options before processes are started. Throws std::invalid_argument; std::runtime_error for a
// bad baseline.
void check_options(const BenchOptions& options);
