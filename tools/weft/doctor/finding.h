// The results of `weft doctor`: findings with a severity and a mend, and the table of checks that make them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "facts.h"

namespace doctor {

enum class Severity : uint8_t {
  kError,    // a job fails
  kWarning,  // a job is slower or at risk
  kNote,     // good to know
};
const char* name(Severity severity);

struct Finding {
  Severity severity = Severity::kNote;
  std::vector<int> ranks;  // where it applies
  std::string text;
  std::string mend;                // empty: that of the check
  std::string id;                  // of the check
  std::vector<std::string> hosts;  // empty: those of the ranks, each once
};

struct Check {
  const char* id;
  Severity worst;  // of its findings
  const char* looks_at;
  const char* mend;
  // Appends findings without id.
  void (*examine)(const Inspection& inspection, std::vector<Finding>* found);
};
std::span<const Check> checks();

// Runs all checks. Findings of several ranks with the same text become one. Errors come first.
std::vector<Finding> diagnose(const Inspection& inspection);
bool has_error(const std::vector<Finding>& findings);

// Returns one object with the list `findings`, the transfers and the facts of all ranks.
nlohmann::json describe(const Inspection& inspection, const std::vector<Finding>& findings);
// Returns the findings for readers, and a last line that counts them.
std::string text_of(const Inspection& inspection, const std::vector<Finding>& findings);

// Return "ranks 3, 4" and "rank 3 (hostb)".
std::string rank_text(const std::vector<int>& ranks);
std::string rank_on_host(int rank, const std::string& host);
std::string rank_on_host(const Facts& rank);

// The examinations, by the file that has them.
// limits.cpp
void open_files(const Inspection& inspection, std::vector<Finding>* found);
void locked_memory(const Inspection& inspection, std::vector<Finding>* found);
void address_space(const Inspection& inspection, std::vector<Finding>* found);
void threads(const Inspection& inspection, std::vector<Finding>* found);
// memory.cpp
void memory(const Inspection& inspection, std::vector<Finding>* found);
void dev_shm(const Inspection& inspection, std::vector<Finding>* found);
void temporary_folder(const Inspection& inspection, std::vector<Finding>* found);
void flight_folder(const Inspection& inspection, std::vector<Finding>* found);
// sandbox.cpp
void system_calls(const Inspection& inspection, std::vector<Finding>* found);
void cross_memory(const Inspection& inspection, std::vector<Finding>* found);
void user_namespace(const Inspection& inspection, std::vector<Finding>* found);
// cores.cpp
void shared_cores(const Inspection& inspection, std::vector<Finding>* found);
void core_binding(const Inspection& inspection, std::vector<Finding>* found);
void cpu_quota(const Inspection& inspection, std::vector<Finding>* found);
// clock.cpp
void clock_source(const Inspection& inspection, std::vector<Finding>* found);
void clock_offset(const Inspection& inspection, std::vector<Finding>* found);
// network.cpp
void addresses(const Inspection& inspection, std::vector<Finding>* found);
void reachability(const Inspection& inspection, std::vector<Finding>* found);
void path_mtu(const Inspection& inspection, std::vector<Finding>* found);
void mtu(const Inspection& inspection, std::vector<Finding>* found);
void ucx_devices(const Inspection& inspection, std::vector<Finding>* found);
// software.cpp
void library(const Inspection& inspection, std::vector<Finding>* found);
void versions(const Inspection& inspection, std::vector<Finding>* found);
void backends(const Inspection& inspection, std::vector<Finding>* found);
void cuda(const Inspection& inspection, std::vector<Finding>* found);
void mpi(const Inspection& inspection, std::vector<Finding>* found);
void settings(const Inspection& inspection, std::vector<Finding>* found);
// start.cpp
void hosts(const Inspection& inspection, std::vector<Finding>* found);
void environment(const Inspection& inspection, std::vector<Finding>* found);
void rendezvous(const Inspection& inspection, std::vector<Finding>* found);
void communicator(const Inspection& inspection, std::vector<Finding>* found);
// transfers.cpp
void transfers(const Inspection& inspection, std::vector<Finding>* found);

}  // namespace doctor
