#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/page.h"
#include "base/round_up.h"
#include "base/text.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

namespace weft::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr int kShared = MAP_SHARED | MAP_NORESERVE;

// Reserves address space of `size` bytes at `place` modulo kPlaces; null if there is none.
std::byte* reserve(uint64_t size, uint64_t place) {
  void* const memory =
      ::mmap(nullptr, size + kPlaces, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(memory);
  const uint64_t skipped = (place - reinterpret_cast<uintptr_t>(begin)) % kPlaces;
  if (skipped > 0) ::munmap(begin, skipped);
  ::munmap(begin + skipped + size, kPlaces - skipped);
  return begin + skipped;
}

// Keeps the memory out of forked children: the parent's peers would read whatever a child wrote there. If the
// kernel refuses, the program is responsible (weft_comm_alloc).
void keep_from_children(void* memory, uint64_t size) {
  (void)::madvise(memory, size, MADV_DONTFORK);
}

// Maps at `place` modulo kPlaces, or anywhere if there is not enough address space to choose from.
Status map(const Fd& fd, uint64_t offset, uint64_t size, uint64_t place, std::byte** base) {
  std::byte* const at = reserve(round_up(size, page_size()), place);
  void* const memory = ::mmap(at, size, kProtection, at == nullptr ? kShared : kShared | MAP_FIXED, fd.get(),
                              static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    const int error = errno;
    if (at != nullptr) ::munmap(at, size);
    return Status::system(cat("mmap of ", bytes_text(size)), error);
  }
  keep_from_children(memory, size);
  *base = static_cast<std::byte*>(memory);
  return {};
}

bool parse_number(const char* text, uint64_t* value) {
  return std::from_chars(text, text + std::strlen(text), *value).ec == std::errc();
}

// Reads a number from a small file such as memory.max; returns false if it has none ("max").
bool read_number(const char* path, uint64_t* value) {
  std::FILE* const file = std::fopen(path, "re");
  if (file == nullptr) return false;
  char line[32];
  const bool ok = std::fgets(line, sizeof line, file) != nullptr && parse_number(line, value);
  std::fclose(file);
  return ok;
}

// The mappings of this process.
struct OpenSegments {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<Segments>> by_nonce;  // guarded by mutex
};

OpenSegments& open_segments() {
  static OpenSegments& all = *new OpenSegments;  // never ends: threads may use it until the process has ended
  return all;
}

// Returns kPeerFailed unless the file is the one that was announced.
Status check_file(const Fd& fd, const Layout& layout, uint64_t nonce) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return Status::system("fstat of the segments' file", errno);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (static_cast<uint64_t>(info.st_size) != layout.file_bytes() || seals < 0 || (seals & kSeals) != kSeals) {
    return Status::error(Code::kPeerFailed,
                         cat("the received file descriptor has ", info.st_size, " bytes and seals ", seals,
                             ", expected ", layout.file_bytes(), " bytes and seals ", kSeals));
  }
  Header header{};
  if (::pread(fd.get(), &header, sizeof header, 0) != sizeof header)
    return Status::system("pread of the segments' header", errno);
  if (header.magic == kMagic && header.nonce == nonce && header.total == layout.total) return {};
  return Status::error(
      Code::kPeerFailed,
      cat("its header has magic number ", header.magic, ", identifier ", header.nonce, " and segments of ",
          header.total, " bytes, expected ", kMagic, ", ", nonce, " and ", layout.total, " bytes"));
}

// Returns this process's control group (version 2); empty for the root group and where there is none.
std::string control_group() {
  char line[4096];
  std::string path;
  std::FILE* const file = std::fopen("/proc/self/cgroup", "re");
  if (file == nullptr) return path;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, "0::/", 4) != 0) continue;
    path = line + 3;
    while (!path.empty() && (path.back() == '\n' || path.back() == '/')) path.pop_back();
  }
  std::fclose(file);
  return path;
}

}  // namespace

Layout::Layout(int ranks, uint64_t arena_size) {
  const auto count = static_cast<uint64_t>(ranks);
  lanes = kPage;
  pairs = lanes + kLanes * sizeof(LaneBlock);
  staging = round_up(pairs + count * kPairChannels * sizeof(PairBlock), kPage);
  rings = staging + kLanes * kStagingBytes;
  arena = round_up(rings + count * kPairChannels * kRingBytes, kHugePage);
  arena_bytes = round_up(arena_size, page_size());
  total = arena + arena_bytes;
  this->ranks = count;
  stride = round_up(total, kHugePage) | kHugePage;
}

Status ArenaMemory::map(const Fd& fd, const Layout& layout, int rank, uint64_t place,
                        std::shared_ptr<ArenaMemory>* memory) {
  std::shared_ptr<ArenaMemory> made(new ArenaMemory);  // before there is a mapping to unmap
  if (layout.arena_bytes > 0) {
    WEFT_TRY(shm::map(fd, layout.segment(rank) + layout.arena, layout.arena_bytes, place, &made->base_));
    made->size_ = layout.arena_bytes;
  }
  *memory = std::move(made);
  return {};
}

ArenaMemory::~ArenaMemory() {
  if (size_ > 0) ::munmap(base_, size_);
}

Status ArenaMemory::back_anew(const Fd& fd, const Layout& layout, int rank, uint64_t used) {
  if (layout.arena_bytes != size_ || used > size_) {
    return Status::error(
        Code::kInternal,
        cat("internal: the arena of the new segment has ", layout.arena_bytes, " bytes, and ", used,
            " bytes of the old one of ", size_, " are allocated; report this as a bug of Weft"));
  }
  if (size_ == 0) return {};
  const uint64_t offset = layout.segment(rank) + layout.arena;
  std::byte* fresh = nullptr;
  if (used > 0) {
    Status mapped = shm::map(fd, offset, used, 0, &fresh);
    if (fresh == nullptr) return mapped;
    const Status populated = populate(fresh, used);
    if (populated.ok()) std::memcpy(fresh, base_, used);
    ::munmap(fresh, used);
    WEFT_TRY(populated);
  }
  // Replaces the mapping in one step, so that no thread ever finds these addresses unmapped. (mremap would
  // keep the page tables, but the hooks of UCX up to 1.14 lose its address.)
  if (::mmap(base_, size_, kProtection, kShared | MAP_FIXED, fd.get(), static_cast<off_t>(offset)) ==
      MAP_FAILED) {
    return Status::system(cat("mmap of ", bytes_text(size_)), errno);
  }
  keep_from_children(base_, size_);
  return used > 0 ? populate(base_, used) : Status();
}

Status create_file(uint64_t size, Fd* fd) {
  // Linux before 6.3 does not know MFD_NOEXEC_SEAL. A system with vm.memfd_noexec=2 may insist on it.
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd file(::memfd_create("weft", kFlags | MFD_NOEXEC_SEAL));
  if (!file.valid() && errno == EINVAL) file = Fd(::memfd_create("weft", kFlags));
  if (!file.valid()) return Status::system("memfd_create", errno);
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) {
    return Status::system(cat("ftruncate to ", bytes_text(size)), errno);
  }
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return Status::system("fcntl(F_ADD_SEALS)", errno);
  *fd = std::move(file);
  return {};
}

Status create_segments(const Layout& layout, uint64_t nonce, Fd* fd) {
  WEFT_TRY(create_file(layout.file_bytes(), fd));
  const Header header{kMagic, nonce, layout.total};
  if (::pwrite(fd->get(), &header, sizeof header, 0) == sizeof header) return {};
  return Status::system("pwrite of the segments' header", errno);
}

Status Segments::open(const Fd& fd, const Layout& layout, uint64_t nonce, int rank, uint64_t place,
                      std::shared_ptr<Segments>* segments) {
  // Both may end here, and must then do so behind the lock, which their end takes.
  std::shared_ptr<Segments> shared, made(new Segments(layout, nonce));
  OpenSegments& all = open_segments();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.by_nonce.find(nonce); found != all.by_nonce.end()) shared = found->second.lock();
  if (shared && shared->layout_ != layout) {
    return Status::error(Code::kPeerFailed,
                         cat("another communicator of this process has segments with identifier ", nonce));
  }
  if (shared) {
    *segments = std::move(shared);
    return {};
  }
  WEFT_TRY(check_file(fd, layout, nonce));
  WEFT_TRY(map(fd, 0, layout.file_bytes(), place - layout.segment(rank), &made->base_));
  all.by_nonce[nonce] = made;
  *segments = std::move(made);
  return {};
}

Segments::~Segments() {
  if (base_ != nullptr) ::munmap(base_, layout_.file_bytes());
  OpenSegments& all = open_segments();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_nonce.find(nonce_);
  if (found != all.by_nonce.end() && found->second.expired()) all.by_nonce.erase(found);
}

Status Segments::populate_control(int rank) {
  return populate(base(rank), layout_.control_bytes());
}

uint64_t feasible_arena(int ranks, uint64_t limit) {
  const uint64_t page = page_size();
  uint64_t arena = round_up(limit, page);
  rlimit file_size{};
  if (::getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY) {
    const uint64_t others = Layout(ranks, 0).stride + kHugePage;
    const uint64_t each = file_size.rlim_cur / static_cast<uint64_t>(ranks);
    const uint64_t room = each > others ? each - others : 0;
    arena = std::min(arena, room / page * page);
  }
  // Tries the reservation, because RLIMIT_AS and other limits bound the address space. Reserves twice the
  // need, to leave some to the program.
  while (arena > kHugePage) {
    const uint64_t need = 2 * Layout(ranks, arena).file_bytes();
    void* const tuner = ::mmap(nullptr, need, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (tuner != MAP_FAILED) {
      ::munmap(tuner, need);
      break;
    }
    arena = arena / 2 / page * page;
  }
  return arena;
}

Status populate(std::byte* from, uint64_t size) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const uint64_t page = page_size();
  std::byte* const start = from - address % page;
  const uint64_t length = round_up(size + address % page, page);
  int result = 0;
  do {
    result = ::madvise(start, length, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return {};
  if (errno != EINVAL && errno != ENOSYS && errno != EPERM) {
    return Status::error(Code::kNoMemory,
                         cat("cannot get ", bytes_text(size), " of shared memory: ", std::strerror(errno),
                             "; free memory or raise the container's memory limit"));
  }
  // Fallback for Linux before 5.14, and for sandboxes. Atomically adding zero keeps what another process may
  // be writing.
  for (uint64_t at = 0; at < length; at += page) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(start + at))
        .fetch_add(0, std::memory_order_relaxed);
  }
  return {};
}

uint64_t available_memory() {
  uint64_t available = UINT64_MAX;
  if (std::FILE* const file = std::fopen("/proc/meminfo", "re")) {
    char line[128];
    constexpr std::string_view kField = "MemAvailable:";
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::strncmp(line, kField.data(), kField.size()) != 0) continue;
      uint64_t kib = 0;
      if (parse_number(line + std::strspn(line + kField.size(), " ") + kField.size(), &kib))
        available = kib * 1024;
    }
    std::fclose(file);
  }
  uint64_t most = 0;
  uint64_t used = 0;
  const std::string group = "/sys/fs/cgroup" + control_group();
  if (read_number((group + "/memory.max").c_str(), &most) &&
      read_number((group + "/memory.current").c_str(), &used)) {
    available = std::min(available, most > used ? most - used : 0);
  }
  return available;
}

Status PopulatedRanges::ensure(std::byte* base, uint64_t total, uint64_t offset, uint64_t size) {
  if (size == 0) return {};
  const uint64_t first = offset / kGranule;
  const uint64_t last = (offset + size - 1) / kGranule;
  if (last >= done_.size()) done_.resize(last + 1);
  for (uint64_t granule = first; granule <= last; granule++) {
    if (done_[granule]) continue;
    uint64_t end = granule + 1;
    while (end <= last && !done_[end]) end++;
    const uint64_t from = granule * kGranule;
    WEFT_TRY(populate(base + from, std::min(end * kGranule, total) - from));
    std::fill(done_.begin() + static_cast<int64_t>(granule), done_.begin() + static_cast<int64_t>(end), true);
    granule = end - 1;
  }
  return {};
}

}  // namespace weft::shm
