// Up to which size an all_reduce goes in one round (one_shot) rather than in two (direct), found by running
// both over the transport while a communicator is formed. Both fold in rank order: no bit of a result depends
// on it. Called by whoever makes collectives over a transport, on the thread that makes the communicator.
#pragma once

#include "coll/lane.h"
#include "core/backend.h"
#include "core/contest.h"

namespace weft::coll {

// No trial begins when so much time is over. What is not known by then is the table's.
inline constexpr uint64_t kCalibrationNs = 30'000'000;

// The largest all_reduce that is tried among so many ranks; 0: none is.
uint64_t largest_trial(int ranks);

// *one_shot: as Shape::one_shot, unless too little is known in kCalibrationNs. A pure function of the times.
Status calibrate(const Contest::Run& run, int ranks, std::optional<uint64_t>* one_shot);

// Choose forced->one_shot, equal on all ranks: as it was measured before by these processes, or is now, on
// lanes of its own. Collective over args.exchange. Left alone where something says that nothing is to be
// measured, and where ranks share cores: that would measure the scheduler. lanes: what all_reduces of the
// communicator run among; its members are empty for a rank that takes no part in them.
Status measure_one_shot(const LaneContext& lanes, bool takes_part, const BackendArgs& args, Forced* forced);

}  // namespace weft::coll
