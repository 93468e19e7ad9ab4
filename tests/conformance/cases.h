// One collective with data: each rank's input and expected result, computed before the ranks start (threads
// share it, processes inherit it). The expectation folds in rank order, in the accumulator's precision, and
// rounds once. Results are compared bit by bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "support/ranks.h"
#include "support/simulation.h"
#include "transport/collectives.h"

namespace weft::test {

struct Case {
  Coll coll = Coll::kBarrier;
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kNone;
  uint64_t count = 0;
  int root = 0;
  bool in_place = false;
  bool arena = false;  // buffers lie in the arena
  double prescale = 1.0;
  double postscale = 1.0;
  // For blocks of different sizes, where count is about their mean: the elements of each rank's block. For
  // all_to_all_v: of each pair's block, by sender and receiver.
  std::vector<uint64_t> counts;
  bool spaced = false;  // there are gaps between the blocks

  std::vector<Bytes> sources;   // by rank; empty if the rank has no input
  std::vector<Bytes> expected;  // by rank; empty if the rank has no result

  std::string text() const;
};

inline bool may_be_in_place(Coll coll) {
  return coll != Coll::kAllToAll && coll != Coll::kAllToAllV;
}

// Returns the ops that are defined for a dtype; {kNone} for collectives that do not reduce.
std::vector<ReduceOp> ops_of(Coll coll, Dtype dtype);

// kExact: small whole numbers, whose sums are exact in every dtype and every order.
enum class Values { kAny, kExact };

// Draws root, scales and data.
void prepare(Case& c, int size, Random& random, Values values = Values::kAny);

// Prepares all cases, each with its own random numbers. Among ranks that mpirun has started, each rank makes
// the data of some cases and passes it to the others (made_together.h). A case then holds only this rank's
// data.
void prepare_all(std::vector<Case>* cases, int size, uint64_t seed, Values values);

// Runs the case on a rank. If it succeeds, records every difference.
Status attempt(const Case& c, Rank& self);
// Runs the case on a rank. Records a failure and every difference.
void execute(const Case& c, Rank& self);

}  // namespace weft::test
