// What the environment says: the one place that reads it. A process learns here which rank it is, how many
// there are and where they meet, from Weft's own variables or from those of the launcher that started it.
// Called by weft_comm_create with WEFT_BOOTSTRAP_ENV and by the weft command. Threads: any thread, as long as
// the program does not change its environment meanwhile (getenv's rule).
//
// Weft's own variables; an empty value is the same as an unset variable:
//   WEFT_RANK, WEFT_SIZE    this process's rank and the number of ranks; both or none, but WEFT_SIZE=1 is
//                           enough for one rank
//   WEFT_LOCAL_SIZE         ranks on this host
//   WEFT_STORE              where the ranks meet: tcp://host:port or unix:@name
//   WEFT_STORE_EXTERNAL     1: the store is a program of its own (`weft store`); else rank 0 serves it
//   WEFT_JOB                tells apart the jobs that meet in one store; any text, equal on all ranks
//   WEFT_SECRET             the job's secret, 16 to 256 bytes of text
//   WEFT_SECRET_FILE        a file that holds it (a last newline does not count); closed to other users, or
//                           root's and readable by a group of this process
//   WEFT_BACKEND            "shm", "loopback", ...
//   WEFT_ALGORITHMS         "all_reduce=ring,broadcast=tree": what backends that move messages
//                           use whatever the size; "one_shot=64K": up to which size an all_reduce goes in
//                           one round; "off": that is not measured when a communicator forms; equal on all
//                           ranks
//   WEFT_SHM_THRESHOLDS     "off": shm measures nothing when a communicator forms; "one-shot=64K,pull=1M": at
//                           which sizes it changes its path (pull=never: not at all); read when a context is
//                           created, equal on all ranks
//   WEFT_SHM_NODES          "0,0,1,1": the NUMA node of each rank, in place of what its cores say; "one": all
//                           ranks are on one; set on all ranks or none
//   WEFT_HOSTS              "0,0,1,1": simulated hosts, one number a rank: ranks share memory with ranks of
//                           their number alone; equal on all ranks
//   WEFT_HEARTBEAT_MS       default of weft_comm_options.heartbeat_timeout_ms: milliseconds, or "off"
//   WEFT_FLIGHT             a folder where a communicator that fails writes its flight record, unless the
//                           program names one
//   WEFT_CUDA_RUNTIME       the file of the CUDA runtime, in place of those that are installed
//   WEFT_NCCL_LIBRARY       the file of NCCL, unless the process has loaded libnccl.so.2 already
//   WEFT_FAILPOINTS         "operation@7=kill": for tests of failure (lib/core/failpoints.h)
#pragma once

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

enum class Launcher : uint8_t {
  kNone,
  kWeft,
  kTorchrun,
  kHorovod,
  kOpenMpi,
  kMvapich,
  kPmi,
  kJsrun,
  kFlux,
  kPmix,
  kPals,
  kAlps,
  kSlurm,
};
const char* name(Launcher launcher);  // "torchrun", "Open MPI"

struct Environment {
  Launcher launcher = Launcher::kNone;  // kNone: no launcher left a trace, it is rank 0 of 1
  int rank = 0;
  int size = 1;
  int local_size = 0;  // ranks on this host; 0: not known
  // WEFT_STORE; else derived from the launcher's job (store_rule in config.cpp).
  std::string store;
  bool store_external = false;
  std::string job;  // WEFT_JOB, else the launcher's name for the job; equal on all ranks, may be empty
  Bytes secret;     // empty: none. Filled from WEFT_SECRET_FILE by load_secret
  std::string secret_file;
  std::string backend;         // empty: the best available
  std::string algorithms;      // empty: chosen by size
  std::string shm_thresholds;  // empty: measured
  std::string shm_nodes;       // empty: where the ranks' cores are
  std::string hosts;           // empty: the real ones
  std::string heartbeat;       // of WEFT_HEARTBEAT_MS; empty: the library's default
  std::string flight;          // empty: no flight records are written
  std::string cuda_runtime;    // empty: the one that is there
  std::string nccl_library;    // empty: libnccl.so.2, wherever the loader finds it
  std::string failpoints;      // empty: none
};

// What the parser needs to know besides variables.
struct ProcessFacts {
  uid_t uid = 0;
  pid_t pid = 0;
  pid_t parent_pid = 0;
};

// Value of a variable, or null.
using Getter = std::function<const char*(const char* name)>;

inline constexpr int kMaxRanks = 65536;
// The shortest silence of a rank that may count as its failure.
inline constexpr int64_t kLeastHeartbeatMs = 100;
inline constexpr size_t kMinSecretBytes = 16;
inline constexpr size_t kMaxSecretBytes = 256;

// Pure. kArg naming the variable and its value. Weft's own variables come first, then those of the launchers
// that kLaunchers in config.cpp lists, in its order. kArg also for a process that one of them has started
// without saying its rank or the number of ranks: only WEFT_SIZE=1, a launcher's size that is 1, or no
// launcher's trace at all make a job of one rank.
Status read_environment(const Getter& get, const ProcessFacts& facts, Environment* environment);

// The part that a program which says itself who its ranks are and where they meet still takes from the
// environment: WEFT_JOB, WEFT_BACKEND, WEFT_ALGORITHMS, WEFT_SHM_THRESHOLDS, WEFT_SHM_NODES, WEFT_HOSTS,
// WEFT_HEARTBEAT_MS, WEFT_FLIGHT, WEFT_CUDA_RUNTIME, WEFT_NCCL_LIBRARY and WEFT_FAILPOINTS. Pure.
void read_settings(const Getter& get, Environment* environment);

// The number of `rank` in WEFT_HOSTS; -1 if it is empty. kArg unless there is a number (below kMaxRanks) for
// each of the `size` ranks.
Status parse_hosts(const std::string& text, int rank, int size, int* label);
// The same of WEFT_SHM_NODES; 0 for every rank if it is "one".
Status parse_nodes(const std::string& text, int rank, int size, int* node);

// Reads WEFT_HEARTBEAT_MS: whole milliseconds from kLeastHeartbeatMs on, or "off", which gives -1
// (WEFT_TIMEOUT_INFINITE). *ms is untouched if text is empty. kArg says what is allowed.
Status parse_heartbeat(const std::string& text, int64_t* ms);

// Read environment->secret_file, if named, into environment->secret. kAuth when other users may read or
// change it or its size is wrong, kSystem when it cannot be read.
Status load_secret(Environment* environment);

// For this process: the environment with its secret loaded, or the settings alone.
Status process_environment(Environment* environment);
// The job's secret alone, for a process that is no rank; empty: none.
Status process_secret(Bytes* secret);
void process_settings(Environment* environment);
// Whose mpirun started this process, whatever else did: kOpenMpi, kPmi (MPICH, Intel MPI) or kNone. ranks,
// if not null: how many it started; 0: it does not say.
Launcher process_mpi_launcher(int* ranks = nullptr);

// Variables for a library that reads its settings while it is loaded: set as long as this lives, unless the
// program has set them itself. One at a time; this file's own reads wait. The program's own threads that read
// the environment do not: it is for a process's first context alone.
struct EnvironmentVariable {
  const char* name;
  const char* value;
};
class TemporaryEnvironment {
 public:
  explicit TemporaryEnvironment(std::vector<EnvironmentVariable> variables);
  ~TemporaryEnvironment();
  TemporaryEnvironment(const TemporaryEnvironment&) = delete;
  TemporaryEnvironment& operator=(const TemporaryEnvironment&) = delete;

 private:
  const std::lock_guard<std::mutex> lock_;
  std::vector<EnvironmentVariable> set_;
};

}  // namespace weft
