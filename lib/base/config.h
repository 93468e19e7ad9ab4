// Reads the environment; no other file does. It gives a process its rank, the world size and the address of
// the store, from Weft's own variables or from those of the launcher that started the process. Called by
// weft_comm_create with WEFT_BOOTSTRAP_ENV and by the weft command. Threads: any thread, as long as the
// program does not change its environment at the same time (getenv's rule).
//
// Weft's own variables; an empty value is the same as an unset variable:
//   WEFT_RANK, WEFT_SIZE    this process's rank and the number of ranks; both or none, but WEFT_SIZE=1 is
//                           enough for one rank
//   WEFT_LOCAL_SIZE         ranks on this host
//   WEFT_STORE              address of the store: tcp://host:port or unix:@name
//   WEFT_STORE_EXTERNAL     1: the store is a separate program (`weft store`); otherwise rank 0 hosts it
//   WEFT_JOB                distinguishes the jobs that share a store; any text, equal on all ranks
//   WEFT_SECRET             the job's secret, 16 to 256 bytes of text
//   WEFT_SECRET_FILE        a file with the secret (a final newline is ignored); inaccessible to other
//                           users, or owned by root and readable by a group of this process
//   WEFT_BACKEND            "shm", "loopback", ...
//   WEFT_ALGORITHMS         "all_reduce=direct,broadcast=flat": algorithms of backends over messages, for
//                           all sizes; "one_shot=64K": largest all_reduce that uses the one-round algorithm;
//                           "off": no autotuning when a communicator is created; equal on all ranks
//   WEFT_SHM_THRESHOLDS     "off": shm does no autotuning when a communicator is created;
//                           "one-shot=64K,pull=1M": its crossover sizes (pull=never: not used); read when a
//                           context is created, equal on all ranks
//   WEFT_HOSTS              "0,0,1,1": simulated hosts, one number per rank: a rank shares memory only with
//                           ranks of the same number; equal on all ranks
//   WEFT_HEARTBEAT_MS       default of weft_comm_options.heartbeat_timeout_ms: milliseconds, or "off"
//   WEFT_FLIGHT             folder into which a failing communicator writes its flight record, unless the
//                           program names one
//   WEFT_CUDA_RUNTIME       the CUDA runtime library to load, instead of the installed one
//   WEFT_NCCL_LIBRARY       the NCCL library to load, unless the process has loaded libnccl.so.2 already
//   WEFT_FAILPOINTS         "operation@7=kill, operations=begin:4294967290": fault injection in tests
//                           (lib/transport/failpoints.h)
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
  Launcher launcher = Launcher::kNone;  // kNone: no launcher has set variables; the process is rank 0 of 1
  int rank = 0;
  int size = 1;
  int local_size = 0;  // ranks on this host; 0: unknown
  // WEFT_STORE; else derived from the launcher's job (store_rule in config.cpp).
  std::string store;
  bool store_external = false;
  std::string job;  // WEFT_JOB, or else the launcher's name for the job; equal on all ranks, may be empty
  Bytes secret;     // empty: none. Filled from WEFT_SECRET_FILE by load_secret
  std::string secret_file;
  std::string backend;         // empty: the best available
  std::string algorithms;      // empty: chosen by size
  std::string shm_thresholds;  // empty: autotuned
  std::string hosts;           // empty: the real hosts
  std::string heartbeat;       // WEFT_HEARTBEAT_MS; empty: the library's default
  std::string flight;          // empty: no flight records are written
  std::string cuda_runtime;    // empty: the installed one
  std::string nccl_library;    // empty: libnccl.so.2, as found by the loader
  std::string failpoints;      // empty: none
};

// Facts that the parser needs besides variables.
struct ProcessFacts {
  uid_t uid = 0;
  pid_t pid = 0;
  pid_t parent_pid = 0;
};

// Returns the value of a variable, or null.
using Getter = std::function<const char*(const char* name)>;

inline constexpr int kMaxRanks = 65536;
// Shortest heartbeat timeout that may be set.
inline constexpr int64_t kLeastHeartbeatMs = 100;
inline constexpr size_t kMinSecretBytes = 16;
inline constexpr size_t kMaxSecretBytes = 256;

// Parses the environment. Pure. Weft's own variables take precedence, then those of the launchers in
// kLaunchers (config.cpp), in that order. kArg names the variable and its value. kArg also if a launcher
// started the process without setting its rank or the world size. Only WEFT_SIZE=1, a launcher's size of 1,
// or the absence of all launcher variables make a job of one rank.
Status read_environment(const Getter& get, const ProcessFacts& facts, Environment* environment);

// Reads the settings that apply even if the program supplies the ranks and the store itself: WEFT_JOB,
// WEFT_BACKEND, WEFT_ALGORITHMS, WEFT_SHM_THRESHOLDS, WEFT_HOSTS, WEFT_HEARTBEAT_MS, WEFT_FLIGHT,
// WEFT_CUDA_RUNTIME, WEFT_NCCL_LIBRARY and WEFT_FAILPOINTS. Pure.
void read_settings(const Getter& get, Environment* environment);

// Returns the number of `rank` in WEFT_HOSTS; -1 if the text is empty. kArg unless there is a number (below
// kMaxRanks) for each of the `size` ranks.
Status parse_hosts(const std::string& text, int rank, int size, int* label);

// Parses WEFT_HEARTBEAT_MS: whole milliseconds, at least kLeastHeartbeatMs, or "off", which gives -1
// (WEFT_TIMEOUT_INFINITE). *ms is unchanged if text is empty. kArg states the allowed values.
Status parse_heartbeat(const std::string& text, int64_t* ms);

// Reads environment->secret_file, if set, into environment->secret. kAuth: other users may read or change the
// file, or its size is invalid. kSystem: it cannot be read.
Status load_secret(Environment* environment);

// process_environment reads this process's environment and loads its secret; process_settings reads only the
// settings.
Status process_environment(Environment* environment);
// Reads only the job's secret, for a process that is not a rank; empty: none.
Status process_secret(Bytes* secret);
void process_settings(Environment* environment);
// Returns which mpirun started this process, even if another launcher is involved: kOpenMpi, kPmi (MPICH,
// Intel MPI) or kNone. *ranks, if not null: number of ranks that it started; 0: unknown.
Launcher process_mpi_launcher(int* ranks = nullptr);

// Sets environment variables for a library that reads its settings while it is loaded, unless the program has
// set them. They stay set while this object lives; at most one object exists at a time. Reads in this file
// wait for its end. The program's own threads do not wait when they read the environment, so use this only
// for the first context of a process.
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
