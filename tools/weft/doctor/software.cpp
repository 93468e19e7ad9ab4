// Software: Weft's versions, backends, CUDA, MPI, and variables that change how a job runs.
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "environment/config.h"
#include "finding.h"

namespace doctor {
namespace {

using weft::cat;

const BackendFact* find_backend(const Facts& rank, const std::string& name) {
  for (const BackendFact& backend : rank.software.backends) {
    if (backend.name == name) return &backend;
  }
  return nullptr;
}

bool has_backend(const Facts& rank, const std::string& name) {
  const BackendFact* const backend = find_backend(rank, name);
  return backend != nullptr && backend->available;
}

// Returns why a backend is not available on a rank.
std::string why_not(const Facts& rank, const std::string& name) {
  const BackendFact* const backend = find_backend(rank, name);
  return backend == nullptr ? "this library does not know it" : backend->detail;
}

bool everywhere(const Inspection& inspection, const std::string& name) {
  return std::all_of(inspection.ranks.begin(), inspection.ranks.end(),
                     [&](const Facts& rank) { return has_backend(rank, name); });
}

std::string names_of(const Facts& rank) {
  std::string names;
  for (const BackendFact& backend : rank.software.backends)
    names += cat(names.empty() ? "" : ", ", backend.name);
  return names;
}

// Adds a finding for each rank that lacks a backend.
void add_missing(const Inspection& inspection, const std::string& name, Severity severity,
                 const std::string& effect, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    if (has_backend(rank, name)) continue;
    found->push_back({severity,
                      {rank.rank},
                      cat("backend ", name, " is not available (", why_not(rank, name), "): ", effect)});
  }
}

void read_library(weft_context* context, Software* software) {
  for (const weft_backend_info& info : known_backends(context))
    software->backends.push_back({info.name, info.available != 0, info.reason});
  weft_device_info device = WEFT_DEVICE_INFO_INIT;
  if (weft_device_query(context, WEFT_DEVICE_CUDA, &device) != WEFT_OK) return;
  software->cuda = device.available != 0;
  software->cuda_devices = device.device_count;
  software->cuda_reason = device.reason;
}

}  // namespace

void read(Software* software) {
  software->weft = weft_version_text();
  weft_context* context = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  if (weft_context_create(nullptr, &context, &error) == WEFT_OK) {
    read_library(context, software);
    weft_context_destroy(&context);
  } else {
    software->failure = error.text;
  }
  software->nvidia = ::access("/dev/nvidiactl", F_OK) == 0;
  software->mpirun = weft::process_mpi_launcher() != weft::Launcher::kNone;
  const weft::Settings environment = weft::process_settings();
  software->wanted = environment.backend;
  if (!environment.failpoints.empty())
    software->settings.push_back("WEFT_FAILPOINTS=" + environment.failpoints);
  if (!environment.hosts.empty()) software->settings.push_back("WEFT_HOSTS=" + environment.hosts);
  if (environment.heartbeat == "off") software->settings.push_back("WEFT_HEARTBEAT_MS=off");
  for (const std::string& variable : weft::unknown_variables()) {
    const std::string similar = weft::similar_variable(variable);
    software->unknown.push_back(cat(variable, " is set, but Weft does not read it",
                                    similar.empty() ? "" : cat("; did you mean ", similar, "?")));
  }
}

void library(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    if (!rank.software.failure.empty())
      found->push_back(
          {Severity::kError, {rank.rank}, cat("the library cannot be used: ", rank.software.failure)});
  }
}

void versions(const Inspection& inspection, std::vector<Finding>* found) {
  std::map<std::string, std::vector<int>> by_version;
  for (const Facts& rank : inspection.ranks) by_version[rank.software.weft].push_back(rank.rank);
  if (by_version.size() < 2) return;
  std::string text;
  std::vector<int> all;
  for (const auto& [version, ranks] : by_version) {
    text += cat(text.empty() ? "" : ", ", rank_text(ranks), " have ", version);
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  std::sort(all.begin(), all.end());
  found->push_back({Severity::kWarning, all, cat("the ranks have different versions of Weft: ", text)});
}

void backends(const Inspection& inspection, std::vector<Finding>* found) {
  const auto unusable = [](const Facts& rank) { return !rank.software.failure.empty(); };
  if (std::any_of(inspection.ranks.begin(), inspection.ranks.end(), unusable)) return;  // no backend is known
  const bool hosts = inspection.spans_hosts();
  for (const Facts& rank : inspection.ranks) {
    const std::string& wanted = rank.software.wanted;
    if (wanted.empty() || has_backend(rank, wanted)) continue;
    const bool known = find_backend(rank, wanted) != nullptr;
    found->push_back(
        {Severity::kError,
         {rank.rank},
         known ? cat("WEFT_BACKEND is ", wanted, ", which is not available: ", why_not(rank, wanted))
               : cat("WEFT_BACKEND is \"", wanted, "\", which does not exist; known: ", names_of(rank))});
  }
  if (!inspection.ranks[0].software.wanted.empty()) return;
  const bool ucx = everywhere(inspection, "ucx"), shm = everywhere(inspection, "shm"),
             mpi = everywhere(inspection, "mpi");
  if (hosts && !ucx && !mpi)
    add_missing(inspection, "ucx", Severity::kError, "nothing else connects the hosts", found);
  if (!hosts && !shm && !ucx && !mpi)
    add_missing(inspection, "shm", Severity::kError, "nothing else connects the ranks", found);
  if (!shm && (ucx || mpi))
    add_missing(inspection, "shm", Severity::kWarning, "ranks of one host send messages, which is slower",
                found);
  if (!hosts && shm && !ucx) {
    const auto has = [](const Facts& rank) { return has_backend(rank, "ucx"); };
    const bool some = std::any_of(inspection.ranks.begin(), inspection.ranks.end(), has);
    add_missing(inspection, "ucx", some ? Severity::kWarning : Severity::kNote,
                some ? "other ranks have it, so their installations differ" : "jobs on several hosts need it",
                found);
  }
}

void cuda(const Inspection& inspection, std::vector<Finding>* found) {
  std::map<std::string, int64_t> ranks_of;
  for (const Facts& rank : inspection.ranks) ranks_of[rank.machine]++;
  for (const Facts& rank : inspection.ranks) {
    const Software& software = rank.software;
    const auto add = [&](Severity severity, const std::string& text, const std::string& mend = "") {
      found->push_back({severity, {rank.rank}, text, mend});
    };
    if (software.nvidia && !software.cuda)
      add(Severity::kWarning,
          cat("there is an NVIDIA driver, but CUDA buffers are not available: ", software.cuda_reason));
    if (software.cuda && software.cuda_devices > 0 && !has_backend(rank, "nccl")) {
      add(Severity::kNote, cat("backend nccl is not available (", why_not(rank, "nccl"),
                               "): CUDA buffers are copied through pinned host memory"));
    }
    const int64_t here = ranks_of[rank.machine];
    if (software.wanted.starts_with("nccl") && software.cuda && software.cuda_devices < here) {
      add(Severity::kError,
          cat("backend ", software.wanted, " needs a device for each of the ", here,
              " ranks of a host, which has ", software.cuda_devices),
          "start one rank a device, or check CUDA_VISIBLE_DEVICES");
    }
  }
}

void mpi(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    if (!rank.software.mpirun || has_backend(rank, "mpi")) continue;
    found->push_back(
        {Severity::kNote,
         {rank.rank},
         cat("mpirun started this rank, but backend mpi is not available (", why_not(rank, "mpi"),
             "): mpirun only launches, and data goes over other backends")});
  }
}

void settings(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    for (const std::string& setting : rank.software.settings)
      found->push_back(
          {Severity::kWarning, {rank.rank}, cat(setting, " is set; it is for tests and debuggers")});
    for (const std::string& text : rank.software.unknown) {
      found->push_back({Severity::kWarning, {rank.rank}, text, "weft info --env lists the variables"});
    }
  }
}

}  // namespace doctor
