#include "base/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/fd.h"
#include "base/text.h"

namespace weft {
namespace {

// The variables of a launcher. Null: the launcher sets no such variable.
struct LauncherVariables {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_size;  // ranks on this host
  const char* hosts;       // hosts of the job
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
     .local_size = "LOCAL_WORLD_SIZE",
     .hosts = nullptr,
     .job = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
    {.launcher = Launcher::kHorovod,
     .rank = "HOROVOD_RANK",
     .size = "HOROVOD_SIZE",
     .local_size = "HOROVOD_LOCAL_SIZE",
     .hosts = nullptr,
     .job = {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"}},
    // Open MPI 4's job numbers have 16 random bits; the address of its daemon makes them unique.
    {.launcher = Launcher::kOpenMpi,
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .hosts = nullptr,
     .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
     .job_here = "PMIX_SERVER_URI2"},
    {.launcher = Launcher::kMvapich,
     .rank = "MV2_COMM_WORLD_RANK",
     .size = "MV2_COMM_WORLD_SIZE",
     .local_size = "MV2_COMM_WORLD_LOCAL_SIZE",
     .hosts = nullptr,
     .one_parent = true},
    // MPICH's hydra has no job name, but its proxy is the parent of all ranks of a host.
    {.launcher = Launcher::kPmi,
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_size = "MPI_LOCALNRANKS",
     .hosts = nullptr,
     .job = {"PMI_JOBID", "I_MPI_HYDRA_UUID"},
     .one_parent = true},
    {.launcher = Launcher::kJsrun,
     .rank = "JSM_NAMESPACE_RANK",
     .size = "JSM_NAMESPACE_SIZE",
     .local_size = "JSM_NAMESPACE_LOCAL_SIZE",
     .hosts = nullptr,
     .job = {"PMIX_NAMESPACE"},
     .one_parent = true},
    {.launcher = Launcher::kFlux,
     .rank = "FLUX_TASK_RANK",
     .size = "FLUX_JOB_SIZE",
     .local_size = nullptr,
     .hosts = "FLUX_JOB_NNODES",
     .job = {"FLUX_JOB_ID"},
     .job_here = "FLUX_URI",
     .one_parent = true},
    // These launchers do not set the number of ranks. Most programs that they start have another launcher's
    // variables too. Open MPI 4 without mpirun sets PMIx's variables itself, when MPI is initialised.
    {.launcher = Launcher::kPmix,
     .rank = "PMIX_RANK",
     .size = nullptr,
     .local_size = nullptr,
     .hosts = nullptr,
     .own_size = "OMPI_MCA_orte_ess_num_procs"},
    {.launcher = Launcher::kPals,
     .rank = "PALS_RANKID",
     .size = nullptr,
     .local_size = "PALS_LOCAL_SIZE",
     .hosts = nullptr},
    {.launcher = Launcher::kAlps,
     .rank = "ALPS_APP_PE",
     .size = nullptr,
     .local_size = nullptr,
     .hosts = nullptr},
    // SLURM_NTASKS is the allocation's size; with srun --ntasks inside a larger allocation the step's size
    // applies. Batch scripts and interactive shells have a rank too, but only srun's tasks are ranks.
    {.launcher = Launcher::kSlurm,
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .local_size = nullptr,
     .hosts = "SLURM_STEP_NUM_NODES",
     .job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     .zero_needs_size = true},
};

constexpr size_t kShown = 64;  // most bytes of a value that an error shows; a value may be anything

// Reads variables, treating empty ones as unset, and makes the errors about them.
class Variables {
 public:
  explicit Variables(const Getter& get) : get_(get) {}

  const char* text(const char* name) const {
    const char* value = get_(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
  }
  bool has(const char* name) const { return text(name) != nullptr; }
  std::string text_or_empty(const char* name) const {
    const char* value = text(name);
    return value != nullptr ? value : "";
  }
  // Parses decimal digits only, up to `most`; *number is unchanged if the variable is unset.
  Status number(const char* name, int least, int most, int* number) const {
    const char* value = text(name);
    if (value == nullptr) return {};
    const std::string wanted = cat("a whole number from ", least, " to ", most);
    int64_t parsed = 0;
    for (const char* c = value; *c != '\0'; c++) {
      if (*c < '0' || *c > '9') return bad(name, wanted);
      parsed = parsed * 10 + (*c - '0');
      if (parsed > std::numeric_limits<int>::max()) return bad(name, wanted);
    }
    if (parsed < least || parsed > most) return bad(name, wanted);
    *number = static_cast<int>(parsed);
    return {};
  }
  Status bad(const char* name, const std::string& wanted) const {
    std::string value = text_or_empty(name);
    if (value.size() > kShown) {
      value.erase(kShown);
      value.append("...");
    }
    return Status::error(Code::kArg, cat(name, " is \"", value, "\", but must be ", wanted));
  }

 private:
  const Getter& get_;
};

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Returns "RANK=3".
std::string shown(const Variables& variables, const char* variable) {
  return cat(variable, "=", variables.text_or_empty(variable).substr(0, kShown));
}

// Returns kArg for a process that `half` has started: one of its two variables is set, but both are needed.
// other, if not null: a launcher that has set both, with a different rank.
Status half_launched(const Variables& variables, const LauncherVariables& half,
                     const LauncherVariables* other) {
  const bool rank = variables.has(half.rank);
  std::string text = cat(shown(variables, rank ? half.rank : half.size), " says that ", name(half.launcher),
                         " started this process, but ");
  if (rank && half.size == nullptr) {
    text += "no variable says how many ranks there are";
  } else {
    text += cat(rank ? half.size : half.rank, " is not set");
  }
  if (other != nullptr) text += cat(", and ", shown(variables, other->rank), " names a different rank");
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

Status check_rank(const char* rank_name, const char* size_name, const Environment& environment) {
  if (environment.rank < environment.size) return {};
  return Status::error(Code::kArg, cat(rank_name, " is ", environment.rank, ", but ", size_name, " is ",
                                       environment.size, ": allowed ranks are 0 to ", environment.size - 1));
}

// Reads WEFT_RANK and WEFT_SIZE, which must both be set; a job of one rank needs no rank number.
Status read_own(const Variables& variables, Environment* environment) {
  const bool rank = variables.has("WEFT_RANK");
  if (rank != variables.has("WEFT_SIZE") && !says_one(variables, "WEFT_SIZE")) {
    std::string text = cat(rank ? "WEFT_RANK" : "WEFT_SIZE", " is set, but ",
                           rank ? "WEFT_SIZE" : "WEFT_RANK", " is not. Set both");
    const LauncherVariables* launcher = nullptr;
    if (find_launcher(variables, &launcher).ok() && launcher != nullptr) {
      text += cat(", or none of them: ", name(launcher->launcher), " started this process and says ",
                  shown(variables, launcher->rank), ", ", shown(variables, launcher->size));
    }
    return Status::error(Code::kArg, text);
  }
  environment->launcher = Launcher::kWeft;
  WEFT_TRY(variables.number("WEFT_RANK", 0, kMaxRanks - 1, &environment->rank));
  WEFT_TRY(variables.number("WEFT_SIZE", 1, kMaxRanks, &environment->size));
  return check_rank("WEFT_RANK", "WEFT_SIZE", *environment);
}

// Sets environment->local_size if the launcher sets it, or sets the number of hosts to one.
Status read_local_size(const Variables& variables, const LauncherVariables& launcher,
                       Environment* environment) {
  if (launcher.local_size != nullptr) {
    WEFT_TRY(variables.number(launcher.local_size, 1, kMaxRanks, &environment->local_size));
  }
  if (launcher.hosts == nullptr || environment->local_size != 0) return {};
  int hosts = 0;
  WEFT_TRY(variables.number(launcher.hosts, 1, kMaxRanks, &hosts));
  if (hosts == 1) environment->local_size = environment->size;
  return {};
}

Status read_launcher(const Variables& variables, const LauncherVariables& launcher,
                     Environment* environment) {
  environment->launcher = launcher.launcher;
  WEFT_TRY(variables.number(launcher.rank, 0, kMaxRanks - 1, &environment->rank));
  WEFT_TRY(variables.number(launcher.size, 1, kMaxRanks, &environment->size));
  WEFT_TRY(read_local_size(variables, launcher, environment));
  // Another launcher may describe the same job with more variables: Slurm and Flux start PMI's ranks.
  const auto same = [&](const char* one, const char* other) {
    return other == nullptr || variables.text_or_empty(one) == variables.text_or_empty(other);
  };
  for (const LauncherVariables& other : kLaunchers) {
    if (environment->local_size != 0) break;
    if (same(launcher.rank, other.rank) && same(launcher.size, other.size))
      WEFT_TRY(read_local_size(variables, other, environment));
  }
  return check_rank(launcher.rank, launcher.size, *environment);
}

// The launcher's name for the job. `everywhere` is equal on all ranks. `here` is also unique among this
// user's jobs on this host, but may differ between hosts.
struct JobName {
  std::string everywhere;
  std::string here;
};

// launcher: null for a process without a launcher, or with Weft's own variables.
JobName job_name(const Variables& variables, const ProcessFacts& facts, const LauncherVariables* launcher) {
  JobName job;
  if (launcher == nullptr) {
    job.here = cat("process ", facts.pid);
    return job;
  }
  const auto append = [&](const char* variable, std::string* name) {
    const std::string value = variable == nullptr ? "" : variables.text_or_empty(variable);
    if (!value.empty()) *name += (name->empty() ? "" : "/") + value;
  };
  for (const char* part : launcher->job) append(part, &job.everywhere);
  job.here = job.everywhere;
  append(launcher->job_here, &job.here);
  if (job.everywhere.empty() && launcher->one_parent) job.here = cat("parent ", facts.parent_pid);
  return job;
}

Status torchrun_store(const Variables& variables, std::string* store) {
  const char* host = variables.text("MASTER_ADDR");
  if (host == nullptr || !variables.has("MASTER_PORT")) {
    return Status::error(Code::kArg,
                         cat("torchrun's ", host ? "MASTER_PORT" : "MASTER_ADDR",
                             " is not set, so Weft has no address for the ranks' store: set it, or set "
                             "WEFT_STORE=tcp://HOST_OF_RANK_0:PORT"));
  }
  int port = 0;
  WEFT_TRY(variables.number("MASTER_PORT", 1, 65534, &port));
  const bool bare_ipv6 = std::strchr(host, ':') != nullptr && host[0] != '[';
  *store = cat("tcp://", bare_ipv6 ? "[" : "", host, bare_ipv6 ? "]" : "", ":", port + 1);
  return {};
}

// Chooses the store's address when WEFT_STORE is unset. On one host: a unix socket named after the user and
// the job. With torchrun on several hosts: the port after MASTER_PORT, which torchrun's own store occupies.
Status store_rule(const Variables& variables, const ProcessFacts& facts, const JobName& job,
                  Environment* environment) {
  const bool one_host = environment->size == 1 || environment->local_size == environment->size;
  if (environment->launcher == Launcher::kWeft && environment->size > 1) {
    return Status::error(Code::kArg,
                         "WEFT_RANK and WEFT_SIZE are set, but WEFT_STORE is not: set it on all ranks to "
                         "tcp://HOST_OF_RANK_0:PORT or, on one host, unix:@NAME");
  }
  if (one_host && !job.here.empty()) {
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx",
                  static_cast<unsigned long long>(fnv1a(cat(name(environment->launcher), "/", job.here))));
    environment->store = cat("unix:@weft-", facts.uid, "-", hash);
    return {};
  }
  if (environment->launcher == Launcher::kTorchrun) return torchrun_store(variables, &environment->store);
  return Status::error(
      Code::kArg, cat(name(environment->launcher), " started ", environment->size, " ranks, ",
                      environment->local_size == 0 ? "not known to be on one host"
                                                   : cat(environment->local_size, " of them on this host"),
                      ", and gives no address for their store: set WEFT_STORE=tcp://HOST_OF_RANK_0:PORT "
                      "and WEFT_SECRET_FILE on all ranks"));
}

Status check_secret(const char* source, size_t size) {
  if (size >= kMinSecretBytes && size <= kMaxSecretBytes) return {};
  return Status::error(Code::kAuth, cat(source, " holds a secret of ", size, " bytes: allowed are ",
                                        kMinSecretBytes, " to ", kMaxSecretBytes, " bytes"));
}

Status read_secret(const Variables& variables, Environment* environment) {
  environment->secret_file = variables.text_or_empty("WEFT_SECRET_FILE");
  const std::string secret = variables.text_or_empty("WEFT_SECRET");
  if (secret.empty()) return {};
  if (!environment->secret_file.empty()) {
    return Status::error(Code::kArg, "WEFT_SECRET and WEFT_SECRET_FILE are both set: set one of them");
  }
  WEFT_TRY(check_secret("WEFT_SECRET", secret.size()));
  const ByteView bytes = std::as_bytes(std::span(secret));
  environment->secret.assign(bytes.begin(), bytes.end());
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
  }
  return "?";
}

void read_settings(const Getter& get, Environment* environment) {
  *environment = Environment();
  const Variables variables(get);
  environment->job = variables.text_or_empty("WEFT_JOB");
  environment->backend = variables.text_or_empty("WEFT_BACKEND");
  environment->algorithms = variables.text_or_empty("WEFT_ALGORITHMS");
  environment->shm_thresholds = variables.text_or_empty("WEFT_SHM_THRESHOLDS");
  environment->hosts = variables.text_or_empty("WEFT_HOSTS");
  environment->heartbeat = variables.text_or_empty("WEFT_HEARTBEAT_MS");
  environment->flight = variables.text_or_empty("WEFT_FLIGHT");
  environment->cuda_runtime = variables.text_or_empty("WEFT_CUDA_RUNTIME");
  environment->nccl_library = variables.text_or_empty("WEFT_NCCL_LIBRARY");
  environment->failpoints = variables.text_or_empty("WEFT_FAILPOINTS");
}

Status read_environment(const Getter& get, const ProcessFacts& facts, Environment* environment) {
  read_settings(get, environment);
  const Variables variables(get);
  const LauncherVariables* launcher = nullptr;
  if (variables.has("WEFT_RANK") || variables.has("WEFT_SIZE")) {
    WEFT_TRY(read_own(variables, environment));
  } else {
    WEFT_TRY(find_launcher(variables, &launcher));
    if (launcher != nullptr) WEFT_TRY(read_launcher(variables, *launcher, environment));
  }
  WEFT_TRY(variables.number("WEFT_LOCAL_SIZE", 1, environment->size, &environment->local_size));

  JobName job = job_name(variables, facts, launcher);
  if (environment->size == 1 && job.here.empty()) job.here = cat("process ", facts.pid);
  if (environment->job.empty()) environment->job = job.everywhere;
  environment->store = variables.text_or_empty("WEFT_STORE");
  if (environment->store.empty()) WEFT_TRY(store_rule(variables, facts, job, environment));
  int external = 0;
  WEFT_TRY(variables.number("WEFT_STORE_EXTERNAL", 0, 1, &external));
  environment->store_external = external == 1;
  return read_secret(variables, environment);
}

Status parse_hosts(const std::string& text, int rank, int size, int* label) {
  *label = -1;
  if (text.empty()) return {};
  std::string_view rest = text;
  int ranks = 0;
  for (bool more = true; more; ranks++) {
    const size_t comma = rest.find(',');
    const std::string_view number = rest.substr(0, comma);
    more = comma != rest.npos;
    rest.remove_prefix(more ? comma + 1 : rest.size());
    int value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size() || value < 0 || value >= kMaxRanks) {
      return Status::error(
          Code::kArg,
          cat("WEFT_HOSTS is \"", text.substr(0, kShown), "\", but the entry for rank ", ranks, ", \"",
              number.substr(0, kShown), "\", is not a host number from 0 to ", kMaxRanks - 1));
    }
    if (ranks == rank) *label = value;
  }
  if (ranks == size) return {};
  return Status::error(Code::kArg, cat("WEFT_HOSTS has ", ranks, ranks == 1 ? " entry" : " entries",
                                       ", but the communicator has ", size, size == 1 ? " rank" : " ranks",
                                       ": give one host number for each rank, separated by commas"));
}

Status parse_heartbeat(const std::string& text, int64_t* ms) {
  if (text.empty()) return {};
  int64_t number = text == "off" ? -1 : 0;
  if (number == 0) {
    const char* const end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || parsed != end || number < kLeastHeartbeatMs) {
      return Status::error(Code::kArg, cat("WEFT_HEARTBEAT_MS is \"", text.substr(0, kShown),
                                           "\", but must be a whole number of milliseconds from ",
                                           kLeastHeartbeatMs, " on, or \"off\""));
    }
  }
  *ms = number;
  return {};
}

namespace {

// Returns true if the group is the effective or a supplementary group of this process.
bool is_own_group(gid_t group) {
  if (group == ::getegid()) return true;
  const int count = ::getgroups(0, nullptr);
  std::vector<gid_t> groups(static_cast<size_t>(std::max(count, 0)));
  const int got = ::getgroups(count, groups.data());  // -1: root has changed the groups since the count
  return got > 0 && std::find(groups.begin(), groups.begin() + got, group) != groups.begin() + got;
}

// Returns kAuth, with the file's actual and required permissions.
Status bad_secret_file(const std::string& path, const struct stat& about, const char* problem) {
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(about.st_mode & 07777));
  return Status::error(
      Code::kAuth,
      cat("WEFT_SECRET_FILE ", path, " ", problem, ": it has mode ", mode, ", owner ", about.st_uid,
          " and group ", about.st_gid, "; this process is user ", ::geteuid(), ", group ", ::getegid(),
          ". It must belong to this user or root and be closed to all others (chmod 600), or belong to root "
          "and be readable by a group of this process (chmod 440)"));
}

// Only this user and root may have access to the file. Root may also make it readable to a group of this
// process, as Kubernetes does with a pod's secrets.
Status check_secret_file(const std::string& path, const struct stat& about) {
  const mode_t others = about.st_mode & (S_IRWXG | S_IRWXO);
  const bool owned = about.st_uid == ::geteuid() || about.st_uid == 0;
  const bool by_group = others == S_IRGRP && about.st_uid == 0 && is_own_group(about.st_gid);
  if (owned && (others == 0 || by_group)) return {};
  return bad_secret_file(path, about, "is open to other users");
}

}  // namespace

Status load_secret(Environment* environment) {
  const std::string& path = environment->secret_file;
  if (path.empty()) return {};
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  const int error = errno;
  struct stat about{};
  if (!file.valid() && error == EACCES && ::stat(path.c_str(), &about) == 0)
    return bad_secret_file(path, about, "cannot be read");
  if (!file.valid()) return Status::system(cat("cannot open WEFT_SECRET_FILE ", path), error);
  if (::fstat(file.get(), &about) != 0)
    return Status::system(cat("cannot examine WEFT_SECRET_FILE ", path), errno);
  if (!S_ISREG(about.st_mode)) {
    return Status::error(Code::kAuth, cat("WEFT_SECRET_FILE ", path,
                                          " is not a regular file: name a file that contains the secret"));
  }
  WEFT_TRY(check_secret_file(path, about));
  Bytes secret(kMaxSecretBytes + 2);
  const ssize_t got = ::read(file.get(), secret.data(), secret.size());
  if (got < 0) return Status::system(cat("cannot read WEFT_SECRET_FILE ", path), errno);
  secret.resize(static_cast<size_t>(got));
  if (!secret.empty() && secret.back() == std::byte{'\n'}) secret.pop_back();
  WEFT_TRY(check_secret(cat("WEFT_SECRET_FILE ", path).c_str(), secret.size()));
  environment->secret = std::move(secret);
  return {};
}

namespace {

// Guards the process-wide environment against concurrent changes by this library.
std::mutex& environment_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

void process_settings(Environment* environment) {
  const std::lock_guard lock(environment_mutex());
  read_settings([](const char* variable) { return std::getenv(variable); }, environment);
}

Status process_environment(Environment* environment) {
  const ProcessFacts facts{::getuid(), ::getpid(), ::getppid()};
  {
    const std::lock_guard lock(environment_mutex());
    WEFT_TRY(
        read_environment([](const char* variable) { return std::getenv(variable); }, facts, environment));
  }
  return load_secret(environment);
}

Status process_secret(Bytes* secret) {
  Environment environment;
  {
    const std::lock_guard lock(environment_mutex());
    const Getter get = [](const char* variable) { return std::getenv(variable); };
    WEFT_TRY(read_secret(Variables(get), &environment));
  }
  WEFT_TRY(load_secret(&environment));
  *secret = std::move(environment.secret);
  return {};
}

Launcher process_mpi_launcher(int* ranks) {
  const std::lock_guard lock(environment_mutex());
  const Getter get = [](const char* variable) { return std::getenv(variable); };
  const Variables variables(get);
  for (const LauncherVariables& candidate : kLaunchers) {
    if (candidate.launcher != Launcher::kOpenMpi && candidate.launcher != Launcher::kPmi) continue;
    if (!variables.has(candidate.rank)) continue;
    if (ranks != nullptr && !variables.number(candidate.size, 1, kMaxRanks, ranks).ok()) *ranks = 0;
    return candidate.launcher;
  }
  return Launcher::kNone;
}

TemporaryEnvironment::TemporaryEnvironment(std::vector<EnvironmentVariable> variables)
    : lock_(environment_mutex()), set_(std::move(variables)) {
  const auto is_set = [](const EnvironmentVariable& v) { return std::getenv(v.name) != nullptr; };
  set_.erase(std::remove_if(set_.begin(), set_.end(), is_set), set_.end());
  for (const EnvironmentVariable& v : set_) ::setenv(v.name, v.value, 1);
}

TemporaryEnvironment::~TemporaryEnvironment() {
  for (const EnvironmentVariable& v : set_) ::unsetenv(v.name);
}

}  // namespace weft
