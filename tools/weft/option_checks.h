// Checks of options' values, whose messages state what is allowed.
#pragma once

#include <CLI/CLI.hpp>

// Accepts finite numbers from `least` to `most`. CLI::Range accepts nan.
CLI::Validator number_from(double least, double most);

inline constexpr double kYearS = 31'536'000;  // the longest time limit of a job
