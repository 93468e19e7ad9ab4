// Containers and filters: system calls that are refused, other processes' memory, user namespaces.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/text.h"
#include "environment/secret.h"
#include "finding.h"
#include "rendezvous/socket.h"

namespace doctor {
namespace {

using weft::cat;

bool refused(long result) {
  return result < 0;
}

bool refuses_getrandom() {
  char byte = 0;
  return refused(::syscall(SYS_getrandom, &byte, 1, 1 /* GRND_NONBLOCK */)) && errno != EAGAIN;
}

bool refuses_sealed_memory() {
  const int memory = static_cast<int>(::syscall(SYS_memfd_create, "weft_try", MFD_ALLOW_SEALING));
  return refused(memory) || refused(::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
}

bool refuses_pidfd() {
  return refused(::syscall(SYS_pidfd_open, ::getpid(), 0));
}

bool refuses_affinity() {
  unsigned char mask[8192];
  return refused(::syscall(SYS_sched_getaffinity, 0, sizeof mask, mask));
}

// advice: MADV_...; on a page of this process's own.
bool refuses_advice(int advice) {
  const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const page = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page != MAP_FAILED && refused(::madvise(page, size, advice));
}

struct Call {
  const char* name;
  bool (*refuses)();  // leaves the reason in errno
  Severity severity;
  const char* without;  // what Weft does without it
};
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14
constexpr Call kCalls[] = {
    {"getrandom", refuses_getrandom, Severity::kError, "weft run, shm and ucx fail"},
    {"memfd_create with seals", refuses_sealed_memory, Severity::kWarning, "backend shm is not available"},
    {"sched_getaffinity", refuses_affinity, Severity::kWarning,
     "ranks wait as if they shared cores, with a higher latency"},
    {"MADV_POPULATE_WRITE", [] { return refuses_advice(kPopulateWrite); }, Severity::kNote,
     "a rank without memory may be killed instead of getting an error"},
    {"MADV_WIPEONFORK", [] { return refuses_advice(MADV_WIPEONFORK); }, Severity::kNote,
     "calls in a forked child are found by their process id alone"},
    {"pidfd_open", refuses_pidfd, Severity::kNote,
     "the death of a rank whose connection a child holds open is found by its heartbeat"},
};
constexpr char kEnds[] = "ends the process";

// Tries a call in a child, because a filter may end the process. Returns kWorks or the reason.
std::string try_call(const Call& call) {
  const pid_t child = ::fork();
  if (child < 0) return cat("not tested: fork: ", std::strerror(errno));
  if (child == 0) ::_exit(call.refuses() ? errno : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return kEnds;
  return WEXITSTATUS(status) == 0 ? kWorks : std::strerror(WEXITSTATUS(status));
}

bool in_user_namespace() {
  uint64_t inside = 0, outside = 0, count = 0;
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
  constexpr uint64_t kAll = UINT32_MAX;
  return count != kAll;
}

bool is_filtered() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Seccomp:")) return std::atoi(line.c_str() + 8) != 0;
  }
  return false;
}

}  // namespace

void read(Sandbox* sandbox) {
  for (const Call& call : kCalls) {
    if (std::string reason = try_call(call); reason != kWorks)
      sandbox->refused.push_back({call.name, std::move(reason)});
  }
  sandbox->filtered = is_filtered();
  sandbox->cross_memory = try_cross_memory();
  sandbox->ptrace_scope = number_in(kPtraceScope);
  sandbox->user_namespace = in_user_namespace();
  if (const weft::Status known = weft::check_user_is_known(); !known.ok()) sandbox->user = known.text();
  weft::Bytes secret;
  sandbox->has_secret = weft::process_secret(&secret).ok() && !secret.empty();
}

void system_calls(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    const std::string by = rank.sandbox.filtered ? "a seccomp filter" : "this kernel";
    for (const RefusedCall& refused : rank.sandbox.refused) {
      for (const Call& call : kCalls) {
        if (refused.call != call.name) continue;
        const bool ends = refused.reason == kEnds;
        found->push_back({ends ? Severity::kError : call.severity,
                          {rank.rank},
                          ends ? cat(by, " ends processes that call ", call.name, ", as every rank does")
                               : cat(by, " refuses ", call.name, " (", refused.reason, "): ", call.without)});
      }
    }
  }
}

void cross_memory(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    const Sandbox& sandbox = rank.sandbox;
    if (sandbox.cross_memory == kWorks) continue;
    const bool yama = sandbox.ptrace_scope > 0;
    found->push_back(
        {Severity::kWarning,
         {rank.rank},
         cat("ranks may not read each other's memory (process_vm_readv: ", sandbox.cross_memory,
             yama ? cat("; ptrace_scope is ", sandbox.ptrace_scope) : "",
             "); shm copies large private buffers through shared memory, which is slower"),
         yama ? "sysctl kernel.yama.ptrace_scope=0, or buffers of the communicator's arena (weft_comm_alloc)"
              : ""});
  }
}

void user_namespace(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    const Sandbox& sandbox = rank.sandbox;
    if (!sandbox.user.empty() && !sandbox.has_secret) {
      found->push_back({Severity::kError, {rank.rank}, sandbox.user});
    } else if (sandbox.user_namespace) {
      found->push_back(
          {Severity::kNote,
           {rank.rank},
           "this process is in a user namespace, as in a rootless container: only the host can raise its "
           "limits",
           "if another finding is about a limit, raise it outside the container"});
    }
  }
}

}  // namespace doctor
