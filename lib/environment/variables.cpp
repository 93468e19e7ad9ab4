#include "environment/variables.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <numeric>
#include <string_view>

#include "base/text.h"

namespace weft {
namespace {

constexpr VariableInfo kTable[] = {
    {.variable = Variable::kRank,
     .name = "WEFT_RANK",
     .values = "0 to WEFT_SIZE - 1",
     .unset = "the launcher's, else 0",
     .meaning = "The rank of this process."},
    {.variable = Variable::kSize,
     .name = "WEFT_SIZE",
     .values = "1 to 65536",
     .unset = "the launcher's, else 1",
     .meaning = "The number of ranks. WEFT_SIZE=1 alone makes the process a job of its own.",
     .equal = true},
    {.variable = Variable::kLocalRank,
     .name = "WEFT_LOCAL_RANK",
     .values = "0 to WEFT_LOCAL_SIZE - 1",
     .unset = "the launcher's",
     .meaning = "The number of this rank among those of its host; programs choose their device by it."},
    {.variable = Variable::kLocalSize,
     .name = "WEFT_LOCAL_SIZE",
     .values = "1 to WEFT_SIZE",
     .unset = "the launcher's",
     .meaning = "The number of ranks on this host."},
    {.variable = Variable::kStore,
     .name = "WEFT_STORE",
     .values = "tcp://HOST_OF_RANK_0:PORT, file:///FOLDER, or unix:@NAME on one host",
     .unset = "derived from the launcher's job",
     .meaning =
         "The address at which the ranks meet: rank 0 listens there, or writes its address into a file of "
         "the folder, which all hosts see.",
     .equal = true},
    {.variable = Variable::kStoreExternal,
     .name = "WEFT_STORE_EXTERNAL",
     .values = "0, 1",
     .unset = "0",
     .meaning = "1: the store is a program of its own (weft store), and rank 0 does not listen.",
     .equal = true},
    {.variable = Variable::kPorts,
     .name = "WEFT_PORTS",
     .values = "FIRST-LAST: 20000-20063",
     .unset = "any port that the kernel gives",
     .meaning = "The ports for the ranks' control connections, one for each rank of a host, and for stores "
                "whose port "
                "Weft chooses."},
    {.variable = Variable::kInterfaces,
     .name = "WEFT_INTERFACES",
     .values = "eth0,ib0 to use these; ^docker0 to leave one out; ipv6 or ipv4 for such addresses alone",
     .unset = "all but loopback",
     .meaning = "The interfaces at whose addresses other ranks reach this one, the preferred first."},
    {.variable = Variable::kJob,
     .name = "WEFT_JOB",
     .values = "any text",
     .unset = "the launcher's name for the job",
     .meaning = "Distinguishes the jobs that share a store.",
     .equal = true},
    {.variable = Variable::kSecretFile,
     .name = "WEFT_SECRET_FILE",
     .values = "the path of a file that no other user can read",
     .unset = "no secret",
     .meaning = "The file with the job's secret; a final newline is ignored. Needed beyond one host, unless "
                "the ranks meet through a folder.",
     .equal = true},
    {.variable = Variable::kSecret,
     .name = "WEFT_SECRET",
     .values = "16 to 256 bytes of text",
     .unset = "WEFT_SECRET_FILE",
     .meaning = "The job's secret. Prefer the file: others of this user can read the environment.",
     .equal = true,
     .secret = true},
    {.variable = Variable::kBackend,
     .name = "WEFT_BACKEND",
     .values = "a name that weft info lists",
     .unset = "the most preferred backend that works on every rank",
     .meaning = "The backend of communicators whose program names none.",
     .equal = true},
    {.variable = Variable::kAlgorithms,
     .name = "WEFT_TUNE",
     .values = "all_reduce:0-4K:doubling,4K-inf:ring;broadcast:flat; off",
     .unset = "measured when a communicator is created, in at most 30 ms",
     .meaning = "The algorithms over messages by size, or no measurement.",
     .equal = true},
    {.variable = Variable::kShmThresholds,
     .name = "WEFT_SHM_THRESHOLDS",
     .values = "one-shot=64K,pull=1M (pull=never); off",
     .unset = "measured when a communicator is created, in at most 30 ms",
     .meaning = "The sizes at which shared memory changes its path, or no measurement.",
     .equal = true},
    {.variable = Variable::kHeartbeatMs,
     .name = "WEFT_HEARTBEAT_MS",
     .values = "100 or more, off",
     .unset = "5000",
     .meaning =
         "Milliseconds that a rank may be silent before it counts as failed; the smallest of all ranks' "
         "values applies.",
     .equal = true},
    {.variable = Variable::kHosts,
     .name = "WEFT_HOSTS",
     .values = "a number for each rank: 0,0,1,1",
     .unset = "the real hosts",
     .meaning = "Simulated hosts: a rank shares memory only with ranks of the same number.",
     .equal = true},
    {.variable = Variable::kFlight,
     .name = "WEFT_FLIGHT",
     .values = "a folder",
     .unset = "no record is written",
     .meaning = "The folder into which a failing communicator writes its flight record."},
    {.variable = Variable::kLog,
     .name = "WEFT_LOG",
     .values = "off, error, warn, info, debug",
     .unset = "warn with WEFT_LOG_FILE, else off",
     .meaning =
         "The least severe lines of the log that are written to WEFT_LOG_FILE; without that file, to the "
         "program's log function, or to standard error if it has none."},
    {.variable = Variable::kLogFile,
     .name = "WEFT_LOG_FILE",
     .values = "a path; %h is the host, %r the rank, %p the process, %% a percent sign",
     .unset = "no file",
     .meaning = "The file to which lines of the log are appended. Each rank needs its own."},
    {.variable = Variable::kLogRotate,
     .name = "WEFT_LOG_ROTATE",
     .values = "64K to 1024M",
     .unset = "the file grows without limit",
     .meaning = "The size at which WEFT_LOG_FILE begins anew; the last three files are kept."},
    {.variable = Variable::kMetrics,
     .name = "WEFT_METRICS",
     .values = "a folder",
     .unset = "no file is written",
     .meaning =
         "The folder of node_exporter's text files, in which each context keeps a file of its metrics."},
    {.variable = Variable::kMetricsSeconds,
     .name = "WEFT_METRICS_SECONDS",
     .values = "1 to 3600",
     .unset = "15",
     .meaning = "Seconds between two versions of that file."},
    {.variable = Variable::kStatus,
     .name = "WEFT_STATUS",
     .values = "on, off",
     .unset = "on",
     .meaning = "Whether the process answers weft status."},
    {.variable = Variable::kTrace,
     .name = "WEFT_TRACE",
     .values = "a folder",
     .unset = "no trace",
     .meaning = "The folder into which each context writes a trace of its newest 65536 events when it is "
                "destroyed, for weft report."},
    {.variable = Variable::kCudaRuntime,
     .name = "WEFT_CUDA_RUNTIME",
     .values = "a path or file name",
     .unset = "the installed one",
     .meaning = "The CUDA runtime library to load."},
    {.variable = Variable::kNcclLibrary,
     .name = "WEFT_NCCL_LIBRARY",
     .values = "a path or file name",
     .unset = "libnccl.so.2",
     .meaning = "The NCCL library to load, unless the process has loaded libnccl.so.2 already."},
    {.variable = Variable::kLibrary,
     .name = "WEFT_LIBRARY",
     .values = "a path",
     .unset = "the library of the package",
     .meaning = "The libweft.so that the Python package loads."},
    {.variable = Variable::kJaxLibrary,
     .name = "WEFT_JAX_LIBRARY",
     .values = "a path",
     .unset = "the module of the package",
     .meaning = "The module for calls inside jit of JAX that the Python package loads."},
    {.variable = Variable::kLightgbmLibrary,
     .name = "WEFT_LIGHTGBM_LIBRARY",
     .values = "a path",
     .unset = "the module of the package",
     .meaning = "The module for LightGBM that the Python package loads."},
    {.variable = Variable::kFailpoints,
     .name = "WEFT_FAILPOINTS",
     .values = "operation@7=kill, operations=begin:4294967290",
     .unset = "none",
     .meaning = "Fault injection in tests (lib/transport/failpoints.h)."},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kTable); i++) {
    if (static_cast<size_t>(kTable[i].variable) != i) return false;
  }
  return std::size(kTable) == static_cast<size_t>(Variable::kFailpoints) + 1;
}
static_assert(in_order(), "the table has each variable once, in the order of the enum");

// Guards the process-wide environment against concurrent changes by this library.
std::mutex& environment_mutex() {
  static std::mutex mutex;
  return mutex;
}

const char* from_process(const char* name) {
  return std::getenv(name);
}

// Returns how many insertions, deletions and replacements turn one text into the other.
size_t distance(std::string_view one, std::string_view other) {
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < one.size(); i++) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < other.size(); j++) {
      const size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::span<const VariableInfo> variable_table() {
  return kTable;
}

const char* name(Variable variable) {
  return kTable[static_cast<size_t>(variable)].name;
}

std::string Variables::text_or_empty(const char* name) const {
  const char* const value = text(name);
  return value != nullptr ? value : "";
}

std::string Variables::shown(const char* name) const {
  return cat(name, "=", text_or_empty(name).substr(0, kShownBytes));
}

Status Variables::number(const char* name, int least, int most, int* number) const {
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

Status Variables::bad(const char* name, const std::string& wanted) const {
  std::string value = text_or_empty(name);
  if (value.size() > kShownBytes) {
    value.erase(kShownBytes);
    value.append("...");
  }
  return Status::error(Code::kArg, cat(name, " is \"", value, "\", but must be ", wanted));
}

Status with_process_variables(const std::function<Status(const Variables&)>& read) {
  const Getter get = from_process;
  const std::lock_guard lock(environment_mutex());
  return read(Variables(get));
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> unknown;
  const std::lock_guard lock(environment_mutex());
  for (char** entry = environ; entry != nullptr && *entry != nullptr; entry++) {
    const std::string_view text = *entry;
    const std::string variable(text.substr(0, text.find('=')));
    const auto is_it = [&](const VariableInfo& info) { return variable == info.name; };
    if (!variable.starts_with("WEFT_") || variable.starts_with("WEFT_TEST_") ||
        variable.starts_with("WEFT_UCX_"))
      continue;
    if (std::none_of(std::begin(kTable), std::end(kTable), is_it)) unknown.push_back(variable);
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

std::string similar_variable(const std::string& name) {
  constexpr size_t kMost = 2;  // differences between similar names
  const VariableInfo* best = nullptr;
  size_t least = kMost + 1;
  for (const VariableInfo& info : kTable) {
    const bool shortened = std::string_view(info.name).starts_with(name + "_");  // WEFT_HEARTBEAT
    const size_t differences = shortened ? 1 : distance(name, info.name);
    if (differences >= least) continue;
    least = differences;
    best = &info;
  }
  return best != nullptr ? best->name : "";
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
