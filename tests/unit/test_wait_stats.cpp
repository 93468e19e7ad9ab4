// Exchange of waiting times between ranks, and which rank they name as the straggler: late ranks, slow links.
#include "engine/wait_stats.h"

#include <vector>

#include "support/catch.h"

namespace unit_wait_stats {

using namespace weft;

namespace {

constexpr uint64_t kMs = 1'000'000;
using Matrix = std::vector<std::vector<uint64_t>>;  // [r][s]: ms that r waited for s

// Returns the ranks' notes after a step with these waiting times. Each rank has received the given part of
// the others' notes.
std::vector<WaitStats> exchanged(const Matrix& waited, const std::vector<double>& heard) {
  const size_t ranks = waited.size();
  const auto after = [&](size_t r, double part) {
    WaitStats notes(static_cast<int>(r), static_cast<int>(ranks));
    for (size_t s = 0; s < ranks; s++) {
      std::vector<bool> late(ranks);
      late[s] = true;
      notes.waited(late, static_cast<uint64_t>(static_cast<double>(waited[r][s] * kMs) * part));
    }
    return notes;
  };
  std::vector<WaitStats> all;
  for (size_t r = 0; r < ranks; r++) {
    all.push_back(after(r, 1));
    for (size_t s = 0; s < ranks; s++) {
      if (s != r) all.back().received(static_cast<int>(s), after(s, heard[r]).word());
    }
  }
  return all;
}

std::vector<int> named(const Matrix& waited, const std::vector<double>& heard) {
  std::vector<int> ranks;
  for (WaitStats& notes : exchanged(waited, heard)) ranks.push_back(notes.straggler().rank);
  return ranks;
}

}  // namespace

TEST_CASE("a note of waiting is at most a thousandth short, and no time is too long for it") {
  for (const uint64_t ns :
       {uint64_t{1024}, uint64_t{2'097'151}, 60 * kMs, 60'000 * kMs, 3'600'000 * kMs, 86'400'000 * kMs}) {
    for (const uint64_t more : {uint64_t{0}, ns / 7, ns / 3, ns - ns / 100}) {
      const WaitEntry note{65'534, ns + more};
      const WaitEntry back = WaitEntry::unpack(note.pack());
      INFO(note.ns);
      CHECK(back.rank == note.rank);
      CHECK(back.ns <= note.ns);
      CHECK(back.ns + 1024 >= note.ns - note.ns / 1024);
      CHECK(WaitEntry::unpack(back.pack()).ns == back.ns);
    }
  }
  const WaitEntry most = WaitEntry::unpack(WaitEntry{0, UINT64_MAX}.pack());
  CHECK(most.rank == 0);
  CHECK(most.ns > 14 * 86'400'000 * kMs);
  CHECK(WaitEntry::unpack(WaitEntry{0, uint64_t{1} << 60}.pack()).ns == most.ns);
  CHECK(WaitEntry::unpack(UINT32_MAX).ns == most.ns);  // so sums over some thousand ranks fit
  for (const WaitEntry nobody :
       {WaitEntry{-1, 60 * kMs}, WaitEntry{65'535, 60 * kMs}, WaitEntry{3, 1023}, WaitEntry{}}) {
    CHECK(nobody.pack() == 0);
  }
  CHECK(WaitEntry::unpack(0).rank == -1);
}

TEST_CASE("all ranks name the late one, and it names itself as soon as it has received the notes") {
  const Matrix late = {{0, 300, 8}, {0, 0, 0}, {8, 305, 0}};
  CHECK(named(late, {1, 1, 1}) == std::vector<int>{1, 1, 1});
  CHECK(named(late, {0.1, 0.1, 0.1}) == std::vector<int>{1, 1, 1});
  CHECK(named(late, {0, 0, 0}) == std::vector<int>{1, -1, 1});
  std::vector<WaitStats> notes = exchanged(late, {1, 1, 1});
  CHECK(notes[2].straggler().ns == 305 * kMs);
  for (WaitStats& one : notes) {  // what all others waited for it, on average
    CHECK(one.straggler().ns >= 302 * kMs);
    CHECK(one.straggler().ns <= 305 * kMs);
  }
  CHECK(named({{0, 200}, {0, 0}}, {1, 1}) == std::vector<int>{1, 1});
}

TEST_CASE("two ranks with a slow link between them name each other until they have received all notes") {
  CHECK(named({{0, 200}, {190, 0}}, {0.9, 0.9}) == std::vector<int>{1, 0});
  CHECK(named({{0, 200}, {190, 0}}, {1, 1}) == std::vector<int>{1, 1});
}

// As measured between hosts of one rank each.
TEST_CASE("all ranks name the one behind the slow link, which waits for the others as well") {
  const std::vector<double> three = {0.7, 0.9, 0.8};
  CHECK(named({{0, 71, 619}, {19, 0, 606}, {683, 232, 0}}, three) == std::vector<int>{2, 2, 2});
  CHECK(named({{0, 413, 575}, {15, 0, 642}, {337, 394, 0}}, three) == std::vector<int>{2, 2, 2});
  CHECK(named({{0, 0, 686}, {268, 0, 695}, {610, 60, 0}}, three) == std::vector<int>{2, 2, 2});
  // Rank 0 only waits for rank 2. Rank 1 meanwhile waits for rank 0, longer than for rank 2.
  CHECK(named({{0, 0, 600}, {611, 0, 360}, {610, 132, 0}}, {1, 1, 1}) == std::vector<int>{2, 2, 2});
  CHECK(named({{0, 0, 558}, {616, 0, 423}, {568, 352, 0}}, three) == std::vector<int>{2, 2, 2});
  CHECK(named({{0, 0, 551}, {569, 0, 362}, {560, 428, 0}}, three) == std::vector<int>{2, 2, 2});
  const std::vector<double> four = {0.9, 0.9, 0.9, 0.9};
  const Matrix served_last = {{0, 70, 336, 28}, {210, 0, 279, 15}, {333, 0, 0, 0}, {271, 5, 248, 0}};
  CHECK(named(served_last, four) == std::vector<int>{0, 0, 0, 0});
  const Matrix first = {{0, 171, 215, 718}, {689, 0, 71, 235}, {682, 68, 0, 192}, {716, 49, 0, 0}};
  CHECK(named(first, four) == std::vector<int>{0, 0, 0, 0});
  // The link serves rank 3 last, so that the others wait for rank 3 nearly as long.
  const Matrix behind = {{0, 510, 453, 530}, {593, 0, 62, 516}, {591, 27, 0, 455}, {534, 8, 8, 0}};
  CHECK(named(behind, four) == std::vector<int>{0, 0, 0, 0});
}

TEST_CASE("no rank is named if none waited, and notes are cleared with the step") {
  CHECK(named({{0, 0}, {0, 0}}, {1, 1}) == std::vector<int>{-1, -1});
  CHECK(WaitStats(0, 1).straggler().rank == -1);
  for (WaitStats& one : exchanged({{0, 200}, {0, 0}}, {1, 1})) {
    one.clear();
    CHECK(one.straggler().rank == -1);
    CHECK(one.word() == 0);
    CHECK(one.waited_ns() == std::vector<uint64_t>{0, 0});
  }
}

TEST_CASE("another process's notes about ranks that do not exist are ignored") {
  WaitStats notes(0, 3);
  notes.received(1, UINT64_MAX);
  notes.received(2, WaitEntry{3, 60 * kMs}.pack());
  CHECK(notes.straggler().rank == -1);
  notes.received(2, WaitEntry{2, 60 * kMs}.pack());  // itself
  CHECK(notes.straggler().rank == -1);
  notes.received(2, uint64_t{WaitEntry{0, 60 * kMs}.pack()} << 32);
  CHECK(notes.straggler().rank == 0);
}

}  // namespace unit_wait_stats
