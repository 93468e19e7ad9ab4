// The options of `weft bench step`: how a reducer synchronises the gradients of a step, and how the backward
// before it runs. Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

class StepOptions {
 public:
  // Adds the options to the command, which sets the members when it parses. This object outlives the parse.
  void add_to(CLI::App& bench);
  // Reports bad values before processes are started. Throws std::invalid_argument.
  void check() const;
  // Returns "copy mode, 4 steps, re-planned by model, replayed, hook int8" or the like: what differs from the
  // default. has_another_plan: re-planning has changed the buckets.
  std::string details(bool has_another_plan) const;

  std::vector<std::string> manifests;
  bool view_mode = false;
  std::string hook;          // its name, and options after a space; default allreduce
  std::string reduce_dtype;  // the dtype in which gradients are sent; default f32, their own
  double replay = 0;         // a factor on the duration of the recorded backward; 0: no replay
  bool compute = false;      // with replay: the rank's core computes meanwhile, instead of sleeping
  std::string replan;        // "limits" or "model", after the first step; default none
  std::vector<std::string> bucket_limits;  // bytes; default the library's
  uint32_t accumulate = 1;                 // number of steps, of which the last one synchronises
};
