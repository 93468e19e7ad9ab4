// Deterministic simulation: ranks are threads of which one runs at a time. A rank that waits hands a token to
// a rank drawn from the seed, and virtual time passes. The seed also decides how messages between ranks are
// delayed and reordered. A run is a pure function of the seed: a failing run prints its seed and can be
// repeated. (As in FoundationDB and TigerBeetle, on the library's own Clock and the loopback backend.)
//
//   Simulation simulation(seed, 3);
//   check(simulation.run([&](Rank& self) { self.expect(self.run(args), "all_reduce"); }).failures);
//
// Bodies may wait only through the library or the clock, and take randomness only from random().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coll/select.h"
#include "support/ranks.h"

namespace weft::test {

// SplitMix64. It gives the same numbers on every machine, unlike the standard library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : next() % bound; }
  bool chance(uint64_t one_in) { return below(one_in) == 0; }

 private:
  uint64_t state_;
};

struct SimulationReport {
  uint64_t hash = 0;      // of every switch between ranks and every message's delay
  uint64_t switches = 0;  // of the token
  uint64_t virtual_ns = 0;
  std::vector<std::string> failures;  // each names the seed
};

struct SimulationOptions {
  CommOptions comm = RanksOptions().comm;  // deadlines are in virtual time
  coll::Forced forced = {};
  uint64_t limit_ns = uint64_t{3600} * 1'000'000'000;  // after this much virtual time the run counts as stuck
};

class Simulation {
 public:
  Simulation(uint64_t seed, int size, SimulationOptions options = {});
  ~Simulation();

  SimulationReport run(const RankBody& body);

  // For bodies. Returns the calling rank's random numbers, which do not depend on what other ranks do.
  Random& random();
  // Lets other ranks run, for a while of virtual time.
  void pause();
  // Kills `rank` at its next wait, `after_ns` from now or later. The others learn of it as from a pidfd. Its
  // own operations fail at once, and failures that it records afterwards do not count.
  void kill(int rank, uint64_t after_ns = 0);
  // Stops `rank` at its next wait, `after_ns` from now or later, for twice its heartbeat budget (which it
  // must have). After one budget the others report it as lost. When it continues, it finds its connections
  // closed.
  void stop(int rank, uint64_t after_ns = 0);

  class Core;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace weft::test
