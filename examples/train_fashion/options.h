// The demo's command line.
#pragma once

#include <cstdint>
#include <string>

struct Options {
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string backend;  // empty: Weft chooses
  std::string hook;     // empty: allreduce
  std::string of_hook;  // its options
  bool view_mode = false;
  uint32_t epochs = 6;
  uint32_t global_batch = 128;  // images per step, over all ranks
  uint32_t limit = 0;           // training images; 0: all
  uint64_t seed = 1;
  float rate = 0.05f;
  uint32_t log_every = 100;  // steps
  bool check = true;         // compare the loss curve with the reference's
  int reference_ranks = 0;   // > 0: train in this one process with this number of virtual ranks
  std::string losses;        // file to write the loss curve to
  std::string sent;          // file to write the bytes sent after each step to
  std::string trace;         // file to write the timeline to
  int flip_bit_rank = -1;    // the rank that damages a parameter, to show that this is detected

  // Returns the hook's options in a run of `steps` steps. PowerSGD starts to compress, and local SGD starts
  // to make local steps, after a tenth of them.
  std::string hook_options(uint32_t steps) const;
  uint32_t hook_start(uint32_t steps) const;
  bool hook_is_local() const { return hook == "post_local_sgd"; }
  bool hook_is_exact() const { return hook.empty() || hook == "allreduce"; }
  bool hook_sends() const { return hook != "noop"; }
};

// Throws std::invalid_argument. Prints --help, and then returns false.
bool parse_options(int argc, char** argv, Options* options);
