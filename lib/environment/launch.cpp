#include "environment/launch.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/text.h"
#include "environment/network.h"
#include "environment/slurm.h"

namespace weft {
namespace {

// The variables of a launcher. Null: the launcher sets no such variable.
struct LauncherVariables {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank = nullptr;
  const char* local_size = nullptr;  // ranks on this host
  const char* host = nullptr;        // number of this host
  const char* hosts = nullptr;       // hosts of the job
  // The job's name, in parts: equal on all ranks. Empty for a launcher with one_parent.
  std::array<const char*, 4> job = {};
  // Makes the name unique among all jobs of this user on this host.
  const char* job_here = nullptr;
  // The launcher starts all ranks of a host from one process, whose pid can serve as the job's name.
  bool one_parent = false;
  // A rank variable of 0 alone does not indicate a launch: it is also set where no ranks were launched.
  bool zero_needs_size = false;
  // If this variable is 1, no launcher has set the variables.
  const char* own_size = nullptr;
};

// In order of precedence: a later launcher may have launched an earlier one.
constexpr LauncherVariables kLaunchers[] = {
    {.launcher = Launcher::kTorchrun,
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE",
     .host = "GROUP_RANK",
     .hosts = "GROUP_WORLD_SIZE",
     .job = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
    {.launcher = Launcher::kHorovod,
     .rank = "HOROVOD_RANK",
     .size = "HOROVOD_SIZE",
     .local_rank = "HOROVOD_LOCAL_RANK",
     .local_size = "HOROVOD_LOCAL_SIZE",
     .host = "HOROVOD_CROSS_RANK",
     .hosts = "HOROVOD_CROSS_SIZE",
     .job = {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"}},
    // Open MPI 4's job numbers have 16 random bits; the address of its daemon makes them unique.
    {.launcher = Launcher::kOpenMpi,
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
     .job_here = "PMIX_SERVER_URI2"},
    {.launcher = Launcher::kMvapich,
     .rank = "MV2_COMM_WORLD_RANK",
     .size = "MV2_COMM_WORLD_SIZE",
     .local_rank = "MV2_COMM_WORLD_LOCAL_RANK",
     .local_size = "MV2_COMM_WORLD_LOCAL_SIZE",
     .one_parent = true},
    // MPICH's hydra has no job name, but its proxy is the parent of all ranks of a host.
    {.launcher = Launcher::kPmi,
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS",
     .job = {"PMI_JOBID", "I_MPI_HYDRA_UUID"},
     .one_parent = true},
    {.launcher = Launcher::kJsrun,
     .rank = "JSM_NAMESPACE_RANK",
     .size = "JSM_NAMESPACE_SIZE",
     .local_rank = "JSM_NAMESPACE_LOCAL_RANK",
     .local_size = "JSM_NAMESPACE_LOCAL_SIZE",
     .job = {"PMIX_NAMESPACE"},
     .one_parent = true},
    {.launcher = Launcher::kFlux,
     .rank = "FLUX_TASK_RANK",
     .size = "FLUX_JOB_SIZE",
     .local_rank = "FLUX_TASK_LOCAL_ID",
     .hosts = "FLUX_JOB_NNODES",
     .job = {"FLUX_JOB_ID"},
     .job_here = "FLUX_URI",
     .one_parent = true},
    // These launchers do not set the number of ranks. Most programs that they start have another launcher's
    // variables too. Open MPI 4 without mpirun sets PMIx's variables itself, when MPI is initialised.
    {.launcher = Launcher::kPmix,
     .rank = "PMIX_RANK",
     .size = nullptr,
     .own_size = "OMPI_MCA_orte_ess_num_procs"},
    {.launcher = Launcher::kPals,
     .rank = "PALS_RANKID",
     .size = nullptr,
     .local_rank = "PALS_LOCAL_RANKID",
     .local_size = "PALS_LOCAL_SIZE",
     .host = "PALS_NODEID"},
    {.launcher = Launcher::kAlps, .rank = "ALPS_APP_PE", .size = nullptr},
    // SLURM_NTASKS is the allocation's size; with srun --ntasks inside a larger allocation the step's size
    // applies. Batch scripts and interactive shells have a rank too, but only srun's tasks are ranks.
    {.launcher = Launcher::kSlurm,
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .local_rank = "SLURM_LOCALID",
     .host = "SLURM_NODEID",
     .hosts = "SLURM_STEP_NUM_NODES",
     .job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     .zero_needs_size = true},
    // Kubeflow sets torchrun's options. torchrun sets its own variables, so these count only if the container
    // starts the program itself: then each node is a rank.
    {.launcher = Launcher::kKubeflow,
     .rank = "PET_NODE_RANK",
     .size = "PET_NNODES",
     .host = "PET_NODE_RANK",
     .hosts = "PET_NNODES",
     .job = {"PET_RDZV_ID", "PET_MASTER_ADDR", "PET_MASTER_PORT"}},
};

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Returns kArg for a process that `half` has started: one of its two variables is set, but both are needed.
// other, if not null: a launcher that has set both, with a different rank.
Status half_launched(const Variables& variables, const LauncherVariables& half,
                     const LauncherVariables* other) {
  const bool rank = variables.has(half.rank);
  std::string text = cat(variables.shown(rank ? half.rank : half.size), " says that ", name(half.launcher),
                         " started this process, but ");
  if (rank && half.size == nullptr) {
    text += "no variable says how many ranks there are";
  } else {
    text += cat(rank ? half.size : half.rank, " is not set");
  }
  if (other != nullptr) text += cat(", and ", variables.shown(other->rank), " names a different rank");
  return Status::error(Code::kArg, cat(text,
                                       ": set WEFT_RANK, WEFT_SIZE and WEFT_STORE on all ranks, or "
                                       "WEFT_SIZE=1 if this process is a job of its own"));
}

// True if the variable `size` asks for a job of one rank.
bool says_one(const Variables& variables, const char* size) {
  return size != nullptr && variables.text_or_empty(size) == "1";
}

// Sets *found to the launcher that started this process, or null. Returns kArg if a launcher has set one of
// its variables, but the rank or the size is unknown: as a job of one rank, each of its ranks would run
// alone.
Status find_launcher(const Variables& variables, const LauncherVariables** found) {
  *found = nullptr;
  const LauncherVariables* half = nullptr;
  for (const LauncherVariables& candidate : kLaunchers) {
    const bool rank = variables.has(candidate.rank);
    const bool size = candidate.size != nullptr && variables.has(candidate.size);
    if (says_one(variables, candidate.own_size)) continue;
    if (rank && size) {
      // With equal ranks, both describe one job. A size alone contradicts nothing: scripts set WORLD_SIZE for
      // srun.
      if (half != nullptr && variables.has(half->rank) &&
          variables.text_or_empty(half->rank) != variables.text(candidate.rank)) {
        return half_launched(variables, *half, &candidate);
      }
      *found = &candidate;
      return {};
    }
    const bool zero = variables.text_or_empty(candidate.rank) == "0";
    if (rank ? zero && candidate.zero_needs_size : !size || says_one(variables, candidate.size)) continue;
    if (half == nullptr) half = &candidate;
  }
  return half == nullptr ? Status() : half_launched(variables, *half, nullptr);
}

Status check_rank(const char* rank_name, const char* size_name, const Launch& launch) {
  if (launch.rank < launch.size) return {};
  return Status::error(Code::kArg, cat(rank_name, " is ", launch.rank, ", but ", size_name, " is ",
                                       launch.size, ": allowed ranks are 0 to ", launch.size - 1));
}

// Reads WEFT_RANK and WEFT_SIZE, which must both be set; a job of one rank needs no rank number.
Status read_own(const Variables& variables, Launch* launch) {
  const bool rank = variables.has(Variable::kRank);
  if (rank != variables.has(Variable::kSize) && !says_one(variables, name(Variable::kSize))) {
    std::string text = cat(rank ? "WEFT_RANK" : "WEFT_SIZE", " is set, but ",
                           rank ? "WEFT_SIZE" : "WEFT_RANK", " is not. Set both");
    const LauncherVariables* launcher = nullptr;
    if (find_launcher(variables, &launcher).ok() && launcher != nullptr) {
      text += cat(", or none of them: ", name(launcher->launcher), " started this process and says ",
                  variables.shown(launcher->rank), ", ", variables.shown(launcher->size));
    }
    return Status::error(Code::kArg, text);
  }
  launch->launcher = Launcher::kWeft;
  WEFT_TRY(variables.number(Variable::kRank, 0, kMaxRanks - 1, &launch->rank));
  WEFT_TRY(variables.number(Variable::kSize, 1, kMaxRanks, &launch->size));
  return check_rank("WEFT_RANK", "WEFT_SIZE", *launch);
}

// Reads what is not known yet of this process's place: its host, and its number among the ranks of the host.
Status read_place(const Variables& variables, const LauncherVariables& launcher, Launch* launch) {
  const auto number = [&](const char* variable, int least, int most, int* value) -> Status {
    return variable == nullptr ? Status() : variables.number(variable, least, most, value);
  };
  if (launch->local_size == 0) WEFT_TRY(number(launcher.local_size, 1, kMaxRanks, &launch->local_size));
  if (launch->local_rank < 0) WEFT_TRY(number(launcher.local_rank, 0, kMaxRanks - 1, &launch->local_rank));
  if (launch->hosts == 0) WEFT_TRY(number(launcher.hosts, 1, kMaxRanks, &launch->hosts));
  if (launch->host < 0) WEFT_TRY(number(launcher.host, 0, kMaxRanks - 1, &launch->host));
  if (launch->hosts == 1 && launch->local_size == 0) launch->local_size = launch->size;
  return {};
}

// One process on each node is what the program can be without torchrun.
Status check_kubeflow(const Variables& variables, Launch* launch) {
  const std::string processes = variables.text_or_empty("PET_NPROC_PER_NODE");
  launch->local_size = 1;
  if (processes.empty() || processes == "1") return {};
  return Status::error(Code::kArg,
                       cat(variables.shown("PET_NPROC_PER_NODE"),
                           " asks for several processes on each node, but Kubeflow has started this one "
                           "directly: start the program with torchrun, or with weft run -n RANKS "
                           "--first-rank FIRST --size ALL, or set one process on each node "
                           "(numProcPerNode: 1)"));
}

Status read_launcher(const Variables& variables, const LauncherVariables& launcher, Launch* launch) {
  launch->launcher = launcher.launcher;
  if (launcher.launcher == Launcher::kKubeflow) WEFT_TRY(check_kubeflow(variables, launch));
  WEFT_TRY(variables.number(launcher.rank, 0, kMaxRanks - 1, &launch->rank));
  WEFT_TRY(variables.number(launcher.size, 1, kMaxRanks, &launch->size));
  WEFT_TRY(read_place(variables, launcher, launch));
  if (launcher.launcher == Launcher::kSlurm && launch->local_size == 0 && launch->host >= 0)
    launch->local_size = slurm_tasks_on(variables.text_or_empty("SLURM_STEP_TASKS_PER_NODE"), launch->host);
  // Another launcher may describe the same job with more variables: Slurm and Flux start PMI's ranks.
  const auto same = [&](const char* one, const char* other) {
    return other == nullptr || variables.text_or_empty(one) == variables.text_or_empty(other);
  };
  for (const LauncherVariables& other : kLaunchers) {
    if (same(launcher.rank, other.rank) && same(launcher.size, other.size))
      WEFT_TRY(read_place(variables, other, launch));
  }
  return check_rank(launcher.rank, launcher.size, *launch);
}

// Adds what follows from the rest.
void complete_place(Launch* launch) {
  if (launch->local_size == 1) launch->local_rank = 0;
  if (!launch->one_host()) return;
  launch->local_size = launch->size;
  launch->local_rank = launch->rank;
  launch->host = 0;
  launch->hosts = 1;
}

// The launcher's name for the job. `everywhere` is equal on all ranks. `here` is also unique among this
// user's jobs on this host, but may differ between hosts.
struct JobName {
  std::string everywhere;
  std::string here;
};

JobName job_name(const Variables& variables, const ProcessFacts& facts, Launcher launcher) {
  const auto is_it = [&](const LauncherVariables& candidate) { return candidate.launcher == launcher; };
  const auto* const found = std::find_if(std::begin(kLaunchers), std::end(kLaunchers), is_it);
  JobName job;
  if (found == std::end(kLaunchers)) {  // no launcher, or Weft's own variables
    job.here = cat("process ", facts.pid);
    return job;
  }
  const auto append = [&](const char* variable, std::string* name) {
    const std::string value = variable == nullptr ? "" : variables.text_or_empty(variable);
    if (!value.empty()) *name += (name->empty() ? "" : "/") + value;
  };
  for (const char* part : found->job) append(part, &job.everywhere);
  job.here = job.everywhere;
  append(found->job_here, &job.here);
  if (job.everywhere.empty() && found->one_parent) job.here = cat("parent ", facts.parent_pid);
  return job;
}

// Returns the address HOST:PORT of two variables. in_use: the launcher's own store occupies the port.
Status master_store(const Variables& variables, const char* host_name, const char* port_name, bool in_use,
                    std::string* store) {
  const char* host = variables.text(host_name);
  if (host == nullptr || !variables.has(port_name)) {
    return Status::error(Code::kArg,
                         cat(host ? port_name : host_name,
                             " is not set, so Weft has no address for the ranks' store: set it, or set "
                             "WEFT_STORE=tcp://HOST_OF_RANK_0:PORT"));
  }
  int port = 0;
  WEFT_TRY(variables.number(port_name, 1, in_use ? 65534 : 65535, &port));
  const bool bare_ipv6 = std::strchr(host, ':') != nullptr && host[0] != '[';
  *store = cat("tcp://", bare_ipv6 ? "[" : "", host, bare_ipv6 ? "]" : "", ":", in_use ? port + 1 : port);
  return {};
}

// Without a secret the ranks meet through the job's folder, which Slurm's nodes share as a rule. With one, at
// the first host of the step, which has rank 0. The port is the job's and the step's, below the ports that
// the kernel gives to connections.
Status slurm_store(const Variables& variables, std::string* store) {
  const bool secret = variables.has(Variable::kSecret) || variables.has(Variable::kSecretFile);
  for (const char* const folder : {"SLURM_SUBMIT_DIR", "HOME"}) {
    if (secret || !variables.has(folder)) continue;
    *store = cat("file://", variables.text(folder));
    return {};
  }
  const std::string host = first_slurm_host(variables.text_or_empty("SLURM_STEP_NODELIST"));
  if (host.empty()) {
    return variables.bad("SLURM_STEP_NODELIST",
                         "a list of hosts, of which the first has rank 0; or set "
                         "WEFT_STORE=tcp://HOST_OF_RANK_0:PORT on all ranks");
  }
  NetworkSettings network;
  WEFT_TRY(read_network(variables, &network));
  if (network.first_port == 0) network = {.first_port = 10000, .last_port = 29999};
  const uint64_t hash =
      fnv1a(cat(variables.text_or_empty("SLURM_JOB_ID"), ".", variables.text_or_empty("SLURM_STEP_ID")));
  *store = cat("tcp://", host, ":", network.first_port + hash % static_cast<uint64_t>(network.ports()));
  return {};
}

}  // namespace

const char* name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "no launcher";
    case Launcher::kWeft:
      return "weft";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "Open MPI";
    case Launcher::kPmi:
      return "PMI";
    case Launcher::kSlurm:
      return "Slurm";
    case Launcher::kHorovod:
      return "horovodrun";
    case Launcher::kMvapich:
      return "MVAPICH2";
    case Launcher::kJsrun:
      return "jsrun";
    case Launcher::kFlux:
      return "Flux";
    case Launcher::kPmix:
      return "a PMIx launcher";
    case Launcher::kPals:
      return "PALS";
    case Launcher::kAlps:
      return "aprun";
    case Launcher::kKubeflow:
      return "Kubeflow";
  }
  return "?";
}

Status read_launch(const Variables& variables, Launch* launch) {
  const LauncherVariables* launcher = nullptr;
  if (variables.has(Variable::kRank) || variables.has(Variable::kSize)) {
    WEFT_TRY(read_own(variables, launch));
  } else {
    WEFT_TRY(find_launcher(variables, &launcher));
    if (launcher != nullptr) WEFT_TRY(read_launcher(variables, *launcher, launch));
  }
  WEFT_TRY(variables.number(Variable::kLocalSize, 1, launch->size, &launch->local_size));
  const int most = (launch->local_size > 0 ? launch->local_size : launch->size) - 1;
  WEFT_TRY(variables.number(Variable::kLocalRank, 0, most, &launch->local_rank));
  complete_place(launch);
  launch->job = job_name(variables, {}, launch->launcher).everywhere;
  return {};
}

Status default_store(const Variables& variables, const ProcessFacts& facts, const Launch& launch,
                     std::string* store) {
  std::string job = job_name(variables, facts, launch.launcher).here;
  if (launch.size == 1 && job.empty()) job = cat("process ", facts.pid);
  if (launch.launcher == Launcher::kWeft && launch.size > 1) {
    return Status::error(Code::kArg,
                         "WEFT_RANK and WEFT_SIZE are set, but WEFT_STORE is not: set it on all ranks to "
                         "tcp://HOST_OF_RANK_0:PORT, to file:///FOLDER_THAT_ALL_HOSTS_SEE or, on one "
                         "host, unix:@NAME");
  }
  if (launch.one_host() && !job.empty()) {
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx",
                  static_cast<unsigned long long>(fnv1a(cat(name(launch.launcher), "/", job))));
    *store = cat("unix:@weft-", facts.uid, "-", hash);
    return {};
  }
  if (launch.launcher == Launcher::kTorchrun)
    return master_store(variables, "MASTER_ADDR", "MASTER_PORT", true, store);
  if (launch.launcher == Launcher::kKubeflow)
    return master_store(variables, "PET_MASTER_ADDR", "PET_MASTER_PORT", false, store);
  if (launch.launcher == Launcher::kSlurm) return slurm_store(variables, store);
  return Status::error(Code::kArg,
                       cat(name(launch.launcher), " started ", launch.size, " ranks, ",
                           launch.local_size == 0 ? "not known to be on one host"
                                                  : cat(launch.local_size, " of them on this host"),
                           ", and gives no address for their store: set WEFT_STORE=tcp://HOST_OF_RANK_0:PORT "
                           "and WEFT_SECRET_FILE on all ranks"));
}

Launcher process_mpi_launcher(int* ranks) {
  Launcher found = Launcher::kNone;
  const auto read = [&](const Variables& variables) -> Status {
    for (const LauncherVariables& candidate : kLaunchers) {
      if (candidate.launcher != Launcher::kOpenMpi && candidate.launcher != Launcher::kPmi) continue;
      if (!variables.has(candidate.rank)) continue;
      if (ranks != nullptr && !variables.number(candidate.size, 1, kMaxRanks, ranks).ok()) *ranks = 0;
      found = candidate.launcher;
      break;
    }
    return {};
  };
  (void)with_process_variables(read).ok();
  return found;
}

}  // namespace weft
