// Preloaded: gives a program pages of 64 KiB, as kernels for ARM64 may have. The page size, the places and
// lengths of mappings, and the errors about addresses and offsets between pages are those of such a kernel.
// The memory behind the end of a file within its last page is not: the file ends there.
#undef _FILE_OFFSET_BITS  // with it, glibc calls mmap "mmap64"; here are both
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace {

constexpr uintptr_t kPage = 64 << 10;

uintptr_t rounded(uintptr_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

bool between_pages(uintptr_t place) {
  if (place % kPage == 0) return false;
  errno = EINVAL;
  return true;
}

template <typename... Arguments>
void* map(Arguments... arguments) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, arguments...));
}

}  // namespace

extern "C" {

int getpagesize() noexcept {
  return int{kPage};
}

long sysconf(int name) noexcept {
  static long (*const real)(int) = reinterpret_cast<long (*)(int)>(dlsym(RTLD_NEXT, "sysconf"));
  return name == _SC_PAGESIZE ? long{kPage} : real(name);
}

void* mmap(void* hint, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
  if (between_pages(static_cast<uintptr_t>(offset))) return MAP_FAILED;
  if ((flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0) {
    if (between_pages(reinterpret_cast<uintptr_t>(hint))) return MAP_FAILED;
    return map(hint, rounded(length), protection, flags, fd, offset);
  }
  // Reserves more, and keeps the part that begins at a multiple of the page size.
  void* const reserved =
      map(nullptr, rounded(length) + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const uintptr_t begin = rounded(reinterpret_cast<uintptr_t>(reserved));
  const uintptr_t before = begin - reinterpret_cast<uintptr_t>(reserved);
  if (before > 0) syscall(SYS_munmap, reserved, before);
  syscall(SYS_munmap, begin + rounded(length), kPage - before);
  void* const mapped = map(begin, rounded(length), protection, flags | MAP_FIXED, fd, offset);
  const int error = errno;
  if (mapped == MAP_FAILED) syscall(SYS_munmap, begin, rounded(length));
  errno = error;
  return mapped;
}

void* mmap64(void* hint, size_t length, int protection, int flags, int fd, off64_t offset) noexcept {
  return mmap(hint, length, protection, flags, fd, offset);
}

int munmap(void* begin, size_t length) noexcept {
  if (between_pages(reinterpret_cast<uintptr_t>(begin))) return -1;
  return static_cast<int>(syscall(SYS_munmap, begin, rounded(length)));
}

int mprotect(void* begin, size_t length, int protection) noexcept {
  if (between_pages(reinterpret_cast<uintptr_t>(begin))) return -1;
  return static_cast<int>(syscall(SYS_mprotect, begin, rounded(length), protection));
}

int madvise(void* begin, size_t length, int advice) noexcept {
  if (between_pages(reinterpret_cast<uintptr_t>(begin))) return -1;
  return static_cast<int>(syscall(SYS_madvise, begin, rounded(length), advice));
}

}  // extern "C"
