// Several ranks in one test: each runs the same body, with a communicator among them. Catch2's assertions may
// only run on the main thread, so ranks record failures and the runner reports them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "engine/engine.h"
#include "support/thread_group.h"

namespace weft::test {

// One rank as its body sees it. Threads: the rank's own.
struct Rank {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Comm> comm;
  ThreadGroup* group = nullptr;  // null if ranks are processes
  std::vector<std::string> failures;

  // Records a failure unless ok.
  void expect(bool ok, const std::string& what) {
    if (!ok) failures.push_back("rank " + std::to_string(rank) + ": " + what);
  }
  void expect(const Status& status, const std::string& what) {
    expect(status.ok(), what + ": " + status.text());
  }
  // Submits and waits, with the communicator's deadline.
  Status run(const CollectiveArgs& args) { return comm->run(args, 0); }
};

using RankBody = std::function<void(Rank&)>;

struct RanksOptions {
  const Backend* backend = nullptr;  // default: loopback
  Engine::Mode mode = Engine::Mode::kThread;
  CommOptions comm = {};
  std::vector<int> hosts = {};             // simulated hosts, by rank; 0 for ranks beyond the list
  std::shared_ptr<Clock> clock = nullptr;  // default: the machine's clock, for each rank
  // Devices of the process: rank r calls use_device(r), and backends of host memory stage device buffers.
  // host_backend: for rank threads, the backend under a device backend (default: loopback).
  std::shared_ptr<Accelerator> accelerator = nullptr;
  void (*use_device)(int device) = nullptr;
  const Backend* host_backend = nullptr;
  // Takes the failpoints of WEFT_FAILPOINTS.
  RanksOptions();
};

// Runs the body on `size` threads. Returns the failures, and any error of the communicator's creation.
std::vector<std::string> run_threads(int size, const RankBody& body, const RanksOptions& options = {});
// Runs the body on forked processes over a socket mesh. A watchdog kills a rank that hangs.
std::vector<std::string> run_processes(int size, const RankBody& body, const RanksOptions& options = {});

// Runs the body on `size` of the processes that mpirun has started, of which this is one. Every process calls
// it, in the same order, and gets only its own failures. In the first call all processes create a
// communicator, because MPI's initialisation is collective.
std::vector<std::string> run_launched(int size, const RankBody& body, const RanksOptions& options = {});

// Reports the ranks' failures to Catch2. Called on the main thread.
void check(const std::vector<std::string>& failures);

}  // namespace weft::test
