// Computes from the events of a run: who was late and in which phase, exposed and overlapped time, bytes, and
// the times of algorithms by size. A pure function of the events. Called by `weft report` and unit tests.
//
// A collective that needs all ranks takes place once the last one has started it. The time between the last
// start and the one before it is lost, and is charged to that rank. The rank to which a step charges most was
// the last of the step. The lost time is divided into phases by what the rank did meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "run_files.h"

namespace report {

enum class Phase : uint8_t { kBefore, kBackward, kHook, kFinish, kEarlier, kLibrary };
inline constexpr size_t kPhases = 6;
// Returns "in its backward". in_steps: false if the run has collectives outside of reducers only.
const char* phase_text(Phase phase, bool in_steps = true);

// The time that a step, or a collective outside of steps, lost because of its last rank.
struct Lateness {
  int rank = -1;  // -1: no rank was late
  int64_t ns = 0;
  std::array<int64_t, kPhases> phases{};  // sums up to ns
  void add(const Lateness& other);
  Phase phase() const;  // the one with most of the time
};

// A bucket in a step of a process.
struct BucketTimes {
  uint32_t bucket = 0;
  int64_t ready_ns = 0;  // its last gradient; 0: not recorded
  int64_t launch_ns = 0;
  int64_t begin_ns = 0;  // its first collective
  int64_t end_ns = 0;    // its last collective
  int64_t done_ns = 0;
};

// A step as one process saw it.
struct StepOfRank {
  size_t process = 0;  // index in RunFiles::processes
  int64_t begin_ns = 0, finish_ns = 0, end_ns = 0;
  int64_t communication_ns = 0;  // the union of its collectives
  int64_t overlap_ns = 0;        // the part of it before finish
  std::vector<BucketTimes> buckets;
  int64_t exposed_ns() const { return end_ns - finish_ns; }
};

struct Step {
  uint64_t comm = 0;
  uint32_t lane = 0;  // of the reducer
  uint64_t number = 0;
  int64_t begin_ns = 0, end_ns = 0;  // over all ranks
  std::vector<StepOfRank> ranks;     // ascending by process
  bool complete = false;             // every process that recorded this time has the step
  Lateness late;
};

// The rank that cost the run most time.
struct Straggler {
  int rank = -1;          // -1: unknown, because fewer than two ranks can be compared
  double share = 0;       // of the steps in which it was last
  int64_t median_ns = 0;  // by which it was then last
  int64_t total_ns = 0;
  Phase phase = Phase::kBackward;
};

// A collective of a size and an algorithm.
struct AlgorithmRow {
  std::string name, algorithm;
  uint64_t from_bytes = 0;  // sizes from this one to below twice of it
  uint64_t count = 0;
  int64_t median_ns = 0;   // from its last rank's start to its end
  double bytes_per_s = 0;  // payload, of the median
};

// Bytes of a bucket in a step, as the lowest rank sent them. Means over steps.
struct BucketBytes {
  uint32_t lane = 0;
  uint32_t bucket = 0;
  double gradient = 0, payload = 0;
  double sent = -1;  // counted by the backend; -1: it does not count
};

struct Analysis {
  std::vector<Step> steps;      // by begin
  std::vector<Lateness> calls;  // of collectives outside of steps, by time
  bool in_steps = true;         // the straggler is that of the steps, not of the calls
  size_t compared = 0;          // number of steps or calls in which ranks were compared
  int64_t compared_ns = 0;      // duration of these steps
  Straggler straggler;
  std::vector<AlgorithmRow> algorithms;
  std::vector<BucketBytes> buckets;
};

Analysis analyse(const RunFiles& run);
// Returns the straggler of some steps or calls.
Straggler straggler_of(const std::vector<const Lateness*>& units);

// Returns "rank 3 was last in 94 % of 50 steps, by 41 ms, in its backward".
std::string straggler_text(const Analysis& analysis);
// Returns "41 ms", "3.2 ms", "850 us".
std::string duration_text(int64_t ns);

}  // namespace report
