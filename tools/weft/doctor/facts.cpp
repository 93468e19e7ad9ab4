#include "facts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "base/text.h"

namespace doctor {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Limits, open_files, files_open_now, locked_bytes, address_space_bytes,
                                   threads)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Folder, path, writable, free_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Memory, available_bytes, by_cgroup, dev_shm, temporary, flight)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RefusedCall, call, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Sandbox, refused, filtered, cross_memory, ptrace_scope, user_namespace,
                                   user, has_secret)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Cores, allowed, siblings, online, quota)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClockFacts, source, read_ns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interface, name, mtu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Network, interfaces, addresses, rdma)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BackendFact, name, available, detail)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Software, weft, failure, wanted, backends, cuda, cuda_devices, cuda_reason,
                                   nvidia, mpirun, settings, unknown)
// The library's macro would define inline functions.
#define WEFT_JSON_OF(Type, ...)                                                  \
  void to_json(nlohmann::json& nlohmann_json_j, const Type& nlohmann_json_t) {   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))     \
  }                                                                              \
  void from_json(const nlohmann::json& nlohmann_json_j, Type& nlohmann_json_t) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, __VA_ARGS__))   \
  }
WEFT_JSON_OF(Facts, rank, size, host, machine, limits, memory, sandbox, cores, clock, network, software)
WEFT_JSON_OF(Reach, from, to, from_host, to_host, address, result, connected, delayed)
WEFT_JSON_OF(Transfer, low, high, latency_us, bytes_per_s)

namespace {

// Names the kernel's run and the network namespace, which ranks must have in common to share memory.
std::string machine_name() {
  struct stat network{};
  ::stat("/proc/self/ns/net", &network);
  return weft::cat(first_line("/proc/sys/kernel/random/boot_id"), "/", network.st_ino);
}

}  // namespace

bool Inspection::spans_hosts() const {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const Facts& rank) { return rank.machine != ranks[0].machine; });
}

const Facts& Inspection::of(int rank) const {
  return *std::find_if(ranks.begin(), ranks.end(), [&](const Facts& facts) { return facts.rank == rank; });
}

Facts read_facts(int rank, int size) {
  Facts facts;
  facts.rank = rank;
  facts.size = size;
  facts.host = weft::host_name();
  facts.machine = machine_name();
  read(&facts.limits);
  read(&facts.memory);
  read(&facts.sandbox);
  read(&facts.cores);
  read(&facts.clock);
  read(&facts.network);
  read(&facts.software);
  return facts;
}

}  // namespace doctor
