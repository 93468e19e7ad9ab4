// The function by which weft bench form adds itself to `weft bench`.
#pragma once

#include <CLI/CLI.hpp>

void add_bench_form(CLI::App& bench, int* exit_code);
