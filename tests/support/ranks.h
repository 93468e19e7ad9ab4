// Several ranks in one test: the same body run by each, with a communicator among them. Catch2's assertions
// are for the main thread alone, so ranks note what is wrong and the runner reports it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm.h"
#include "core/engine.h"
#include "support/thread_group.h"

namespace weft::test {

// One rank, as its body sees it. Threads: the rank's own.
struct Rank {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Comm> comm;
  ThreadGroup* group = nullptr;  // null where ranks are processes
  std::vector<std::string> failures;

  // Note a failure unless ok.
  void expect(bool ok, const std::string& what) {
    if (!ok) failures.push_back("rank " + std::to_string(rank) + ": " + what);
  }
  void expect(const Status& status, const std::string& what) {
    expect(status.ok(), what + ": " + status.text());
  }
  // Submit and wait, with the communicator's deadline.
  Status run(const CollectiveArgs& args) { return comm->run(args, 0); }
};

using RankBody = std::function<void(Rank&)>;

struct RanksOptions {
  const Backend* backend = nullptr;  // default: loopback
  Engine::Mode mode = Engine::Mode::kThread;
  CommOptions comm = {};
  std::vector<int> hosts = {};             // simulated ones, by rank; 0 for ranks that it does not name
  std::shared_ptr<Clock> clock = nullptr;  // default: the machine's, for each rank
  // Devices, each rank's being that of its number; of processes, not of backends on devices. What of threads
  // a backend on devices lies over (default: loopback).
  std::shared_ptr<Accelerator> accelerator = nullptr;
  void (*use_device)(int device) = nullptr;
  const Backend* host_backend = nullptr;
  RanksOptions() { comm.op_timeout_ms = comm.init_timeout_ms = 60'000; }
};

// Run body as `size` threads; what the ranks noted, and whatever kept them from forming.
std::vector<std::string> run_threads(int size, const RankBody& body, const RanksOptions& options = {});
// The same as forked processes over a socket mesh. A rank that hangs is killed by a watchdog.
std::vector<std::string> run_processes(int size, const RankBody& body, const RanksOptions& options = {});

// The same on `size` of the processes that mpirun has started, this being one of them: each calls it, in the
// same order, and finds its own failures alone. The first time all of them make a communicator, because MPI
// begins with all.
std::vector<std::string> run_launched(int size, const RankBody& body, const RanksOptions& options = {});

// Report the ranks' failures to Catch2; for the main thread.
void check(const std::vector<std::string>& failures);

}  // namespace weft::test
