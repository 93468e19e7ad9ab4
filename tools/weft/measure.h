// Timing one operation on all ranks: rewrite the buffers, meet, run, and take the slowest rank's time.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "job.h"

struct BenchOptions {
  std::vector<std::string> ops;
  int ranks = 2;
  std::string backend;
  bool arena = true;
  std::string dtype = "f32";
  std::string op = "sum";
  std::vector<std::string> sizes;
  std::vector<std::string> manifests;  // of `step`
  bool view_mode = false;              // of `step`
  std::string hook;                    // of `step`: its name, and options behind a space; default allreduce
  std::string reduce_dtype;            // of `step`: in which gradients travel; default f32, their own
  double replay = 0;                   // of `step`: times as long as the recorded backward; 0: none
  bool compute = false;  // of a replayed `step`: the rank's core computes meanwhile, instead of sleeping
  bool reduced_views = false;  // of `step`, in view mode: results are read where their owners have them
  std::string replan;  // of `step`: "limits", "model" or "first-needed", after the first step; default not
  std::vector<std::string> bucket_limits;  // of `step`: bytes; default the library's
  uint32_t accumulate = 1;                 // of `step`: steps, of which the last one synchronises
  std::string total = "240000000";         // of `launches`: bytes; 60 million f32
  uint64_t iterations = 0;                 // 0: by size
  uint64_t warmup = 3;
  bool pin = true;
  bool joined = false;  // this process is a rank already
  int repeat = 1;       // so many sets of rank processes, one after the other
  std::string
      into;  // a rank of one of several repeats: where rank 0 writes what --json would, and that is all
  std::string json;
  std::string trace;       // where ranks write theirs
  std::string baseline;    // of an earlier run's --json: what became slower
  std::string against;     // another weft command, measured by turns with this one
  double tolerance = 0.1;  // of its medians
  bool count_system_calls = false;
};

// What is called for every iteration, on every rank. `round` counts from 0.
struct Subject {
  std::function<void(uint64_t round)> rewrite;  // fill the inputs anew
  std::function<void()> run;                    // what is timed
  std::function<bool(uint64_t round)> check;    // whether the results are right; not timed
};

struct Times {
  uint64_t iterations = 0;
  uint64_t calls = 0;                            // in all: to warm up, timed, and counted
  double median_us = 0;                          // of the slowest rank's times
  double median_low_us = 0, median_high_us = 0;  // the median lies between them with 99 %
  double p99_us = 0;
  double least_us = 0;
  double wall_median_us = 0;  // rewrite and operation together: arena buffers move cost into the rewrite
  // A call and the barrier before it, on the rank that has most.
  double page_faults = 0, allocations = 0;
  double system_calls = -1;  // but those of waiting; negative: not counted
  double moved_bytes = 0;    // of payload, through shared memory, out of others' memory, in messages
  bool correct = false;      // on every rank, in the first and the last iteration
};

// Collective over the job.
Times measure(Job& job, const Subject& subject, uint64_t iterations, uint64_t warmup);

// Bytes that a rank's reducer holds.
struct StepMemory {
  uint64_t gradients = 0;  // what the parameters' gradients take
  uint64_t buckets = 0;    // in view mode the gradients lie there
  uint64_t other = 0;      // scratch, tables, hooks' state
};

// Of a reducer's steps: the rank that held most of them up, as weft_reducer_stats has it of each.
struct HeldUp {
  int rank = -1;          // -1: none was
  uint64_t steps = 0;     // by that rank
  uint64_t of_steps = 0;  // all of them, those of warming up as well
  double mean_us = 0;     // in those by that rank: how long it was waited for
};

// One line of the report.
struct Result {
  std::string work;     // "all_reduce", or "step" and the manifest's name
  std::string details;  // "sum f32 arena": what was done
  std::string remarks;  // what else was found
  uint64_t bytes = 0;
  uint64_t count = 0;
  double bus_factor = 0;  // busbw over algbw; 0: bandwidths mean nothing
  std::string algorithm;
  double exposed_us = -1;  // of a step behind a replayed backward: what comes after that; else negative
  StepMemory memory;       // of a step; else zeros
  std::optional<HeldUp> held_up;
  bool checked = true;  // else times.correct says nothing: a hook's results are not the mean
  Times times;
};

// Throws std::invalid_argument unless there is such a benchmark of a collective.
void check_collective(const std::string& op);
// The benchmarks. Rank 0's results are complete; the others' may be anything.
std::vector<Result> bench_collective(Job& job, const BenchOptions& options, const std::string& op);
std::vector<Result> bench_launches(Job& job, const BenchOptions& options);
std::vector<Result> bench_ready(Job& job, const BenchOptions& options);
Result bench_step(Job& job, const BenchOptions& options, const std::string& manifest_path);

// On rank 0: what was found, for programs.
nlohmann::json json_of(const std::vector<Result>& results, const nlohmann::json& machine, const Job& job,
                       const BenchOptions& options);
// The table on standard output, of what json_of made, or merge of several.
void print_results(const nlohmann::json& run);
