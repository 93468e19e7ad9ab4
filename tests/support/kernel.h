// Tells what the kernel, or a sandbox around the test, refuses. The suite sandbox (tests/sandbox) runs tests
// with such calls refused.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace weft::test {

inline bool has_pidfds() {
  const long fd = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  return fd >= 0 && ::close(static_cast<int>(fd)) == 0;
}

// True unless the call itself is refused. A sandbox may still forbid to read other processes.
inline bool has_process_vm_readv() {
  char from = 1;
  char to = 0;
  const iovec local{&to, 1};
  const iovec remote{&from, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

// Creates a memfd that can be sealed, also where the kernel refuses executable ones, and where it does not
// know the flag.
inline int memory_file() {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, Linux 6.3
  const int fd = ::memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  return fd >= 0 ? fd : ::memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

}  // namespace weft::test
