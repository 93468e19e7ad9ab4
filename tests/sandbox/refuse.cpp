// Runs a program to which the kernel refuses some system calls, as an old kernel or a container's filter
// does. The program's children inherit that.
//
//   refuse CALL[=ERRNO][,CALL[=ERRNO]...] -- PROGRAM [ARGUMENT...]
//   refuse --list
//
// --list prints each known call with its errnos: first that of a kernel without the call, then that of a
// filter. The first is the default. ERRNO may also be "kill": the call then ends the process.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Errno {
  std::string_view name;
  uint32_t action;  // what the filter returns
};
constexpr Errno kErrnos[] = {
    {"ENOSYS", SECCOMP_RET_ERRNO | ENOSYS},           {"EINVAL", SECCOMP_RET_ERRNO | EINVAL},
    {"ENOPROTOOPT", SECCOMP_RET_ERRNO | ENOPROTOOPT}, {"EPERM", SECCOMP_RET_ERRNO | EPERM},
    {"EACCES", SECCOMP_RET_ERRNO | EACCES},           {"kill", SECCOMP_RET_KILL_PROCESS}};

// The values of an argument for which a call is refused: those that equal `value` in the bits of `mask`.
struct Argument {
  uint32_t index = 0;
  uint32_t mask = 0;  // 0: every value
  uint32_t value = 0;
};

struct Call {
  std::string_view name;
  uint32_t number;
  Argument argument;
  std::string_view errnos;  // the usual ones, the default first
};

// The constants that Debian 12's headers lack have their numbers here.
constexpr uint32_t kAll = UINT32_MAX;
constexpr uint32_t kPeerPidfd = 77;     // SO_PEERPIDFD, Linux 6.5
constexpr uint32_t kNoExecSeal = 8;     // MFD_NOEXEC_SEAL, Linux 6.3
constexpr uint32_t kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14
constexpr Call kCalls[] = {
    // Weft makes these.
    {"pidfd_open", SYS_pidfd_open, {}, "ENOSYS EPERM"},
    {"SO_PEERPIDFD", SYS_getsockopt, {2, kAll, kPeerPidfd}, "ENOPROTOOPT EPERM"},
    {"MADV_WIPEONFORK", SYS_madvise, {2, kAll, MADV_WIPEONFORK}, "EINVAL EPERM"},
    {"MADV_POPULATE_WRITE", SYS_madvise, {2, kAll, kPopulateRead + 1}, "EINVAL EPERM"},
    {"process_vm_readv", SYS_process_vm_readv, {}, "ENOSYS EPERM"},
    {"sched_setaffinity", SYS_sched_setaffinity, {}, "ENOSYS EPERM"},
    {"sched_getaffinity", SYS_sched_getaffinity, {}, "ENOSYS EPERM"},
    {"memfd_create", SYS_memfd_create, {}, "ENOSYS EPERM"},
    {"MFD_NOEXEC_SEAL", SYS_memfd_create, {1, kNoExecSeal, kNoExecSeal}, "EINVAL"},
    {"memfd_create without MFD_NOEXEC_SEAL", SYS_memfd_create, {1, kNoExecSeal, 0}, "EACCES"},
    {"F_ADD_SEALS", SYS_fcntl, {1, kAll, F_ADD_SEALS}, "EINVAL EPERM"},
    {"getrandom", SYS_getrandom, {}, "ENOSYS EPERM"},
    // Libraries that Weft uses, or programs over it, may make these.
    {"pidfd_send_signal", SYS_pidfd_send_signal, {}, "ENOSYS EPERM"},
    {"pidfd_getfd", SYS_pidfd_getfd, {}, "ENOSYS EPERM"},
    {"MADV_POPULATE_READ", SYS_madvise, {2, kAll, kPopulateRead}, "EINVAL EPERM"},
    {"process_vm_writev", SYS_process_vm_writev, {}, "ENOSYS EPERM"},
    {"clone3", SYS_clone3, {}, "ENOSYS"},  // glibc makes no thread if it is EPERM
    {"CLONE_NEWUSER", SYS_clone, {0, CLONE_NEWUSER, CLONE_NEWUSER}, "EINVAL EPERM"},
    {"unshare", SYS_unshare, {}, "ENOSYS EPERM"},
    {"close_range", SYS_close_range, {}, "ENOSYS EPERM"},
    {"statx", SYS_statx, {}, "ENOSYS EPERM"},
    {"faccessat2", SYS_faccessat2, {}, "ENOSYS EPERM"},
    {"copy_file_range", SYS_copy_file_range, {}, "ENOSYS EPERM"},
    {"rseq", SYS_rseq, {}, "ENOSYS EPERM"},
    {"get_mempolicy", SYS_get_mempolicy, {}, "ENOSYS EPERM"},
    {"set_mempolicy", SYS_set_mempolicy, {}, "ENOSYS EPERM"},
    {"mbind", SYS_mbind, {}, "ENOSYS EPERM"},
    {"move_pages", SYS_move_pages, {}, "ENOSYS EPERM"},
    {"ptrace", SYS_ptrace, {}, "ENOSYS EPERM"},
    {"perf_event_open", SYS_perf_event_open, {}, "ENOSYS EPERM"},
    {"io_uring_setup", SYS_io_uring_setup, {}, "ENOSYS EPERM"},
    {"userfaultfd", SYS_userfaultfd, {}, "ENOSYS EPERM"},
    {"kcmp", SYS_kcmp, {}, "ENOSYS EPERM"},
};

template <typename Table>
const auto* find(const Table& table, std::string_view name) {
  for (const auto& entry : table) {
    if (entry.name == name) return &entry;
  }
  std::fprintf(stderr, "refuse: unknown word \"%.*s\"; choose one of:\n", static_cast<int>(name.size()),
               name.data());
  for (const auto& entry : table)
    std::fprintf(stderr, "  %.*s\n", static_cast<int>(entry.name.size()), entry.name.data());
  std::exit(2);
}

void list() {
  for (const Call& call : kCalls)
    std::printf("%s: %s\n", std::string(call.name).c_str(), std::string(call.errnos).c_str());
}

// Appends the test of one call. Each instruction's jumps count the instructions that are skipped.
void add(std::vector<sock_filter>* filter, const Call& call, uint32_t action) {
  const auto argument =
      static_cast<uint32_t>(offsetof(seccomp_data, args) + call.argument.index * sizeof(uint64_t));
  const sock_filter instructions[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.number, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),  // the low half, on a little-endian machine
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, call.argument.mask),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.argument.value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
  };
  filter->insert(filter->end(), std::begin(instructions), std::end(instructions));
}

std::vector<sock_filter> parse(std::string_view refused) {
  std::vector<sock_filter> filter;
  while (!refused.empty()) {
    const std::string_view entry = refused.substr(0, refused.find(','));
    refused.remove_prefix(std::min(refused.size(), entry.size() + 1));
    const std::string_view name = entry.substr(0, entry.find('='));
    const Call& call = *find(kCalls, name);
    const std::string_view chosen = name.size() < entry.size() ? entry.substr(name.size() + 1)
                                                               : call.errnos.substr(0, call.errnos.find(' '));
    add(&filter, call, find(kErrnos, chosen)->action);
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--list") {
    list();
    return 0;
  }
  if (argc < 4 || std::string_view(argv[2]) != "--") {
    std::fprintf(stderr, "usage: refuse CALL[=ERRNO][,CALL...] -- PROGRAM [ARGUMENT...], or refuse --list\n");
    return 2;
  }
  std::vector<sock_filter> filter = parse(argv[1]);
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::fprintf(stderr, "refuse: this system allows no seccomp filter: %s\n", std::strerror(errno));
    return 77;
  }
  execvp(argv[3], argv + 3);
  std::fprintf(stderr, "refuse: %s: %s\n", argv[3], std::strerror(errno));
  return 127;
}
