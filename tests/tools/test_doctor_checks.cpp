// The checks of `weft doctor`, with planted facts, and the schedule of its measurements.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "weft/doctor/finding.h"
#include "weft/doctor/measure.h"
#include "weft/doctor/slow_pairs.h"

using doctor::Facts;
using doctor::Finding;
using doctor::Inspection;
using doctor::Severity;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Returns the facts of a rank without faults. Each host has 8 cores and 2 ranks.
Facts healthy_rank(int rank, int size) {
  Facts facts;
  facts.rank = rank;
  facts.size = size;
  const std::string host(1, static_cast<char>('a' + rank / 2));
  facts.host = "host" + host;
  facts.machine = "boot/" + host;
  facts.limits.open_files = 1 << 20;
  facts.memory.dev_shm = {"/dev/shm", kWorks, 1024 * kMiB};
  facts.memory.temporary = {"/tmp", kWorks, 1024 * kMiB};
  facts.cores.allowed = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int core = 0; core < 8; ++core) facts.cores.siblings.push_back(std::to_string(core));
  facts.cores.online = 8;
  facts.clock = {"tsc", 25};
  facts.network.interfaces = {{"eth0", 1500}};
  facts.network.addresses = {"10.0.0." + std::to_string(1 + rank / 2)};
  facts.software.weft = "0.9.0";
  facts.software.backends = {{"shm", true, "memfd"},
                             {"ucx", true, "UCX 1.13.1 over sysv/memory, tcp/eth0"},
                             {"mpi", false, "no MPI library"},
                             {"nccl", false, "no libnccl.so.2"}};
  return facts;
}

void add_reach(Inspection* job, int from, int to, const std::string& address, const std::string& result,
               bool connected) {
  job->reach.push_back(
      {from, to, job->of(from).host, job->of(to).host, address, result, connected, !connected});
}

// Returns a job of 2 ranks on each of `hosts` hosts, in which everything is as it should be.
Inspection healthy(int hosts) {
  Inspection job;
  const int size = 2 * hosts;
  for (int rank = 0; rank < size; ++rank) job.ranks.push_back(healthy_rank(rank, size));
  for (int from = 0; from < size; from += 2) {
    for (int to = 0; to < size; to += 2) {
      if (from != to) add_reach(&job, from, to, job.of(to).network.addresses[0], kWorks, true);
    }
  }
  for (int low = 0; low < size; ++low) {
    for (int high = low + 1; high < size; ++high) {
      const bool inside = job.same_machine(low, high);
      job.transfers.push_back({low, high, inside ? 1.0 : 20.0, inside ? 8e9 : 1e9});
    }
  }
  job.clock_offsets_s.assign(static_cast<size_t>(size), 0.001);
  job.clock_precision_s = 0.002;
  return job;
}

std::string shown(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings)
    text += std::string(doctor::name(finding.severity)) + " " + finding.id + ": " + finding.text + "\n";
  return text;
}

struct Planted {
  const char* fault;
  int hosts;
  std::function<void(Inspection&)> plant;
  const char* id;
  Severity severity;
  std::vector<int> ranks;
  const char* word;  // in the text
};

doctor::Transfer& transfer(Inspection& job, int low, int high) {
  return *std::find_if(job.transfers.begin(), job.transfers.end(),
                       [&](const doctor::Transfer& one) { return one.low == low && one.high == high; });
}

void set_ucx(Facts& rank, bool available, const std::string& detail) {
  rank.software.backends[1] = {"ucx", available, detail};
}

std::vector<Planted> planted() {
  constexpr auto kError = Severity::kError, kWarning = Severity::kWarning, kNote = Severity::kNote;
  return {
      {"a variable is wrong",
       1,
       [](auto& job) { job.environment = {"WEFT_RANK is 9"}; },
       "environment",
       kError,
       {0, 1},
       "9"},
      {"a host cannot be asked",
       1,
       [](auto& job) { job.unreached = {{"dead", "no route"}}; },
       "hosts",
       kError,
       {},
       "host dead gave no whole answer: no route"},
      {"a rank is missing",
       1,
       [](auto& job) { job.rendezvous = "rank 1 did not come"; },
       "rendezvous",
       kError,
       {0, 1},
       "rank 1"},
      {"no communicator",
       1,
       [](auto& job) { job.communicator = "rank 0: no"; },
       "communicator",
       kError,
       {0, 1},
       "no"},
      {"few descriptors",
       1,
       [](auto& job) { job.ranks[1].limits.open_files = 15; },
       "open-files",
       kError,
       {1},
       "15 files"},
      {"few descriptors between hosts",
       2,
       [](auto& job) { job.ranks[1].limits.open_files = 25; },
       "open-files",
       kError,
       {1},
       "4 ranks needs about 32"},
      {"descriptors for small jobs",
       1,
       [](auto& job) { job.ranks[1].limits.open_files = 128; },
       "open-files",
       kNote,
       {1},
       "64"},
      {"little locked memory with RDMA",
       1,
       [](auto& job) {
         job.ranks[0].network.rdma = {"mlx5_0"};
         set_ucx(job.ranks[0], true, "UCX 1.13.1 over rc_mlx5/mlx5_0:1");
         job.ranks[0].limits.locked_bytes = 65536;
       },
       "locked-memory",
       kError,
       {0},
       "64 KiB"},
      {"limited locked memory with RDMA",
       1,
       [](auto& job) {
         job.ranks[0].network.rdma = {"mlx5_0"};
         set_ucx(job.ranks[0], true, "UCX 1.13.1 over rc_mlx5/mlx5_0:1");
         job.ranks[0].limits.locked_bytes = 1024 * kMiB;
       },
       "locked-memory",
       kWarning,
       {0},
       "mlx5_0"},
      {"no address space",
       1,
       [](auto& job) { job.ranks[1].limits.address_space_bytes = 64 * kMiB; },
       "address-space",
       kError,
       {1},
       "64 MiB"},
      {"little address space",
       1,
       [](auto& job) { job.ranks[1].limits.address_space_bytes = 1024 * kMiB; },
       "address-space",
       kWarning,
       {1},
       "1 GiB"},
      {"no context",
       1,
       [](auto& job) {
         job.ranks[1].software.failure = "cannot start thread weft-progress";
         job.ranks[1].software.backends.clear();
       },
       "library",
       kError,
       {1},
       "weft-progress"},
      {"no threads",
       1,
       [](auto& job) { job.ranks[1].limits.threads = "Operation not permitted"; },
       "threads",
       kError,
       {1},
       "permitted"},
      {"no memory left",
       1,
       [](auto& job) { job.ranks[0].memory.available_bytes = 20 * kMiB; },
       "memory",
       kError,
       {0},
       "the machine has 20"},
      {"little memory in the control group",
       1,
       [](auto& job) {
         job.ranks[0].memory.available_bytes = 200 * kMiB;
         job.ranks[0].memory.by_cgroup = true;
       },
       "memory",
       kWarning,
       {0},
       "control group has 200"},
      {"a small /dev/shm",
       1,
       [](auto& job) { job.ranks[0].memory.dev_shm.free_bytes = 64 * kMiB; },
       "dev-shm",
       kWarning,
       {0},
       "64 MiB"},
      {"a read-only /dev/shm",
       1,
       [](auto& job) { job.ranks[0].memory.dev_shm.writable = "Read-only file system"; },
       "dev-shm",
       kWarning,
       {0},
       "Read-only"},
      {"a read-only folder for temporary files",
       1,
       [](auto& job) { job.ranks[0].memory.temporary.writable = "Read-only file system"; },
       "temporary-folder",
       kNote,
       {0},
       "/tmp"},
      {"a missing folder for flight records",
       1,
       [](auto& job) { job.ranks[0].memory.flight = {"/nowhere", "No such file or directory", kUnlimited}; },
       "flight-folder",
       kWarning,
       {0},
       "/nowhere"},
      {"a filter without random numbers",
       1,
       [](auto& job) {
         job.ranks[1].sandbox.filtered = true;
         job.ranks[1].sandbox.refused = {{"getrandom", "Operation not permitted"}};
       },
       "system-calls",
       kError,
       {1},
       "a seccomp filter refuses getrandom"},
      {"an old kernel",
       1,
       [](auto& job) { job.ranks[1].sandbox.refused = {{"pidfd_open", "Function not implemented"}}; },
       "system-calls",
       kNote,
       {1},
       "this kernel refuses pidfd_open"},
      {"a filter that kills",
       1,
       [](auto& job) { job.ranks[1].sandbox.refused = {{"pidfd_open", "ends the process"}}; },
       "system-calls",
       kError,
       {1},
       "ends processes"},
      {"ptrace_scope",
       1,
       [](auto& job) {
         job.ranks[0].sandbox.cross_memory = "Operation not permitted";
         job.ranks[0].sandbox.ptrace_scope = 1;
       },
       "cross-memory",
       kWarning,
       {0},
       "ptrace_scope is 1"},
      {"a user that stands for others",
       1,
       [](auto& job) {
         job.ranks[0].sandbox.user = "this process runs as user 65534";
         job.ranks[0].sandbox.user_namespace = true;
       },
       "user-namespace",
       kError,
       {0},
       "65534"},
      {"a rootless container",
       1,
       [](auto& job) { job.ranks[0].sandbox.user_namespace = true; },
       "user-namespace",
       kNote,
       {0},
       "rootless"},
      {"more ranks than cores",
       1,
       [](auto& job) {
         for (Facts& rank : job.ranks) rank.cores = {{0}, {"0"}, 1, 0};
       },
       "shared-cores",
       kWarning,
       {0, 1},
       "2 ranks of a host share core 0"},
      {"three ranks on two cores of many",
       1,
       [](auto& job) {
         job.ranks.push_back(healthy_rank(1, 3));
         job.ranks[2].rank = 2;
         job.ranks[0].cores.allowed = job.ranks[1].cores.allowed = {2, 3};
         job.ranks[0].cores.siblings = job.ranks[1].cores.siblings = {"2", "3"};
         job.ranks[2].cores.allowed = {2, 3};
       },
       "shared-cores",
       kWarning,
       {0, 1, 2},
       "of 8 of the host"},
      {"a rank bound to one core",
       1,
       [](auto& job) { job.ranks[1].cores = {{5}, {"5"}, 8, 0}; },
       "core-binding",
       kNote,
       {1},
       "one core of 8"},
      {"less time than ranks",
       1,
       [](auto& job) { job.ranks[0].cores.quota = 1.5; },
       "cpu-quota",
       kWarning,
       {0},
       "1.5 cores"},
      {"less time than cores",
       1,
       [](auto& job) { job.ranks[0].cores.quota = 4; },
       "cpu-quota",
       kNote,
       {0},
       "4 cores"},
      {"a slow clock",
       1,
       [](auto& job) { job.ranks[0].clock = {"hpet", 1403}; },
       "clock-source",
       kWarning,
       {0},
       "1400 ns (clock source hpet)"},
      {"clocks that are apart",
       2,
       [](auto& job) { job.clock_offsets_s[3] = -2.5; },
       "clock-offset",
       kNote,
       {3},
       "2.5 s behind"},
      {"a host without a network",
       2,
       [](auto& job) { job.ranks[2].network.addresses = {}; },
       "addresses",
       kError,
       {2},
       "loopback"},
      {"an address of several hosts",
       2,
       [](auto& job) {
         for (Facts& rank : job.ranks) rank.network.addresses.push_back("172.17.0.1");
       },
       "addresses",
       kWarning,
       {0, 2},
       "172.17.0.1"},
      {"a host that does not answer",
       2,
       [](auto& job) {
         job.reach.pop_back();
         add_reach(&job, 2, 0, "10.0.0.1", "no answer within 3 s", false);
       },
       "reachability",
       kError,
       {2, 0},
       "rank 2 (hostb) cannot connect to rank 0 (hosta): 10.0.0.1: no answer"},
      {"one of two addresses does not answer",
       2,
       [](auto& job) { add_reach(&job, 2, 0, "10.9.0.1", "no answer within 3 s", false); },
       "reachability",
       kWarning,
       {2, 0},
       "some addresses of rank 0 (hosta) (10.9.0.1"},
      {"large packets are dropped",
       2,
       [](auto& job) { job.reach[0].result = "not all arrived"; },
       "path-mtu",
       kError,
       {0, 2},
       "10.0.0.2"},
      {"a small MTU",
       1,
       [](auto& job) { job.ranks[0].network.interfaces.push_back({"tun0", 900}); },
       "mtu",
       kWarning,
       {0},
       "900"},
      {"MTUs that differ",
       2,
       [](auto& job) { job.ranks[2].network.interfaces[0].mtu = 9000; },
       "mtu",
       kWarning,
       {0, 1, 2, 3},
       "9000 on rank 2"},
      {"UCX without a network",
       2,
       [](auto& job) { set_ucx(job.ranks[1], true, "UCX 1.13.1 over sysv/memory, tcp/lo"); },
       "ucx-devices",
       kError,
       {1},
       "tcp/lo"},
      {"UCX without RDMA",
       1,
       [](auto& job) { job.ranks[1].network.rdma = {"mlx5_0"}; },
       "ucx-devices",
       kWarning,
       {1},
       "mlx5_0"},
      {"versions that differ",
       1,
       [](auto& job) { job.ranks[1].software.weft = "0.8.0"; },
       "versions",
       kWarning,
       {0, 1},
       "rank 1 have 0.8.0"},
      {"a backend that does not exist",
       1,
       [](auto& job) { job.ranks[1].software.wanted = "smh"; },
       "backends",
       kError,
       {1},
       "known: shm, ucx"},
      {"a backend that is missing",
       1,
       [](auto& job) {
         for (Facts& rank : job.ranks) rank.software.wanted = "mpi";
       },
       "backends",
       kError,
       {0, 1},
       "no MPI library"},
      {"no backend between hosts",
       2,
       [](auto& job) { set_ucx(job.ranks[3], false, "no libucp.so"); },
       "backends",
       kError,
       {3},
       "nothing else connects"},
      {"no backend in a host",
       1,
       [](auto& job) {
         job.ranks[0].software.backends[0] = {"shm", false, "memfd_create: no"};
         for (Facts& rank : job.ranks) set_ucx(rank, false, "no libucp.so");
       },
       "backends",
       kError,
       {0},
       "memfd_create"},
      {"no shared memory",
       1,
       [](auto& job) { job.ranks[0].software.backends[0] = {"shm", false, "memfd_create: no"}; },
       "backends",
       kWarning,
       {0},
       "slower"},
      {"UCX on one rank alone",
       1,
       [](auto& job) { set_ucx(job.ranks[1], false, "no libucp.so"); },
       "backends",
       kWarning,
       {1},
       "differ"},
      {"CUDA without a runtime",
       1,
       [](auto& job) {
         job.ranks[0].software.nvidia = true;
         job.ranks[0].software.cuda_reason = "no libcudart";
       },
       "cuda",
       kWarning,
       {0},
       "no libcudart"},
      {"fewer devices than ranks",
       1,
       [](auto& job) {
         for (Facts& rank : job.ranks) {
           rank.software.cuda = true;
           rank.software.cuda_devices = 1;
           rank.software.wanted = "nccl";
           rank.software.backends[3] = {"nccl", true, "NCCL 2.28"};
         }
       },
       "cuda",
       kError,
       {0, 1},
       "each of the 2 ranks"},
      {"CUDA without NCCL",
       1,
       [](auto& job) {
         job.ranks[1].software.cuda = true;
         job.ranks[1].software.cuda_devices = 2;
       },
       "cuda",
       kNote,
       {1},
       "no libnccl"},
      {"mpirun without backend mpi",
       1,
       [](auto& job) { job.ranks[1].software.mpirun = true; },
       "mpi",
       kNote,
       {1},
       "no MPI library"},
      {"fault injection",
       1,
       [](auto& job) { job.ranks[1].software.settings = {"WEFT_FAILPOINTS=operation@7=kill"}; },
       "settings",
       kWarning,
       {1},
       "FAILPOINTS"},
      {"a narrow pair",
       2,
       [](auto& job) { transfer(job, 1, 3).bytes_per_s = 1e8; },
       "transfers",
       kWarning,
       {1, 3},
       "rank 1 (hosta) and rank 3 (hostb) reach 95.4 MiB/s"},
      {"a late pair",
       2,
       [](auto& job) { transfer(job, 0, 2).latency_us = 900; },
       "transfers",
       kWarning,
       {0, 2},
       "latency of 900 us"},
  };
}

}  // namespace

TEST_CASE("a healthy host and healthy jobs have no finding") {
  Inspection alone;
  alone.ranks.push_back(healthy_rank(0, 1));
  CHECK(shown(doctor::diagnose(alone)) == "");
  for (const int hosts : {1, 2, 4}) CHECK(shown(doctor::diagnose(healthy(hosts))) == "");
}

TEST_CASE("each planted fault is the one finding, with its severity, ranks, hosts and a mend") {
  for (const Planted& fault : planted()) {
    INFO(fault.fault);
    Inspection job = healthy(fault.hosts);
    fault.plant(job);
    const std::vector<Finding> findings = doctor::diagnose(job);
    INFO(shown(findings));
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].id == fault.id);
    CHECK(findings[0].severity == fault.severity);
    CHECK(findings[0].ranks == fault.ranks);
    CHECK(findings[0].text.find(fault.word) != std::string::npos);
    CHECK(findings[0].mend.size() > 5);
    std::set<std::string> hosts;
    for (const int rank : fault.ranks) hosts.insert(job.of(rank).host);
    for (const auto& [host, reason] : job.unreached) hosts.insert(host);
    CHECK(std::set<std::string>(findings[0].hosts.begin(), findings[0].hosts.end()) == hosts);
    CHECK(doctor::has_error(findings) == (fault.severity == Severity::kError));
  }
}

TEST_CASE("every check has a planted fault of its worst severity, and none is worse") {
  const std::set<std::string> own_test = {"dev-shm", "temporary-folder", "core-binding"};  // below
  std::set<std::string> ids;
  for (const doctor::Check& check : doctor::checks()) {
    INFO(check.id);
    CHECK(ids.insert(check.id).second);
    Severity worst = Severity::kNote;
    bool planted_once = false;
    for (const Planted& fault : planted()) {
      if (check.id != std::string(fault.id)) continue;
      planted_once = true;
      worst = std::min(worst, fault.severity);
    }
    CHECK(planted_once);
    if (!own_test.contains(check.id)) CHECK(worst == check.worst);
    CHECK(worst >= check.worst);
  }
}

TEST_CASE("an unusable /dev/shm is an error for NCCL, and a read-only /tmp a warning under mpirun") {
  Inspection job = healthy(1);
  job.ranks[0].memory.dev_shm.writable = "Read-only file system";
  job.ranks[0].software.wanted = "nccl";
  job.ranks[0].software.backends[3].available = true;
  job.ranks[1].memory.temporary.writable = "Read-only file system";
  job.ranks[1].software.mpirun = true;
  job.ranks[1].software.backends[2].available = true;
  CHECK(shown(doctor::diagnose(job)) ==
        "error dev-shm: /dev/shm cannot be written to: Read-only file system; Weft's shm does not use it, "
        "but NCCL, MPI "
        "and PyTorch's data loaders do\n"
        "warning temporary-folder: /tmp cannot be written to: Read-only file system; Weft does not use it, "
        "but MPI "
        "libraries and torchrun do\n");
}

TEST_CASE("a secret makes a user known who stands for others") {
  Inspection job = healthy(1);
  for (Facts& rank : job.ranks) {
    rank.sandbox.user = "this process runs as user 65534";
    rank.sandbox.user_namespace = true;
    rank.sandbox.has_secret = true;
  }
  CHECK_FALSE(doctor::has_error(doctor::diagnose(job)));
}

TEST_CASE("ranks that are bound to two threads of one core are found") {
  Inspection job = healthy(1);
  job.ranks[0].cores = {{0}, {"0,4"}, 8, 0};
  job.ranks[1].cores = {{4}, {"0,4"}, 8, 0};
  const std::vector<Finding> findings = doctor::diagnose(job);
  INFO(shown(findings));
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].severity == Severity::kWarning);
  CHECK(findings[0].text.find("threads 0,4") != std::string::npos);
  CHECK(findings[0].ranks == std::vector<int>{0, 1});
}

TEST_CASE("errors come first, equal findings of several ranks are one, and a summary comes last") {
  Inspection job = healthy(2);
  for (Facts& rank : job.ranks) rank.memory.dev_shm.free_bytes = kMiB;
  job.ranks[3].limits.threads = "Operation not permitted";
  job.transfers.clear();
  const std::vector<Finding> findings = doctor::diagnose(job);
  const std::string text = doctor::text_of(job, findings);
  CHECK(text.starts_with(
      "error: threads (rank 3 on hostb): this process cannot start 4 threads: Operation not permitted\n"
      "  mend: "));
  CHECK(text.find("warning: dev-shm: /dev/shm has 1 MiB free") != std::string::npos);
  CHECK(
      text.ends_with("transfers were not measured, because of the errors\n"
                     "weft doctor: 4 ranks on 2 hosts: 1 error, 1 warning, 0 notes\n"));

  const nlohmann::json json = doctor::describe(job, findings);
  REQUIRE(json["findings"].size() == 2);
  CHECK(json["findings"][0]["id"] == "threads");
  CHECK(json["findings"][0]["severity"] == "error");
  CHECK(json["findings"][0]["hosts"] == nlohmann::json{"hostb"});
  CHECK(json["findings"][1]["ranks"] == nlohmann::json({0, 1, 2, 3}));
  CHECK(json["facts"].size() == 4);
}

TEST_CASE("facts are the same after they were sent") {
  Inspection job = healthy(1);
  for (const Planted& fault : planted()) {
    if (fault.hosts == 1) fault.plant(job);
  }
  for (const Facts& rank : job.ranks) {
    const nlohmann::json sent = rank;
    const nlohmann::json again = sent.get<Facts>();
    CHECK(sent == again);
  }
}

TEST_CASE("pairs are compared with pairs of their kind, and not where there are fewer than three") {
  Inspection job = healthy(4);
  CHECK(doctor::slow_pairs(job).empty());  // inside hosts everything is faster
  for (int other = 0; other < 6; ++other) transfer(job, other, 7).bytes_per_s = 1e8;
  const std::vector<doctor::SlowPair> slow = doctor::slow_pairs(job);
  REQUIRE(slow.size() == 6);
  CHECK(std::all_of(slow.begin(), slow.end(),
                    [](const auto& pair) { return pair.narrow && !pair.late && !pair.inside; }));

  Inspection small = healthy(1);
  small.transfers[0].bytes_per_s = 1;
  CHECK(doctor::slow_pairs(small).empty());
}

TEST_CASE("in the rounds of measurements every pair meets once, and no rank is in two pairs of a round") {
  for (int size = 2; size <= 9; ++size) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < doctor::rounds(size); ++round) {
      for (int rank = 0; rank < size; ++rank) {
        const int other = doctor::partner(rank, round, size);
        if (other < 0) continue;
        INFO(size << " ranks, round " << round << ", ranks " << rank << " and " << other);
        REQUIRE(other != rank);
        REQUIRE(doctor::partner(other, round, size) == rank);
        if (rank < other) CHECK(met.emplace(rank, other).second);
      }
    }
    CHECK(met.size() == static_cast<size_t>(size * (size - 1) / 2));
  }
}
