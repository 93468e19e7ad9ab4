// The options of a reducer (weft_reducer_options): one table of the fields that hold a number, from which
// they are checked, compared between ranks, and shown in the report. A new option has one row in options.cpp,
// and is read from ReducerSettings::options. A flag that switches a feature on is declared there
// (features.h). Pure functions. Threads: any thread.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/arguments.h"
#include "base/status.h"

namespace weft {

struct ReducerFlag {
  NamedValue flag;     // the report names it by the end of its constant: "retain"
  uint64_t needs = 0;  // another flag
};

// size: ranks of the communicator. kArg or kUnsupported, naming what is wrong and what it needs. Parameters
// and the program's own plan are checked where they are read (manifest.h, plan.h).
Status check_options(const weft_reducer_options& options, int size);
// Checks a list of bucket limits.
Status check_limits(const uint64_t* limits, uint64_t count);
// Returns the options as a reducer keeps them: checked ones, with the default mode filled in and without
// pointers into memory that the program may free.
weft_reducer_options kept_options(const weft_reducer_options& options);

// Returns the numbers that must be equal on all ranks.
std::vector<int64_t> compared_options(const weft_reducer_options& options);
// Describes the first difference between two ranks' compared_options; empty if there is none. Another process
// may have sent them. Both have as many entries as compared_options returns.
std::string option_difference(int rank, const std::vector<int64_t>& mine, int other_rank,
                              const std::vector<int64_t>& theirs);

// An option as the report shows it: nothing (not chosen, or without meaning), a number, a name, or the names
// of flags.
using ShownOption = std::variant<std::monostate, int64_t, std::string, std::vector<std::string>>;
// Returns the options of a reducer by the names of their fields.
std::vector<std::pair<const char*, ShownOption>> shown_options(const weft_reducer_options& options);

// Return the name of a constant, such as "WEFT_PLANNER_MODEL".
const char* planner_name(weft_planner planner);
const char* accumulation_name(weft_accumulation accumulation);
// True if a reducer with this planner as weft_reducer_options.replan re-plans by itself.
inline bool replans(weft_planner planner) {
  return planner != WEFT_PLANNER_DEFAULT && planner != WEFT_PLANNER_NONE;
}

}  // namespace weft
