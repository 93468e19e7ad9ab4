// The subcommands of `weft`. Each adds itself to the parser and writes its exit code when it is chosen. tail:
// the first "--" and the words after it, which the parser does not see. words: all words before it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

// Parses the words, which runs the chosen command. Prints errors. Returns the exit code of the program: 2 for
// wrong options, 1 for an exception, and else *exit_code, which the command has written.
int run_command(CLI::App& app, const std::vector<std::string>& words, const int* exit_code);

void add_run(CLI::App& app, const std::vector<std::string>& tail, int* exit_code);
void add_info(CLI::App& app, const std::vector<std::string>& words, int* exit_code);
// In `weft` it executes weft-bench, where it has the parser for its options.
void add_bench(CLI::App& app, const std::vector<std::string>& words, int* exit_code);
void add_doctor(CLI::App& app, const std::vector<std::string>& words, int* exit_code);
void add_trace(CLI::App& app, int* exit_code);
void add_store(CLI::App& app, int* exit_code);
void add_secret(CLI::App& app, int* exit_code);
void add_status(CLI::App& app, int* exit_code);
void add_top(CLI::App& app, int* exit_code);
void add_report(CLI::App& app, int* exit_code);
// Add `weft trace merge` and `weft trace convert` to the command `weft trace`.
void add_trace_merge(CLI::App& trace, int* exit_code);
void add_trace_convert(CLI::App& trace, int* exit_code);
