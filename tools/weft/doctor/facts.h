// The facts that `weft doctor` judges: plain values, which each rank reads from its system and sends to the
// others. Unit tests write them by hand, to plant faults.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "weft/machine.h"

namespace doctor {

// Numbers are kUnknown where the system does not report them, and kUnlimited where there is no limit.

struct Limits {
  int64_t open_files = kUnlimited;
  int64_t files_open_now = 3;
  int64_t locked_bytes = kUnlimited;
  int64_t address_space_bytes = kUnlimited;
  std::string threads = kWorks;  // or why this process cannot start the threads of a rank
};

// A folder or file system that a library of the job writes to.
struct Folder {
  std::string path;               // empty: none is used
  std::string writable = kWorks;  // or the system's reason
  int64_t free_bytes = kUnlimited;
};

struct Memory {
  int64_t available_bytes = kUnlimited;  // of the machine and of the cgroup, whichever is less
  bool by_cgroup = false;                // the cgroup has less than the machine
  Folder dev_shm;
  Folder temporary;
  Folder flight;  // of WEFT_FLIGHT
};

// A system call that a filter or an old kernel refuses.
struct RefusedCall {
  std::string call;
  std::string reason;  // "Operation not permitted", or "ends the process"
};

struct Sandbox {
  std::vector<RefusedCall> refused;
  bool filtered = false;              // a seccomp filter is active
  std::string cross_memory = kWorks;  // or why a process cannot read a sibling's memory
  int64_t ptrace_scope = kUnknown;
  bool user_namespace = false;
  std::string user;  // why this user cannot be told from others without a secret; empty: it can
  bool has_secret = false;
};

struct Cores {
  std::vector<int> allowed;           // empty: the system does not report them
  std::vector<std::string> siblings;  // for each of them: the hardware threads of its core ("0,64")
  int64_t online = kUnknown;
  double quota = 0;  // cores' worth of time that the cgroup allows; 0: no limit
};

struct ClockFacts {
  std::string source;  // "tsc"
  double read_ns = 0;  // of one reading
};

struct Interface {
  std::string name;
  int64_t mtu = kUnknown;
};

struct Network {
  std::vector<Interface> interfaces;   // up, without loopback
  std::vector<std::string> addresses;  // that other hosts may reach
  std::vector<std::string> rdma;       // "mlx5_0"
};

struct BackendFact {
  std::string name;
  bool available = false;
  std::string detail;  // the devices it uses, or why it is not available
};

struct Software {
  std::string weft;
  std::string failure;  // why the library cannot make a context; empty: it can
  std::string wanted;   // the backend that WEFT_BACKEND names; else empty
  std::vector<BackendFact> backends;
  bool cuda = false;
  int64_t cuda_devices = 0;
  std::string cuda_reason;
  bool nvidia = false;                // the machine has NVIDIA's driver
  bool mpirun = false;                // a launcher of MPI started this process
  std::vector<std::string> settings;  // debugging variables that are set: "WEFT_FAILPOINTS=..."
  std::vector<std::string> unknown;   // variables that begin with WEFT_ and that nothing reads
};

struct Facts {
  int rank = 0;
  int size = 1;
  std::string host;     // its name
  std::string machine;  // equal for processes that may share memory: of one kernel and one network
  Limits limits;
  Memory memory;
  Sandbox sandbox;
  Cores cores;
  ClockFacts clock;
  Network network;
  Software software;
};

// An attempt of a rank to connect to another one's address and to send data there.
struct Reach {
  int from = 0;
  int to = 0;
  std::string from_host;
  std::string to_host;
  std::string address;
  std::string result = kWorks;  // or the reason
  bool connected = false;       // false: not even the connection was made
  bool delayed = false;         // it ended at its time limit
};

// The measured transfers between two ranks over the communicator.
struct Transfer {
  int low = 0;
  int high = 0;
  double latency_us = 0;  // half of the shortest round trip of 8 bytes
  double bytes_per_s = 0;
};

// The facts of all ranks of a job, and the results of their common tests.
struct Inspection {
  int rank = 0;              // of this process
  std::vector<Facts> ranks;  // in rank order; one, where this process is alone
  std::vector<Reach> reach;
  std::vector<Transfer> transfers;
  std::vector<double> clock_offsets_s;  // of each rank's time of day, against rank 0's
  double clock_precision_s = 0;
  std::vector<std::pair<std::string, std::string>> unreached;  // hosts without ranks, and the reasons
  // Why the steps of a job's start failed, or would fail; empty: they did not.
  std::vector<std::string> environment;
  std::string rendezvous;
  std::string communicator;

  const Facts& of(int rank) const;  // one of `ranks`
  bool same_machine(int a, int b) const { return of(a).machine == of(b).machine; }
  bool spans_hosts() const;
};

// Reads the facts of this process. rank, size: its place in the job.
Facts read_facts(int rank, int size);
void read(Limits* limits);
void read(Memory* memory);
void read(Sandbox* sandbox);
void read(Cores* cores);
void read(ClockFacts* clock);
void read(Network* network);
void read(Software* software);

// Their form on the wire and in `--json`.
void to_json(nlohmann::json& json, const Facts& facts);
void from_json(const nlohmann::json& json, Facts& facts);
void to_json(nlohmann::json& json, const Reach& reach);
void from_json(const nlohmann::json& json, Reach& reach);
void to_json(nlohmann::json& json, const Transfer& transfer);
void from_json(const nlohmann::json& json, Transfer& transfer);

}  // namespace doctor
