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

Fd duplicate(const Fd& fd) {
  return Fd(::dup(fd.get()));
}

}  // namespace

TEST_CASE("a segment is attached only if it is the one that was announced") {
  const Layout layout(2, 1 << 20);
  Mapping* own = nullptr;
  std::shared_ptr<ArenaMemory> arena;
  Fd fd;
  REQUIRE(Mapping::create(layout, 77, 1, 0, &arena, 0, &own, &fd).ok());
  Mapping* other = nullptr;
  CHECK(Mapping::attach(duplicate(fd), Layout(2, 2 << 20), 77, 0, &other).code() == Code::kPeerFailed);
  CHECK(Mapping::attach(duplicate(fd), layout, 78, 0, &other).code() == Code::kPeerFailed);
  CHECK(Mapping::attach(Fd(), layout, 77, 0, &other).code() == Code::kSystem);
  REQUIRE(Mapping::attach(duplicate(fd), layout, 77, 0, &other).ok());
  own->arena_base()[layout.arena] = std::byte{9};
  CHECK(other->arena_base()[layout.arena] == std::byte{9});
  other->release();
  own->release();
}

namespace {

bool lies_at(const std::byte* base, uint64_t place) {
  return (reinterpret_cast<uintptr_t>(base) - place) % kPlaces == 0;
}

}  // namespace

TEST_CASE("a segment and its arena lie at the chosen offset, modulo the caches' set size") {
  const Layout layout(2, 1 << 20);
  for (const uint64_t place : {uint64_t{0}, kApart, 5 * kApart + page_size(), kPlaces - page_size()}) {
    Mapping* own = nullptr;
    Mapping* peer = nullptr;
    std::shared_ptr<ArenaMemory> arena;
    Fd fd;
    REQUIRE(Mapping::create(layout, 77, 1, place, &arena, 0, &own, &fd).ok());
    CHECK(lies_at(own->base(), place));
    CHECK(lies_at(own->arena_base(), place));
    REQUIRE(Mapping::attach(std::move(fd), layout, 77, place + kApart, &peer).ok());
    CHECK(lies_at(peer->base(), place + kApart));
    peer->release();
    own->release();
  }
}

TEST_CASE("a segment that follows another one on the same arena has its offset") {
  const Layout layout(2, 1 << 20);
  std::shared_ptr<ArenaMemory> arena;
  Mapping* before = nullptr;
  Mapping* after = nullptr;
  Fd fd;
  REQUIRE(Mapping::create(layout, 1, 1, 3 * kApart, &arena, 0, &before, &fd).ok());
  REQUIRE(Mapping::create(layout, 2, 1, kApart, &arena, 0, &after, &fd).ok());
  CHECK(lies_at(after->base(), 3 * kApart));
  CHECK(lies_at(after->arena_base(), 3 * kApart));
  before->release();
  after->release();
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
  Mapping* own = nullptr;
  Mapping* peer = nullptr;
  Mapping* anew = nullptr;
  std::shared_ptr<ArenaMemory> arena;
  Fd fd;
  REQUIRE(Mapping::create(layout, 77, 1, 0, &arena, 0, &own, &fd).ok());
  REQUIRE(Mapping::attach(duplicate(fd), layout, 77, kApart, &peer).ok());
  std::byte* const gradient = own->arena_base() + layout.arena + 5;
  *gradient = std::byte{1};
  CHECK_FALSE(child_writes(gradient));
  CHECK_FALSE(child_writes(own->base() + layout.lanes));
  CHECK_FALSE(child_writes(peer->base() + layout.lanes));
  CHECK_FALSE(child_writes(peer->arena_base() + layout.arena + 5));
  CHECK(*gradient == std::byte{1});
  // The arena is moved into another segment.
  REQUIRE(Mapping::create(layout, 78, 1, 0, &arena, layout.arena_bytes, &anew, &fd).ok());
  CHECK(*gradient == std::byte{1});
  CHECK_FALSE(child_writes(gradient));
  CHECK(*gradient == std::byte{1});
  anew->release();
  peer->release();
  own->release();
}

TEST_CASE("in every process the ranks' segments have the same distances") {
  const auto body = [](SocketLinks& links) {
    ShmRank rank(links);
    const shm::Group& group = rank.group();
    for (int r = 0; r < 3; r++) {
      const uint64_t place =
          reinterpret_cast<uintptr_t>(group.memory(0, 0)) + static_cast<uint64_t>(r) * kApart;
      WEFT_EXPECT(lies_at(group.memory(r, 0), place));
      WEFT_EXPECT(lies_at(group.memory(r, group.layout().arena), place + group.layout().arena));
    }
  };
  CHECK(failure_text(run_linked_processes(3, body)) == "");
  CHECK(failure_text(run_linked_threads(3, body)) == "");
}

TEST_CASE("without address space to choose from, a segment lies anywhere") {
  if (kSanitized) return;  // they need the address space
  CHECK(failure_text(run_linked_processes(1, [](SocketLinks&) {
          const Layout layout(2, 1 << 20);
          Mapping* own = nullptr;
          Mapping* peer = nullptr;
          std::shared_ptr<ArenaMemory> arena;
          Fd fd;
          WEFT_EXPECT_OK(Mapping::create(layout, 77, 1, 0, &arena, 0, &own, &fd));
          long pages = 0;
          std::ifstream("/proc/self/statm") >> pages;
          const uint64_t room = static_cast<uint64_t>(pages) * page_size() + layout.total + kPlaces / 2;
          const rlimit limit{room, room};
          WEFT_EXPECT(::setrlimit(RLIMIT_AS, &limit) == 0);
          WEFT_EXPECT_OK(Mapping::attach(std::move(fd), layout, 77, kApart, &peer));
          own->arena_base()[layout.arena] = std::byte{9};
          WEFT_EXPECT(peer->arena_base()[layout.arena] == std::byte{9});
          peer->release();
          own->release();
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

TEST_CASE("a segment that its owner could shrink under a reader is refused") {
  const Layout layout(2, 1 << 20);
  Fd fd(memory_file());
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(layout.total)) == 0);
  const Header header{kMagic, 77};
  REQUIRE(::pwrite(fd.get(), &header, sizeof header, 0) == sizeof header);
  Mapping* mapping = nullptr;
  CHECK(Mapping::attach(duplicate(fd), layout, 77, 0, &mapping).code() == Code::kPeerFailed);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  REQUIRE(Mapping::attach(duplicate(fd), layout, 77, 0, &mapping).ok());
  mapping->release();
}

TEST_CASE("no segment can be shrunk once it is created") {
  const Layout layout(1, 1 << 20);
  Mapping* own = nullptr;
  std::shared_ptr<ArenaMemory> arena;
  Fd fd;
  REQUIRE(Mapping::create(layout, 1, 1, 0, &arena, 0, &own, &fd).ok());
  CHECK(::ftruncate(fd.get(), 4096) != 0);
  own->release();
}

TEST_CASE(
    "an arena that is backed anew keeps its place and its contents, and leaves the old segment's readers") {
  const Layout before(3, 1 << 20);
  const Layout after(2, 1 << 20);
  std::shared_ptr<ArenaMemory> arena;
  Mapping* old_own = nullptr;
  Mapping* own = nullptr;
  Mapping* late = nullptr;
  Mapping* peer = nullptr;
  Fd old_fd, fd;
  REQUIRE(Mapping::create(before, 1, 1, kApart, &arena, 0, &old_own, &old_fd).ok());
  REQUIRE(Mapping::attach(std::move(old_fd), before, 1, 0, &late).ok());
  std::byte* const memory = arena->base();
  std::fill_n(memory, 100'000, std::byte{5});
  REQUIRE(Mapping::create(after, 2, 1, 0, &arena, 102'400, &own, &fd).ok());
  CHECK(arena->base() == memory);
  REQUIRE(Mapping::attach(std::move(fd), after, 2, 0, &peer).ok());
  CHECK(std::all_of(memory, memory + 100'000, [](std::byte b) { return b == std::byte{5}; }));
  late->arena_base()[before.arena] = std::byte{6};  // a write of a rank that was left out
  CHECK(memory[0] == std::byte{5});
  peer->arena_base()[after.arena + 1] = std::byte{7};
  CHECK(memory[1] == std::byte{7});
  memory[2] = std::byte{8};
  CHECK(peer->arena_base()[after.arena + 2] == std::byte{8});
  for (Mapping* mapping : {old_own, late, own, peer}) mapping->release();
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
