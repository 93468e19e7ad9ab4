// Finds what a user may have meant by a word that is not known. Pure functions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

// Returns the choice that is most like the word; empty: none is like it.
std::string nearest(const std::string& word, const std::vector<std::string>& choices);

// Returns "; did you mean --sizes?" or, if no choice is like the word, "; the options are --json, --sizes".
// what: "options".
std::string suggestion(const std::string& word, const std::vector<std::string>& choices, const char* what);

// Returns the long names of the options that the help of a command shows: "--json".
std::vector<std::string> option_names(const CLI::App& command);
