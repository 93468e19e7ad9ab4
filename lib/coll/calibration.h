// Measures up to which size an all_reduce should use one round (one_shot) rather than two (direct). It runs
// both over the transport during group setup. Both fold in rank order, so the choice changes no bit of a
// result. Called on the thread that creates the communicator, by the code that makes collectives over a
// transport.
#pragma once

#include "coll/lane.h"
#include "transport/backend.h"
#include "transport/crossover.h"

namespace weft::coll {

// No measurement begins after this time. The table decides what is not known by then.
inline constexpr uint64_t kCalibrationNs = 30'000'000;

// Returns the size in bytes of the largest all_reduce that is measured with `ranks` ranks; 0 if none is.
uint64_t largest_tuned(int ranks);

// Sets *one_shot (Shape::one_shot), unless too little is known within kCalibrationNs. A pure function of the
// measured times.
Status calibrate(const CrossoverSearch::Run& run, int ranks, std::optional<uint64_t>* one_shot);

// Sets forced->one_shot, equal on all ranks, to the value that these processes measured before, or to a new
// measurement on lanes of its own. Collective over args.exchange. Leaves it unchanged where an option names
// the algorithms of all sizes or forbids measuring. Leaves it unchanged where ranks share cores too, because
// that would measure the scheduler. `lanes` has the ranks that the communicator's all_reduces connect over
// the transport. Its members are empty for a rank that takes no part in them.
Status measure_one_shot(const LaneContext& lanes, bool takes_part, const BackendArgs& args, Forced* forced);

}  // namespace weft::coll
