// Times one operation on all ranks: rewrites the buffers, synchronises, runs, and takes the slowest rank's
// time.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "step_options.h"
#include "weft/job.h"

struct BenchOptions {
  std::vector<std::string> ops;
  int ranks = 2;
  std::string backend;
  std::string memory = "arena";  // of the buffers, or "private" or "cuda"
  std::string dtype = "f32";
  std::string op = "sum";
  std::vector<std::string> sizes;
  std::string algorithm;  // of collectives over messages, or "all"; empty: Weft's choice
  StepOptions step;
  uint64_t iterations = 0;  // 0: by size
  uint64_t warmup = 3;
  bool pin = true;
  bool joined = false;    // this process is a rank already
  int repeat = 1;         // number of sets of rank processes, one after the other
  std::string into;       // rank 0 of one of several repeats only writes its --json results here
  bool progress = false;  // rank 0 says on standard error how far it is
  std::string json;
  std::string plot;        // file name of a picture
  std::string trace;       // file names of the ranks' traces
  std::string baseline;    // --json file of an earlier run: reports what became slower
  std::string against;     // another weft command, whose measurements alternate with this one's
  double tolerance = 0.1;  // on its medians
  bool count_system_calls = false;
};

// The functions that are called for every iteration, on every rank. `round` counts from 0.
struct Subject {
  std::function<void(uint64_t round)> rewrite;  // fills the inputs again
  std::function<void()> run;                    // is timed
  std::function<bool(uint64_t round)> check;    // returns whether the results are right; not timed
  std::string name = {};                        // for progress; empty: none is shown
};

struct Times {
  uint64_t iterations = 0;
  uint64_t calls = 0;                            // total: warm-up, timed, and counted
  double median_us = 0;                          // of the slowest rank's times
  double median_low_us = 0, median_high_us = 0;  // the median lies between them with 99 % probability
  double p99_us = 0;
  double least_us = 0;
  double wall_median_us = 0;  // rewrite and operation together: arena buffers move cost into the rewrite
  // Counts of a call and the barrier before it, on the rank that has most.
  double page_faults = 0, allocations = 0;
  double system_calls = -1;  // except those of waiting; negative: not counted
  double moved_bytes = 0;    // of payload: through shared memory, from other ranks' memory, in messages
  bool correct = false;      // on every rank, in the first and the last iteration
};

// Returns the name under which rank 0 shows progress; empty: this rank shows none.
std::string shown_name(const Job& job, const BenchOptions& options, const std::string& name);
// Measures an operation. Collective over the job.
Times measure(Job& job, const Subject& subject, uint64_t iterations, uint64_t warmup);

// Bytes of a rank's reducer.
struct StepMemory {
  uint64_t gradients = 0;  // of the parameters' gradients
  uint64_t buckets = 0;    // in view mode these contain the gradients
  uint64_t other = 0;      // scratch, tables, hooks' state
};

// The rank that held up most of a reducer's steps, from every rank's weft_reducer_stats.
struct HeldUp {
  int rank = -1;          // -1: none
  uint64_t steps = 0;     // held up by that rank
  uint64_t of_steps = 0;  // all steps, including the warm-up
  double mean_us = 0;     // mean wait for that rank, in the steps that it held up
};

// One line of the report.
struct Result {
  std::string work;     // "all_reduce", or "step" and the manifest's name
  std::string details;  // "sum f32 arena": the arguments
  std::string remarks;  // other findings
  uint64_t bytes = 0;
  uint64_t count = 0;
  double bus_factor = 0;  // busbw over algbw; 0: bandwidths are meaningless
  std::string algorithm;
  double exposed_us = -1;  // of a step behind a replayed backward: the time after it; else negative
  StepMemory memory;       // of a step; else zeros
  std::optional<HeldUp> held_up;
  bool checked = true;  // false: times.correct is meaningless, because a hook's results are not the mean
  Times times;
};

// The benchmarks. Rank 0's results are complete; those of other ranks are unspecified.
std::vector<Result> bench_collective(Job& job, const BenchOptions& options, const std::string& op);
std::vector<Result> bench_ready(Job& job, const BenchOptions& options);
Result bench_step(Job& job, const BenchOptions& options, const std::string& manifest_path);

// Returns rank 0's results as JSON.
nlohmann::json json_of(const std::vector<Result>& results, const nlohmann::json& machine, const Job& job,
                       const BenchOptions& options);
// Prints a table of the results of json_of, or of merge of several.
void print_results(const nlohmann::json& run);
