// Memory that is left, and the folders that libraries of a job write to.
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "base/text.h"
#include "cgroup.h"
#include "finding.h"

namespace doctor {
namespace {

using weft::cat;

constexpr int64_t kLeastBytes = int64_t{16} << 20, kComfortableBytes = int64_t{256} << 20;

std::string size_text(int64_t bytes) {
  return weft::bytes_text(static_cast<uint64_t>(std::max(bytes, int64_t{0})));
}

// Returns the number behind a word at the begin of a line, as in "MemAvailable: 12 kB".
int64_t number_after(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(word)) return std::atoll(line.c_str() + word.size());
  }
  return kUnknown;
}

// Returns what a control group leaves: its limit less what is used and could not be dropped.
int64_t left_in(const std::string& folder) {
  int64_t limit = number_in(folder + "/memory.max"), used = number_in(folder + "/memory.current");
  if (limit == kUnknown) limit = number_in(folder + "/memory.limit_in_bytes");
  if (used == kUnknown) used = number_in(folder + "/memory.usage_in_bytes");
  if (limit == kUnknown || used == kUnknown) return kUnlimited;
  int64_t cache = number_after(folder + "/memory.stat", "total_inactive_file ");
  if (cache == kUnknown) cache = number_after(folder + "/memory.stat", "inactive_file ");
  return limit - used + std::max(cache, int64_t{0});
}

Folder examine_folder(const std::string& path) {
  Folder folder;
  folder.path = path;
  // access() asks for the real user's rights, and reports read-only file systems.
  if (::access(path.c_str(), W_OK | X_OK) != 0) folder.writable = std::strerror(errno);
  struct statvfs about{};
  if (::statvfs(path.c_str(), &about) == 0)
    folder.free_bytes = static_cast<int64_t>(about.f_bavail * about.f_frsize);
  return folder;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void read(Memory* memory) {
  const int64_t machine = number_after("/proc/meminfo", "MemAvailable:");
  int64_t group = kUnlimited;
  for (const std::string& folder : cgroup_folders("memory")) group = std::min(group, left_in(folder));
  memory->available_bytes = machine == kUnknown ? group : std::min(group, machine << 10);
  memory->by_cgroup = group == memory->available_bytes && group != kUnlimited;
  memory->dev_shm = examine_folder("/dev/shm");
  const std::string temporary = variable("TMPDIR");
  memory->temporary = examine_folder(temporary.empty() ? "/tmp" : temporary);
  if (const std::string flight = variable("WEFT_FLIGHT"); !flight.empty())
    memory->flight = examine_folder(flight);
}

void memory(const Inspection& inspection, std::vector<Finding>* found) {
  std::map<std::string, std::vector<const Facts*>> machines;
  for (const Facts& rank : inspection.ranks) machines[rank.machine].push_back(&rank);
  for (const auto& [machine, ranks] : machines) {
    const auto count = static_cast<int64_t>(ranks.size());
    for (const Facts* rank : ranks) {
      const int64_t left = rank->memory.available_bytes;
      if (left == kUnlimited || left == kUnknown || left >= kComfortableBytes * count) continue;
      found->push_back({left < kLeastBytes * count ? Severity::kError : Severity::kWarning,
                        {rank->rank},
                        cat(rank->memory.by_cgroup ? "the control group" : "the machine", " has ",
                            size_text(left), " of memory left for ", count, count == 1 ? " rank" : " ranks",
                            "; a communicator alone takes about ", size_text(kLeastBytes), " a rank")});
    }
  }
}

void dev_shm(const Inspection& inspection, std::vector<Finding>* found) {
  constexpr int64_t kSmall = int64_t{64} << 20;  // what container runtimes give by default
  for (const Facts& rank : inspection.ranks) {
    const Folder& folder = rank.memory.dev_shm;
    const bool unusable = folder.writable != kWorks;
    if (!unusable && folder.free_bytes > kSmall) continue;
    const bool needed = unusable && rank.software.wanted.starts_with("nccl");
    found->push_back({needed ? Severity::kError : Severity::kWarning,
                      {rank.rank},
                      cat("/dev/shm ",
                          unusable ? "cannot be written to: " + folder.writable
                                   : "has " + size_text(folder.free_bytes) + " free",
                          "; Weft's shm does not use it, but NCCL, MPI and PyTorch's data loaders do")});
  }
}

void temporary_folder(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    const Folder& folder = rank.memory.temporary;
    if (folder.writable == kWorks) continue;
    found->push_back({rank.software.mpirun ? Severity::kWarning : Severity::kNote,
                      {rank.rank},
                      cat(folder.path, " cannot be written to: ", folder.writable,
                          "; Weft does not use it, but MPI libraries and torchrun do")});
  }
}

void flight_folder(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    const Folder& folder = rank.memory.flight;
    if (folder.path.empty() || folder.writable == kWorks) continue;
    found->push_back({Severity::kWarning,
                      {rank.rank},
                      cat("WEFT_FLIGHT is ", folder.path, ", which cannot be written to: ", folder.writable,
                          "; flight records of failures are lost")});
  }
}

}  // namespace doctor
