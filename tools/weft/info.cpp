// weft info: describes the capabilities of this library and this machine.
#include <sys/resource.h>
#include <weft/weft.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <system_error>

#include "commands.h"
#include "environment.h"
#include "job.h"
#include "launch.h"
#include "machine.h"

namespace {

using nlohmann::json;

// Returns the entries of a folder that are called `stem` and a number.
std::vector<std::string> numbered(const std::string& folder, const std::string& stem) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const bool digits =
        name.size() > stem.size() && name.find_first_not_of("0123456789", stem.size()) == name.npos;
    if (digits && name.compare(0, stem.size(), stem) == 0) paths.push_back(entry.path());
  }
  return paths;
}

// Counts processors, NUMA nodes and caches in /sys. A count is 0 where the kernel has no data.
json topology() {
  const std::string system = "/sys/devices/system/";
  std::set<std::string> packages, cores;
  std::map<std::string, std::set<std::string>> caches;  // by level: the threads that share each
  std::map<std::string, std::string> sizes;             // of a cache, by level: "512K"
  size_t threads = 0;
  for (const std::string& cpu : numbered(system + "cpu", "cpu")) {
    const std::string package = first_line(cpu + "/topology/physical_package_id");
    if (package.empty()) continue;  // offline
    threads++;
    packages.insert(package);
    cores.insert(first_line(cpu + "/topology/thread_siblings_list"));
    for (const std::string& cache : numbered(cpu + "/cache", "index")) {
      const std::string level = first_line(cache + "/level");
      caches[level].insert(first_line(cache + "/shared_cpu_list"));
      sizes[level] = first_line(cache + "/size");
    }
  }
  json result = {{"packages", packages.size()},
                 {"numa_nodes", std::max(numbered(system + "node", "node").size(), size_t{1})},
                 {"cores", cores.size()},
                 {"threads", threads}};
  for (const std::string level : {"2", "3"}) {
    result["l" + level] = {{"count", caches[level].size()},
                           {"bytes", std::atoll(sizes[level].c_str()) << 10}};
  }
  return result;
}

struct Named {
  const char* name;
  int32_t value;
};
constexpr Named kColls[] = {{"all_reduce", WEFT_COLL_ALL_REDUCE},
                            {"reduce", WEFT_COLL_REDUCE},
                            {"broadcast", WEFT_COLL_BROADCAST},
                            {"all_gather", WEFT_COLL_ALL_GATHER},
                            {"reduce_scatter", WEFT_COLL_REDUCE_SCATTER},
                            {"gather", WEFT_COLL_GATHER},
                            {"scatter", WEFT_COLL_SCATTER},
                            {"all_to_all", WEFT_COLL_ALL_TO_ALL},
                            {"barrier", WEFT_COLL_BARRIER},
                            {"send", WEFT_COLL_SEND},
                            {"recv", WEFT_COLL_RECV},
                            {"all_gather_v", WEFT_COLL_ALL_GATHER_V},
                            {"reduce_scatter_v", WEFT_COLL_REDUCE_SCATTER_V},
                            {"gather_v", WEFT_COLL_GATHER_V},
                            {"scatter_v", WEFT_COLL_SCATTER_V},
                            {"all_to_all_v", WEFT_COLL_ALL_TO_ALL_V},
                            {"sparse_all_reduce", WEFT_COLL_SPARSE_ALL_REDUCE}};
constexpr Named kDtypes[] = {
    {"u8", WEFT_DTYPE_U8},           {"i8", WEFT_DTYPE_I8},     {"u16", WEFT_DTYPE_U16},
    {"i16", WEFT_DTYPE_I16},         {"u32", WEFT_DTYPE_U32},   {"i32", WEFT_DTYPE_I32},
    {"u64", WEFT_DTYPE_U64},         {"i64", WEFT_DTYPE_I64},   {"f16", WEFT_DTYPE_F16},
    {"bf16", WEFT_DTYPE_BF16},       {"f32", WEFT_DTYPE_F32},   {"f64", WEFT_DTYPE_F64},
    {"c64", WEFT_DTYPE_C64},         {"c128", WEFT_DTYPE_C128}, {"f8_e4m3", WEFT_DTYPE_F8_E4M3},
    {"f8_e5m2", WEFT_DTYPE_F8_E5M2}, {"bool", WEFT_DTYPE_BOOL}};
constexpr Named kOps[] = {{"sum", WEFT_OP_SUM},  {"avg", WEFT_OP_AVG},   {"prod", WEFT_OP_PROD},
                          {"min", WEFT_OP_MIN},  {"max", WEFT_OP_MAX},   {"band", WEFT_OP_BAND},
                          {"bor", WEFT_OP_BOR},  {"bxor", WEFT_OP_BXOR}, {"premul_sum", WEFT_OP_PREMUL_SUM},
                          {"user", WEFT_OP_USER}};
constexpr Named kMemory[] = {{"host", WEFT_DEVICE_HOST}, {"cuda", WEFT_DEVICE_CUDA}};

// Returns the supported dtypes by memory and collective; for reductions also by op.
json capabilities(weft_context* context, const char* backend) {
  json all = json::object();
  for (const Named& memory : kMemory) {
    for (const Named& coll : kColls) {
      const auto dtypes = [&](int32_t op, bool* asked) {
        json names = json::array();
        for (const Named& dtype : kDtypes) {
          uint8_t supported = 0;
          *asked = weft_capability(context, backend, coll.value, dtype.value, op, memory.value, &supported) ==
                   WEFT_OK;
          if (supported != 0) names.push_back(dtype.name);
        }
        return names;
      };
      bool asked = false;
      json of = dtypes(0, &asked);
      if (!asked) {  // the collective has ops
        of = json::object();
        for (const Named& op : kOps) {
          const json names = dtypes(op.value, &asked);
          if (!names.empty()) of[op.name] = names;
        }
      }
      if (!of.empty()) all[memory.name][coll.name] = of;
    }
  }
  return all;
}

// The table is the same for all backends that are available, so one of them is asked: each question probes
// the backend.
json backends(weft_context* context) {
  json list = json::array(), table;
  for (const weft_backend_info& info : known_backends(context)) {
    const bool available = info.available != 0;
    if (available && table.is_null()) table = capabilities(context, info.name);
    list.push_back({{"name", info.name},
                    {"available", available},
                    {"module", info.is_module != 0},
                    {"reason", info.reason},
                    {"collectives", available ? table : json::object()}});
  }
  return list;
}

json devices(weft_context* context) {
  json list = json::array();
  weft_device_info info = WEFT_DEVICE_INFO_INIT;
  if (weft_device_query(context, WEFT_DEVICE_CUDA, &info) != WEFT_OK) return list;
  list.push_back({{"name", "cuda"},
                  {"available", info.available != 0},
                  {"count", info.device_count},
                  {"reason", info.reason}});
  return list;
}

json limit(int resource) {
  const int64_t value = soft_limit(resource);
  if (value == kUnknown) return nullptr;
  return value == kUnlimited ? json("unlimited") : json(value);
}

// Returns the word in brackets of a line like "always [madvise] never".
std::string chosen(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? line
                                                                 : line.substr(open + 1, close - open - 1);
}

json number_or_null(const std::string& path) {
  const int64_t number = number_in(path);
  return number == kUnknown ? json(nullptr) : json(number);
}

json shared_memory() {
  const int64_t scope = number_in(kPtraceScope);
  return {{"memfd", try_memfd()},
          {"cross_memory_attach", try_cross_memory()},
          {"ptrace_scope", scope == kUnknown ? json("no Yama") : json(scope)},
          {"transparent_huge_pages", chosen(first_line("/sys/kernel/mm/transparent_hugepage/enabled"))},
          {"shmem_huge_pages", chosen(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))},
          {"huge_pages_reserved", number_or_null("/proc/sys/vm/nr_hugepages")},
          {"overcommit_memory", number_or_null("/proc/sys/vm/overcommit_memory")},
          {"memlock_bytes", limit(RLIMIT_MEMLOCK)},
          {"address_space_bytes", limit(RLIMIT_AS)},
          {"open_files", limit(RLIMIT_NOFILE)}};
}

// The sizes at which private buffers change their path; a communicator knows them.
constexpr const char* kPrivateBuffers = "private_buffers";

std::string unmeasured() {
  const char* const given = std::getenv("WEFT_SHM_THRESHOLDS");
  if (given != nullptr && *given != '\0') return std::string("WEFT_SHM_THRESHOLDS=") + given;
  return "measured when a communicator is created; weft info --ranks 2 shows the result for two ranks";
}

json describe() {
  weft_context* context = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  if (weft_context_create(nullptr, &context, &error) != WEFT_OK)
    throw std::runtime_error(std::string("weft_context_create: ") + error.text);
  json result = describe_machine();
  result["cpu_features"] = cpu_features();
  result["topology"] = topology();
  result["backends"] = backends(context);
  result["devices"] = devices(context);
  result["shm"] = shared_memory();
  result["shm"][kPrivateBuffers] = unmeasured();
  weft_context_destroy(&context);
  return result;
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print(const json& info) {
  const auto line = [](const char* name, const std::string& value) {
    std::printf("%-24s %s\n", name, value.c_str());
  };
  line("weft", text_of(info["weft"]) + ", compiled by " + text_of(info["compiler"]));
  line("cpu", text_of(info["cpu"]) + " (" + text_of(info["architecture"]) + "), " + text_of(info["cores"]) +
                  " of " + text_of(info["online_cores"]) + " cores may be used");
  std::string features;
  for (const json& feature : info["cpu_features"]) features += text_of(feature) + " ";
  line("cpu features", features);
  line("memory", std::to_string(info["memory_bytes"].get<int64_t>() >> 20) + " MiB");
  line("system", text_of(info["system"]) + ", " + text_of(info["kernel"]));
  std::printf("\ntopology\n");
  for (const auto& [name, value] : info["topology"].items()) line(("  " + name).c_str(), text_of(value));
  for (const char* kind : {"backends", "devices"}) {
    std::printf("\n%s\n", kind);
    for (const json& one : info[kind]) {
      line(("  " + text_of(one["name"])).c_str(),
           (one["available"].get<bool>() ? "available: " : "not available: ") + text_of(one["reason"]));
    }
  }
  std::printf("\nshared memory\n");
  for (const auto& [name, value] : info["shm"].items()) line(("  " + name).c_str(), text_of(value));
}

struct InfoOptions {
  bool as_json = false;
  bool environment = false;
  int ranks = 0;        // that form a communicator over shm
  bool joined = false;  // this process is one of them
};

int show(const InfoOptions& options, const json& description) {
  if (options.as_json) {
    std::printf("%s\n", description.dump(1).c_str());
  } else {
    print(description);
  }
  return 0;
}

int show_environment(bool as_json) {
  const json environment = describe_environment();
  if (as_json) {
    std::printf("%s\n", environment.dump(1).c_str());
  } else {
    print_environment(environment);
  }
  return environment["error"].is_null() ? 0 : 1;
}

// Runs one of the ranks; rank 0 prints their results.
int show_joined(const InfoOptions& options, int rank) {
  json description = rank == 0 ? describe() : json();
  pin_to_core(rank);  // after the inspection of what this process may use
  Job job("shm");
  if (rank == 0) {
    description["shm"][kPrivateBuffers] = job.info().transports;
    description["shm"]["private_buffers_ranks"] = job.size();
    show(options, description);
  }
  job.barrier();
  return 0;
}

}  // namespace

void add_info(CLI::App& app, const std::vector<std::string>& words, int* exit_code) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* info =
      app.add_subcommand("info", "Describe the library, this machine, and what Weft can use of it");
  info->add_flag("--json", options->as_json, "as JSON");
  CLI::Option* environment = info->add_flag(
      "--env", options->environment,
      "list Weft's environment variables with the values in effect, and those that are unknown; "
      "the exit code is 1 if a communicator could not be created with them");
  info->add_option(
          "-n,--ranks", options->ranks,
          "start this number of processes, each bound to a core, which create a communicator over shm, and "
          "print the sizes at which it changes its path for private buffers")
      ->check(CLI::Range(2, 64))
      ->excludes(environment);
  info->add_flag("--joined", options->joined, "this process is one of them already")->group("");
  info->callback([options, &words, exit_code] {
    if (options->environment) {
      *exit_code = show_environment(options->as_json);
    } else if (options->joined) {
      const char* const rank = std::getenv("WEFT_RANK");
      *exit_code = show_joined(*options, rank != nullptr ? std::atoi(rank) : 0);
    } else if (options->ranks > 0) {
      LaunchOptions job;
      job.ranks = options->ranks;
      job.prefix = Prefix::kOthers;
      job.command = {"/proc/self/exe"};
      job.command.insert(job.command.end(), words.begin(), words.end());
      job.command.push_back("--joined");
      *exit_code = launch(job);
    } else {
      *exit_code = show(*options, describe());
    }
  });
}
