// One collective with data: what every rank gives and what it must receive, computed before the ranks start
// (they share it, as threads or by fork). The expectation folds in rank order in the accumulator's precision
// and rounds once, and is compared bit by bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "core/collectives.h"
#include "support/ranks.h"
#include "support/simulation.h"

namespace weft::test {

struct Case {
  Coll coll = Coll::kBarrier;
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kNone;
  uint64_t count = 0;
  int root = 0;
  bool in_place = false;
  bool arena = false;  // buffers in the arena
  double prescale = 1.0;
  double postscale = 1.0;
  // Of blocks of different sizes (count is about their mean): the elements of each rank's block; of
  // all_to_all_v of each pair's, by sender and receiver.
  std::vector<uint64_t> counts;
  bool spaced = false;  // there is something between the blocks

  std::vector<Bytes> sources;   // by rank; empty where the rank gives none
  std::vector<Bytes> expected;  // by rank; empty where the rank receives none

  std::string text() const;
};

inline bool may_be_in_place(Coll coll) {
  return coll != Coll::kAllToAll && coll != Coll::kAllToAllV;
}

// Ops that make sense for a dtype; {kNone} for collectives that do not reduce.
std::vector<ReduceOp> ops_of(Coll coll, Dtype dtype);

// kExact: small whole numbers, exact in every dtype whatever the order in which they are added.
enum class Values { kAny, kExact };

// Fill in root, scales and the data, by dice.
void prepare(Case& c, int size, Random& random, Values values = Values::kAny);

// All of them, with dice of their own for each. Of ranks that mpirun has started each makes the data of some
// cases and hands on what the others need (made_together.h): a case then holds this rank's data alone.
void prepare_all(std::vector<Case>* cases, int size, uint64_t seed, Values values);

// Run it on a rank; if it succeeds, note every difference.
Status attempt(const Case& c, Rank& self);
// Run it, note failure and every difference.
void execute(const Case& c, Rank& self);

}  // namespace weft::test
