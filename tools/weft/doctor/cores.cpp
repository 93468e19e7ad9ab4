// Cores: ranks that share them, bindings, and the time that a control group allows.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/cores.h"
#include "base/text.h"
#include "cgroup.h"
#include "finding.h"

namespace doctor {
namespace {

using weft::cat;

// Returns the cores' worth of time that a control group allows; 0: no limit.
double quota_in(const std::string& folder) {
  int64_t quota = number_in(folder + "/cpu.cfs_quota_us"), period = number_in(folder + "/cpu.cfs_period_us");
  const std::string both = first_line(folder + "/cpu.max");  // "200000 100000" or "max 100000"
  if (const size_t blank = both.find(' '); blank != both.npos) {
    quota = both.starts_with("max") ? kUnknown : std::atoll(both.c_str());
    period = std::atoll(both.c_str() + blank);
  }
  return quota <= 0 || period <= 0 ? 0 : static_cast<double>(quota) / static_cast<double>(period);
}

using Hosts = std::map<std::string, std::vector<const Facts*>>;

Hosts by_machine(const Inspection& inspection) {
  Hosts hosts;
  for (const Facts& rank : inspection.ranks) hosts[rank.machine].push_back(&rank);
  return hosts;
}

std::vector<int> numbers_of(const std::vector<const Facts*>& ranks) {
  std::vector<int> numbers;
  for (const Facts* rank : ranks) numbers.push_back(rank->rank);
  return numbers;
}

// Returns "core 3" or "cores 0, 1".
std::string cores_text(const std::vector<int>& cores) {
  return cat(cores.size() == 1 ? "core " : "cores ", weft::list_text(cores, 8));
}

// Adds a finding for ranks of one host that are more than the cores that they may use.
void examine_shared(const std::vector<const Facts*>& ranks, const std::vector<int>& cores, int64_t online,
                    std::vector<Finding>* found) {
  const std::string all = online > static_cast<int64_t>(cores.size())
                              ? cat(", of ", online, " of the host: they take turns on it")
                              : ": they take turns";
  found->push_back({Severity::kWarning, numbers_of(ranks),
                    cat(ranks.size(), " ranks of a host share ", cores_text(cores), all)});
}

std::string quota_text(double quota) {
  return cat(static_cast<double>(static_cast<int>(quota * 100)) / 100);
}

}  // namespace

void read(Cores* cores) {
  const weft::Bytes allowed = weft::allowed_cores();
  for (uint64_t core = 0; core < 8 * allowed.size(); ++core) {
    if (!weft::has_core(allowed, core)) continue;
    cores->allowed.push_back(static_cast<int>(core));
    cores->siblings.push_back(
        first_line(cat("/sys/devices/system/cpu/cpu", core, "/topology/thread_siblings_list")));
  }
  cores->online = ::sysconf(_SC_NPROCESSORS_ONLN);
  for (const std::string& folder : cgroup_folders("cpu")) {
    const double quota = quota_in(folder);
    if (quota > 0 && (cores->quota == 0 || quota < cores->quota)) cores->quota = quota;
  }
}

void shared_cores(const Inspection& inspection, std::vector<Finding>* found) {
  for (const auto& [machine, ranks] : by_machine(inspection)) {
    std::map<std::vector<int>, std::vector<const Facts*>> by_cores;
    std::set<int> together;
    for (const Facts* rank : ranks) {
      by_cores[rank->cores.allowed].push_back(rank);
      together.insert(rank->cores.allowed.begin(), rank->cores.allowed.end());
    }
    if (by_cores.contains({})) continue;  // a rank's cores are unknown
    const int64_t online = ranks[0]->cores.online;
    bool shown = false;
    for (const auto& [cores, bound] : by_cores) {
      if (bound.size() <= cores.size()) continue;
      shown = true;
      examine_shared(bound, cores, online, found);
    }
    if (!shown && ranks.size() > together.size())
      examine_shared(ranks, {together.begin(), together.end()}, online, found);
  }
}

void core_binding(const Inspection& inspection, std::vector<Finding>* found) {
  for (const auto& [machine, ranks] : by_machine(inspection)) {
    std::map<std::string, std::vector<const Facts*>> by_siblings;  // of ranks with one hardware thread
    for (const Facts* rank : ranks) {
      const Cores& cores = rank->cores;
      if (cores.allowed.size() != 1 || cores.online <= 1) continue;
      by_siblings[cores.siblings[0]].push_back(rank);
      found->push_back({Severity::kNote,
                        {rank->rank},
                        cat("a rank may run on one core of ", cores.online,
                            ": its progress thread takes turns with the computation")});
    }
    for (const auto& [siblings, bound] : by_siblings) {
      std::set<int> threads;
      for (const Facts* rank : bound) threads.insert(rank->cores.allowed[0]);
      if (siblings.empty() || threads.size() < 2) continue;
      found->push_back(
          {Severity::kWarning, numbers_of(bound),
           cat(bound.size(), " ranks are bound to the hardware threads ", siblings, " of one core")});
    }
  }
}

void cpu_quota(const Inspection& inspection, std::vector<Finding>* found) {
  for (const auto& [machine, ranks] : by_machine(inspection)) {
    for (const Facts* rank : ranks) {
      const Cores& cores = rank->cores;
      if (cores.quota == 0 || cores.quota >= static_cast<double>(cores.allowed.size())) continue;
      const bool scarce = cores.quota < static_cast<double>(ranks.size());
      found->push_back(
          {scarce ? Severity::kWarning : Severity::kNote,
           {rank->rank},
           cat("the control group allows the time of ", quota_text(cores.quota), " cores, for ", ranks.size(),
               ranks.size() == 1 ? " rank" : " ranks", " on ", cores.allowed.size(),
               " cores: waiting ranks use up the time of computing ones, and all stop when it is gone")});
    }
  }
}

}  // namespace doctor
