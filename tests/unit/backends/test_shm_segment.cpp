// backends/shm: segments, what is accepted from peers, the arena, and cleanup.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/page.h"
#include "shm/group_setup_wire.h"
#include "shm/segment.h"
#include "shm_rank.h"
#include "support/catch.h"
#include "support/kernel.h"
#include "support/sanitized.h"

namespace unit_shm_segment {

using namespace weft;
using namespace weft::shm;
using namespace weft::test;

namespace {

int open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

int mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line)) count += line.find("memfd:weft") != std::string::npos ? 1 : 0;
  return count;
}

// The segments of a communicator as one rank of it has them. Ranks of other processes map the file
// themselves; here another mapping of the same pages stands for theirs.
struct Rank {
  std::shared_ptr<Segments> segments;
  std::shared_ptr<ArenaMemory> arena;
};

Fd new_file(const Layout& layout, uint64_t nonce) {
  Fd fd;
  REQUIRE(create_segments(layout, nonce, &fd).ok());
  return fd;
}

Rank join(const Fd& fd, const Layout& layout, uint64_t nonce, int rank, uint64_t place) {
  Rank made;
  REQUIRE(Segments::open(fd, layout, nonce, rank, place, &made.segments).ok());
  REQUIRE(made.segments->populate_control(rank).ok());
  const uint64_t at = reinterpret_cast<uintptr_t>(made.segments->base(rank)) + layout.arena;
  REQUIRE(ArenaMemory::map(fd, layout, rank, at, &made.arena).ok());
  made.segments->set_arena(rank, *made.arena);
  return made;
}

}  // namespace

TEST_CASE("a file of segments is mapped only if it is the one that was announced") {
  const Layout layout(2, 1 << 20);
  const Fd fd = new_file(layout, 77);
  std::shared_ptr<Segments> other;
  CHECK(Segments::open(fd, Layout(2, 2 << 20), 77, 0, 0, &other).code() == Code::kPeerFailed);
  CHECK(Segments::open(fd, Layout(3, 1 << 20), 77, 0, 0, &other).code() == Code::kPeerFailed);
  CHECK(Segments::open(fd, layout, 78, 0, 0, &other).code() == Code::kPeerFailed);
  CHECK(Segments::open(Fd(), layout, 77, 0, 0, &other).code() == Code::kSystem);
  CHECK(other == nullptr);
  CHECK(mapped_segments() == 0);
}

TEST_CASE("ranks of one process share the mapping, and reach each other's arenas where their owners do") {
  const Layout layout(2, 1 << 20);
  const Fd fd = new_file(layout, 77);
  const Rank first = join(fd, layout, 77, 0, 0);
  const Rank second = join(fd, layout, 77, 1, 5 * kHugePage);
  CHECK(first.segments == second.segments);
  for (const int rank : {0, 1}) {
    const ArenaMemory& arena = rank == 0 ? *first.arena : *second.arena;
    CHECK(first.segments->arena_base(rank) + layout.arena == arena.base());
    // The same pages also lie in the mapping.
    arena.base()[7] = std::byte{9};
    CHECK(first.segments->base(rank)[layout.arena + 7] == std::byte{9});
  }
  std::shared_ptr<Segments> other;
  CHECK(Segments::open(fd, Layout(2, 2 << 20), 77, 0, 0, &other).code() == Code::kPeerFailed);
  CHECK(other == nullptr);
}

namespace {

bool lies_at(const std::byte* base, uint64_t place) {
  return (reinterpret_cast<uintptr_t>(base) - place) % kPlaces == 0;
}

}  // namespace

TEST_CASE("segments and arenas lie at the chosen offset, modulo the caches' set size") {
  const Layout layout(3, 1 << 20);
  CHECK(layout.stride % (2 * kHugePage) == kHugePage);
  uint64_t nonce = 100;
  for (const uint64_t place : {uint64_t{0}, kHugePage, 5 * kHugePage + page_size(), kPlaces - page_size()}) {
    const Fd fd = new_file(layout, ++nonce);
    const Rank one = join(fd, layout, nonce, 1, place);
    CHECK(lies_at(one.segments->base(1), place));
    CHECK(lies_at(one.segments->arena_base(1), place));
    CHECK(lies_at(one.segments->base(0), place - layout.stride));
    CHECK(lies_at(one.segments->base(2), place + layout.stride));
    CHECK(lies_at(one.segments->arena_base(2), place + layout.stride));
  }
}

namespace {

// Returns true if a child that is forked now can write there. It must not.
bool child_writes(std::byte* memory) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    *reinterpret_cast<volatile std::byte*>(memory) = std::byte{66};
    ::_exit(0);
  }
  int how = 0;
  if (child < 0 || ::waitpid(child, &how, 0) != child) return true;
  return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

}  // namespace

TEST_CASE("a forked child has no part of any segment, so it cannot change its parent's gradients") {
  const Layout layout(2, 1 << 20);
  const Fd fd = new_file(layout, 77);
  const Rank own = join(fd, layout, 77, 0, 0);
  std::byte* const gradient = own.arena->base() + 5;
  *gradient = std::byte{1};
  CHECK_FALSE(child_writes(gradient));
  for (const int rank : {0, 1}) {
    CHECK_FALSE(child_writes(own.segments->base(rank) + layout.lanes));
    CHECK_FALSE(child_writes(own.segments->base(rank) + layout.arena + 5));
  }
  CHECK(*gradient == std::byte{1});
  // The arena is moved into another file.
  const Fd anew = new_file(layout, 78);
  REQUIRE(own.arena->back_anew(anew, layout, 0, layout.arena_bytes).ok());
  CHECK(*gradient == std::byte{1});
  CHECK_FALSE(child_writes(gradient));
  CHECK(*gradient == std::byte{1});
}

TEST_CASE("in every process the ranks' segments have the same distances") {
  const auto body = [](SocketLinks& links) {
    ShmRank rank(links);
    const shm::Group& group = rank.group();
    for (int r = 0; r < 3; r++) {
      const uint64_t place = reinterpret_cast<uintptr_t>(group.memory(0, 0)) + group.layout().segment(r);
      WEFT_EXPECT(lies_at(group.memory(r, 0), place));
      WEFT_EXPECT(lies_at(group.memory(r, group.layout().arena), place + group.layout().arena));
    }
  };
  CHECK(failure_text(run_linked_processes(3, body)) == "");
  CHECK(failure_text(run_linked_threads(3, body)) == "");
}

TEST_CASE("without address space to choose from, segments lie anywhere") {
  if (kSanitized) return;  // they need the address space
  CHECK(failure_text(run_linked_processes(1, [](SocketLinks&) {
          const Layout layout(2, 1 << 20);
          Fd fd;
          WEFT_EXPECT_OK(create_segments(layout, 77, &fd));
          long pages = 0;
          std::ifstream("/proc/self/statm") >> pages;
          const uint64_t room =
              static_cast<uint64_t>(pages) * page_size() + layout.file_bytes() + kPlaces / 2;
          const rlimit limit{room, room};
          WEFT_EXPECT(::setrlimit(RLIMIT_AS, &limit) == 0);
          std::shared_ptr<Segments> segments;
          WEFT_EXPECT_OK(Segments::open(fd, layout, 77, 0, kHugePage, &segments));
          WEFT_EXPECT_OK(segments->populate_control(0));
          segments->base(1)[layout.arena] = std::byte{9};
          WEFT_EXPECT(segments->arena_base(1)[layout.arena] == std::byte{9});
        })) == "");
}

TEST_CASE("counters that have wrapped are compared by their difference") {
  constexpr uint64_t kLast = (uint64_t{1} << 40) - 2;  // the slot before the numbers wrap
  CHECK(shm::phase(kLast + 1, 0) < shm::phase(kLast, 0));
  CHECK(shm::reached(shm::phase(kLast + 1, 0), shm::phase(kLast, shm::kMostRounds)));
  CHECK(shm::reached(shm::phase(kLast + 1, 3), shm::phase(kLast + 1, 3)));
  CHECK(!shm::reached(shm::phase(kLast, shm::kMostRounds), shm::phase(kLast + 1, 0)));
  CHECK(!shm::reached(shm::phase(kLast + 1, 2), shm::phase(kLast + 1, 3)));
}

TEST_CASE("segments that another process could shrink under a reader are refused") {
  const Layout layout(2, 1 << 20);
  const Fd fd(memory_file());
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(layout.file_bytes())) == 0);
  const Header header{kMagic, 77, layout.total};
  REQUIRE(::pwrite(fd.get(), &header, sizeof header, 0) == sizeof header);
  std::shared_ptr<Segments> segments;
  CHECK(Segments::open(fd, layout, 77, 0, 0, &segments).code() == Code::kPeerFailed);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  CHECK(Segments::open(fd, layout, 77, 0, 0, &segments).ok());
}

TEST_CASE("no file of segments can be shrunk once it is created") {
  const Fd fd = new_file(Layout(1, 1 << 20), 77);
  CHECK(::ftruncate(fd.get(), 4096) != 0);
}

TEST_CASE(
    "an arena that is backed anew keeps its place and its contents, and leaves the old file's readers") {
  const Layout before(3, 1 << 20);
  const Layout after(2, 1 << 20);
  const Fd old_fd = new_file(before, 1), fd = new_file(after, 2);
  const Rank old = join(old_fd, before, 1, 2, 0);
  std::byte* const late = old.segments->base(2) + before.arena;
  std::byte* const memory = old.arena->base();
  std::fill_n(memory, 100'000, std::byte{5});
  std::shared_ptr<Segments> segments;
  REQUIRE(Segments::open(fd, after, 2, 1, reinterpret_cast<uintptr_t>(memory) - after.arena, &segments).ok());
  REQUIRE(old.arena->back_anew(fd, after, 1, 102'400).ok());
  std::byte* const peer = segments->base(1) + after.arena;
  CHECK((reinterpret_cast<uintptr_t>(peer) - reinterpret_cast<uintptr_t>(memory)) % kPlaces == 0);
  CHECK(old.arena->base() == memory);
  CHECK(std::all_of(memory, memory + 100'000, [](std::byte b) { return b == std::byte{5}; }));
  late[0] = std::byte{6};  // a write of a rank that was left out
  CHECK(memory[0] == std::byte{5});
  peer[1] = std::byte{7};
  CHECK(memory[1] == std::byte{7});
  memory[2] = std::byte{8};
  CHECK(peer[2] == std::byte{8});
}

TEST_CASE("the arena's memory is zeroed again, limited, and recognises its own pointers") {
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          ShmRank rank(links, 8 << 20);
          Arena& arena = *rank.collectives().arena();
          const uint64_t before = arena.populated_bytes();
          std::byte* const memory = rank.allocate(1 << 20);
          WEFT_EXPECT(reinterpret_cast<uintptr_t>(memory) % Arena::kAlignment == 0);
          WEFT_EXPECT(arena.populated_bytes() == before + (1 << 20));
          std::memset(memory, 1, 1 << 20);
          WEFT_EXPECT_OK(arena.free(memory));
          std::byte* const again = rank.allocate(3 << 20);
          WEFT_EXPECT(std::all_of(again, again + (3 << 20), [](std::byte b) { return b == std::byte{0}; }));
          std::byte* none = nullptr;
          WEFT_EXPECT(arena.allocate(6 << 20, &none).code() == Code::kNoMemory);
          WEFT_EXPECT(arena.allocate(UINT64_MAX - 5, &none).code() == Code::kNoMemory);
          WEFT_EXPECT(arena.free(again + 4096).code() == Code::kArg);
          int local = 0;
          WEFT_EXPECT(arena.free(reinterpret_cast<std::byte*>(&local)).code() == Code::kArg);
          WEFT_EXPECT_OK(arena.free(again));
          WEFT_EXPECT(arena.free(again).code() == Code::kArg);
        })) == "");
}

TEST_CASE("an arena larger than the machine's memory is refused, and does not get the process killed") {
  CHECK(failure_text(run_linked_threads(1, [](SocketLinks& links) {
          const uint64_t limit = 2 * available_memory();
          ShmRank rank(links, limit);
          std::byte* none = nullptr;
          const Status status = rank.collectives().arena()->allocate(available_memory() / 8 * 9, &none);
          WEFT_EXPECT(status.code() == Code::kNoMemory);
          // The refused arena took no memory: a small allocation still succeeds.
          WEFT_EXPECT_OK(rank.collectives().arena()->free(rank.allocate(4096)));
        })) == "");
}

TEST_CASE("arenas get new pages only if the machine has room for those of all its ranks") {
  RankInfo rank;
  rank.needed_bytes = 600;
  rank.available_bytes = 1000;
  CHECK(check_memory({rank}).ok());
  CHECK(check_memory({rank, rank}).code() == Code::kNoMemory);
  rank.needed_bytes = 500;
  CHECK(check_memory({rank, rank}).ok());
  RankInfo poor = rank;  // its control group has less
  poor.available_bytes = 999;
  CHECK(check_memory({rank, poor}).code() == Code::kNoMemory);
  rank.needed_bytes = UINT64_MAX - 1;
  CHECK(check_memory({rank, rank}).code() == Code::kNoMemory);
}

TEST_CASE("a communicator leaves neither descriptors nor mappings behind") {
  const int before = open_descriptors();
  CHECK(failure_text(run_linked_threads(3, [](SocketLinks& links) { ShmRank rank(links); })) == "");
  CHECK(open_descriptors() == before);
  CHECK(mapped_segments() == 0);
  if (kThreadSanitizer) return;
  CHECK(failure_text(run_linked_processes(2, [](SocketLinks& links) {
          const int descriptors = open_descriptors();
          {
            ShmRank rank(links);
          }
          WEFT_EXPECT(open_descriptors() == descriptors);
          WEFT_EXPECT(mapped_segments() == 0);
        })) == "");
}

TEST_CASE("ranks that run out of address space settle for smaller arenas") {
  if (kThreadSanitizer) WEFT_SKIP("the thread sanitizer needs its address space");
  if (kAddressSanitizer) WEFT_SKIP("the address sanitizer needs its address space");
  const uint64_t huge = uint64_t{1} << 46;
  const uint64_t feasible = feasible_arena(4, huge);
  CHECK(feasible < huge);
  CHECK(feasible > (1 << 30));
  CHECK(feasible_arena(2, 1 << 20) == 1 << 20);
}

}  // namespace unit_shm_segment
