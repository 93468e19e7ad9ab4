// How this process was started: its rank, the world size and its place among the ranks of its host, from
// Weft's own variables or from those of the launcher. Pure functions of variables; no I/O.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/status.h"
#include "environment/variables.h"

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
  kKubeflow,
};
const char* name(Launcher launcher);  // "torchrun", "Open MPI"

inline constexpr int kMaxRanks = 65536;

// Facts that the parser needs besides variables.
struct ProcessFacts {
  uid_t uid = 0;
  pid_t pid = 0;
  pid_t parent_pid = 0;
};

struct Launch {
  Launcher launcher = Launcher::kNone;  // kNone: no launcher has set variables; the process is rank 0 of 1
  int rank = 0;
  int size = 1;
  int local_rank = -1;  // number of this rank among those of its host; -1: unknown
  int local_size = 0;   // ranks on this host; 0: unknown
  int host = -1;        // number of this host among those of the job; -1: unknown
  int hosts = 0;        // 0: unknown
  std::string job;      // the launcher's name for the job; equal on all ranks, may be empty

  // True if all ranks are on this host.
  bool one_host() const { return size == 1 || local_size == size; }
};

// Reads variables. Weft's own take precedence, then those of the launchers in kLaunchers (launch.cpp), in
// that order. kArg names the variable and its value. kArg also if a launcher started the process without
// setting its rank or the world size. Only WEFT_SIZE=1, a launcher's size of 1, or the absence of all
// launcher variables make a job of one rank.
Status read_launch(const Variables& variables, Launch* launch);

// Chooses the store's address when WEFT_STORE is unset. On one host: a unix socket named after the user and
// the job. With torchrun on several hosts: the port after MASTER_PORT, which torchrun's own store occupies.
// kArg if there is no rule: the user must set WEFT_STORE.
Status default_store(const Variables& variables, const ProcessFacts& facts, const Launch& launch,
                     std::string* store);

// Returns which mpirun started this process, even if another launcher is involved: kOpenMpi, kPmi (MPICH,
// Intel MPI) or kNone. *ranks, if not null: number of ranks that it started; 0: unknown.
Launcher process_mpi_launcher(int* ranks = nullptr);

}  // namespace weft
