#include "base/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

// How the launchers name what Weft needs. Null: they do not say.
struct LauncherVariables {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_size;
};
constexpr LauncherVariables kLaunchers[] = {
    {Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    {Launcher::kSlurm, "SLURM_PROCID", "SLURM_NTASKS", nullptr},
};

// The variables, with empty ones unset, and the errors about them.
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
  // Decimal digits only, at most `most`; *number is untouched when the variable is unset.
  Status number(const char* name, int least, int most, int* number) const {
    const char* value = text(name);
    if (value == nullptr) return {};
    int64_t parsed = 0;
    for (const char* c = value; *c != '\0'; c++) {
      if (*c < '0' || *c > '9') return bad(name, "a whole number");
      parsed = parsed * 10 + (*c - '0');
      if (parsed > std::numeric_limits<int>::max()) return bad(name, cat("at most ", most));
    }
    if (parsed < least || parsed > most) return bad(name, cat("a number from ", least, " to ", most));
    *number = static_cast<int>(parsed);
    return {};
  }
  Status bad(const char* name, const std::string& wanted) const {
    constexpr size_t kShown = 64;  // a value may be anything
    std::string value = text_or_empty(name);
    if (value.size() > kShown) value = value.substr(0, kShown) + "...";
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

// The launcher that started this process, or null.
const LauncherVariables* find_launcher(const Variables& variables) {
  for (const LauncherVariables& candidate : kLaunchers) {
    if (!variables.has(candidate.rank) || !variables.has(candidate.size)) continue;
    // Slurm's batch script and interactive shells have a rank as well, but only srun's tasks are ranks.
    if (candidate.launcher == Launcher::kSlurm && !variables.has("SLURM_STEP_NUM_TASKS")) continue;
    return &candidate;
  }
  return nullptr;
}

Status check_rank(const char* rank_name, const char* size_name, const Environment& environment) {
  if (environment.rank < environment.size) return {};
  return Status::error(Code::kArg, cat(rank_name, " is ", environment.rank, ", but ", size_name, " is ",
                                       environment.size, ": ranks count from 0"));
}

// WEFT_RANK and WEFT_SIZE, which come together.
Status read_own(const Variables& variables, const LauncherVariables* launcher, Environment* environment) {
  const bool rank = variables.has("WEFT_RANK");
  if (rank != variables.has("WEFT_SIZE")) {
    std::string text = cat(rank ? "WEFT_RANK" : "WEFT_SIZE", " is set, but ",
                           rank ? "WEFT_SIZE" : "WEFT_RANK", " is not. Set both");
    if (launcher != nullptr) {
      text += cat(", or none of them: ", name(launcher->launcher), " started this process and says ",
                  launcher->rank, "=", variables.text(launcher->rank), ", ", launcher->size, "=",
                  variables.text(launcher->size));
    }
    return Status::error(Code::kArg, text);
  }
  environment->launcher = Launcher::kWeft;
  WEFT_TRY(variables.number("WEFT_RANK", 0, kMaxRanks - 1, &environment->rank));
  WEFT_TRY(variables.number("WEFT_SIZE", 1, kMaxRanks, &environment->size));
  return check_rank("WEFT_RANK", "WEFT_SIZE", *environment);
}

Status read_launcher(const Variables& variables, const LauncherVariables& launcher,
                     Environment* environment) {
  environment->launcher = launcher.launcher;
  // srun --ntasks inside a larger allocation: the step's number is the one that counts.
  const char* size_name = launcher.launcher == Launcher::kSlurm ? "SLURM_STEP_NUM_TASKS" : launcher.size;
  WEFT_TRY(variables.number(launcher.rank, 0, kMaxRanks - 1, &environment->rank));
  WEFT_TRY(variables.number(size_name, 1, kMaxRanks, &environment->size));
  if (launcher.local_size != nullptr) {
    WEFT_TRY(variables.number(launcher.local_size, 1, kMaxRanks, &environment->local_size));
  }
  if (environment->local_size == 0 && launcher.launcher >= Launcher::kPmi) {
    int nodes = 0;
    WEFT_TRY(variables.number("SLURM_STEP_NUM_NODES", 1, kMaxRanks, &nodes));
    if (nodes == 1) environment->local_size = environment->size;
  }
  return check_rank(launcher.rank, size_name, *environment);
}

// What the launcher calls the job. `everywhere` is equal on all ranks; `here` is also different from all
// other jobs of this user on this host, but perhaps not equal on other hosts.
struct JobName {
  std::string everywhere;
  std::string here;
};

JobName job_name(const Variables& variables, const ProcessFacts& facts, Launcher launcher) {
  const auto join = [&](std::initializer_list<const char*> names) {
    std::string text;
    for (const char* each : names) {
      const std::string value = variables.text_or_empty(each);
      if (!value.empty()) text += (text.empty() ? "" : "/") + value;
    }
    return text;
  };
  JobName job;
  switch (launcher) {
    case Launcher::kTorchrun:
      job.everywhere =
          join({"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"});
      job.here = job.everywhere;
      break;
    case Launcher::kOpenMpi:
      // Open MPI 4's job numbers have 16 random bits; the address of its daemon makes them unique.
      job.everywhere = join({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
      job.here = join({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMIX_SERVER_URI2"});
      break;
    case Launcher::kPmi:
      job.everywhere = join({"PMI_JOBID", "I_MPI_HYDRA_UUID"});
      // MPICH's hydra names no job, but its proxy is the parent of all ranks of a host.
      job.here = job.everywhere.empty() ? cat("parent ", facts.parent_pid) : job.everywhere;
      break;
    case Launcher::kSlurm:
      job.everywhere = join({"SLURM_JOB_ID", "SLURM_STEP_ID"});
      job.here = job.everywhere;
      break;
    case Launcher::kNone:
    case Launcher::kWeft:
      job.here = cat("process ", facts.pid);
      break;
  }
  return job;
}

Status torchrun_store(const Variables& variables, std::string* store) {
  const char* host = variables.text("MASTER_ADDR");
  if (host == nullptr || !variables.has("MASTER_PORT")) {
    return Status::error(Code::kArg,
                         cat("torchrun's ", host ? "MASTER_PORT" : "MASTER_ADDR",
                             " is not set, so the ranks do not know where to meet: set it, or set "
                             "WEFT_STORE=tcp://HOST_OF_RANK_0:PORT"));
  }
  int port = 0;
  WEFT_TRY(variables.number("MASTER_PORT", 1, 65534, &port));
  const bool bare_ipv6 = std::strchr(host, ':') != nullptr && host[0] != '[';
  *store = cat("tcp://", bare_ipv6 ? "[" : "", host, bare_ipv6 ? "]" : "", ":", port + 1);
  return {};
}

// Where the ranks meet when WEFT_STORE does not say: on one host in a unix socket named after user and job;
// with torchrun on several hosts beside its own store, which occupies MASTER_PORT.
Status store_rule(const Variables& variables, const ProcessFacts& facts, const JobName& job,
                  Environment* environment) {
  const bool one_host = environment->size == 1 || environment->local_size == environment->size;
  if (environment->launcher == Launcher::kWeft && environment->size > 1) {
    return Status::error(Code::kArg,
                         "WEFT_RANK and WEFT_SIZE are set, but WEFT_STORE is not: set it to where the ranks "
                         "meet, tcp://HOST_OF_RANK_0:PORT or, on one host, unix:@NAME");
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
                      ", and does not say where they can meet: set WEFT_STORE=tcp://HOST_OF_RANK_0:PORT "
                      "and WEFT_SECRET_FILE on all ranks"));
}

Status check_secret(const char* source, size_t size) {
  if (size >= kMinSecretBytes && size <= kMaxSecretBytes) return {};
  return Status::error(Code::kAuth, cat(source, " holds a secret of ", size, " bytes, but it must have ",
                                        kMinSecretBytes, " to ", kMaxSecretBytes));
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
  environment->shm_nodes = variables.text_or_empty("WEFT_SHM_NODES");
  environment->hosts = variables.text_or_empty("WEFT_HOSTS");
  environment->flight = variables.text_or_empty("WEFT_FLIGHT");
  environment->cuda_runtime = variables.text_or_empty("WEFT_CUDA_RUNTIME");
  environment->nccl_library = variables.text_or_empty("WEFT_NCCL_LIBRARY");
  environment->failpoints = variables.text_or_empty("WEFT_FAILPOINTS");
}

Status read_environment(const Getter& get, const ProcessFacts& facts, Environment* environment) {
  read_settings(get, environment);
  const Variables variables(get);
  const LauncherVariables* launcher = find_launcher(variables);
  if (variables.has("WEFT_RANK") || variables.has("WEFT_SIZE")) {
    WEFT_TRY(read_own(variables, launcher, environment));
  } else if (launcher != nullptr) {
    WEFT_TRY(read_launcher(variables, *launcher, environment));
  }
  WEFT_TRY(variables.number("WEFT_LOCAL_SIZE", 1, environment->size, &environment->local_size));

  const JobName job = job_name(variables, facts, environment->launcher);
  if (environment->job.empty()) environment->job = job.everywhere;
  environment->store = variables.text_or_empty("WEFT_STORE");
  if (environment->store.empty()) WEFT_TRY(store_rule(variables, facts, job, environment));
  int external = 0;
  WEFT_TRY(variables.number("WEFT_STORE_EXTERNAL", 0, 1, &external));
  environment->store_external = external == 1;
  return read_secret(variables, environment);
}

namespace {

// Of a variable with a number for each rank, which says on which `thing` it is.
Status parse_places(const char* variable, const char* thing, const std::string& text, int rank, int size,
                    int* label) {
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
      return Status::error(Code::kArg,
                           cat(variable, " \"", text, "\": \"", number, "\" is no ", thing, "'s number"));
    }
    if (ranks == rank) *label = value;
  }
  if (ranks == size) return {};
  return Status::error(Code::kArg,
                       cat(variable, " names the ", thing, "s of ", ranks, " ranks, but there are ", size));
}

}  // namespace

Status parse_hosts(const std::string& text, int rank, int size, int* label) {
  return parse_places("WEFT_HOSTS", "host", text, rank, size, label);
}

Status parse_nodes(const std::string& text, int rank, int size, int* node) {
  if (text != "one") return parse_places("WEFT_SHM_NODES", "node", text, rank, size, node);
  *node = 0;
  return {};
}

Status load_secret(Environment* environment) {
  const std::string& path = environment->secret_file;
  if (path.empty()) return {};
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat about{};
  if (!file.valid() || ::fstat(file.get(), &about) != 0) {
    return Status::system(cat("WEFT_SECRET_FILE ", path), errno);
  }
  if (!S_ISREG(about.st_mode)) {
    return Status::error(Code::kAuth, cat("WEFT_SECRET_FILE ", path, " is not a regular file"));
  }
  if ((about.st_mode & S_IRWXO) != 0 || (about.st_uid != ::geteuid() && about.st_uid != 0)) {
    return Status::error(Code::kAuth, cat("WEFT_SECRET_FILE ", path,
                                          " is open to other users: it must belong to you or root, and be "
                                          "closed to users outside of its group (chmod 600)"));
  }
  Bytes secret(kMaxSecretBytes + 2);
  const ssize_t got = ::read(file.get(), secret.data(), secret.size());
  if (got < 0) return Status::system(cat("reading WEFT_SECRET_FILE ", path), errno);
  secret.resize(static_cast<size_t>(got));
  if (!secret.empty() && secret.back() == std::byte{'\n'}) secret.pop_back();
  WEFT_TRY(check_secret(cat("WEFT_SECRET_FILE ", path).c_str(), secret.size()));
  environment->secret = std::move(secret);
  return {};
}

namespace {

// The environment is the process's: so is the lock of what this library does to it.
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
