// The commands of a program with their options, for the generator of man pages and shell completions
// (tools/command_pages.py).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

// Returns a JSON object: the command's name, help and options, and its subcommands as objects of the same
// kind. Hidden ones are left out.
std::string command_table(const CLI::App& app);
