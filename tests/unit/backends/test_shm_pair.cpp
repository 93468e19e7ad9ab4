// Messages of the shm backend: order, sizes, eager sends, mismatches.
#include <numeric>

#include "shm_rank.h"
#include "support/catch.h"

namespace unit_shm_pair {

using namespace weft;
using namespace weft::test;

namespace {

LaneKey to(int peer, uint32_t id = 0) {
  return {LaneKey::Kind::kSend, id, peer};
}
LaneKey from(int peer, uint32_t id = 0) {
  return {LaneKey::Kind::kReceive, id, peer};
}

CollectiveArgs message(Coll coll, int peer, std::vector<uint32_t>& data, Dtype dtype = Dtype::kU32) {
  CollectiveArgs args;
  args.coll = coll;
  args.dtype = dtype;
  args.peer = peer;
  args.count = data.size();
  auto* const memory = reinterpret_cast<std::byte*>(data.data());
  if (coll == Coll::kSend) {
    args.src = memory;
  } else {
    args.dst = memory;
  }
  return args;
}

const std::vector<uint64_t> kCounts = {0, 1, 100, 8000, 8176, 8177, 100'000, 1'000'000};

}  // namespace

TEST_CASE("messages of every size arrive in order, in both directions at once") {
  CHECK(failure_text(run_linked_processes(2, [](SocketLinks& links) {
          ShmRank rank(links);
          const int peer = 1 - rank.rank();
          uint64_t slot = 0;
          for (const uint64_t count : kCounts) {
            std::vector<uint32_t> out(count), in(count, 7), want(count);
            std::iota(out.begin(), out.end(), 1000u * static_cast<uint32_t>(rank.rank()));
            std::iota(want.begin(), want.end(), 1000u * static_cast<uint32_t>(peer));
            rank.lane(to(peer)).start(message(Coll::kSend, peer, out), slot);
            rank.lane(from(peer)).start(message(Coll::kRecv, peer, in), slot++);
            CollectiveLane* lanes[] = {&rank.lane(to(peer)), &rank.lane(from(peer))};
            WEFT_EXPECT_OK(rank.finish_all(lanes));
            WEFT_EXPECT(in == want);
          }
        })) == "");
}

TEST_CASE("a short send is complete before its receive is called") {
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          ShmRank rank(links);
          std::vector<uint32_t> data(100, static_cast<uint32_t>(rank.rank()));
          // Both send first; neither could finish if sends waited for receives.
          WEFT_EXPECT_OK(rank.call(to(1 - rank.rank()), message(Coll::kSend, 1 - rank.rank(), data)));
          WEFT_EXPECT_OK(rank.call(from(1 - rank.rank()), message(Coll::kRecv, 1 - rank.rank(), data)));
          WEFT_EXPECT(data[99] == static_cast<uint32_t>(1 - rank.rank()));
        })) == "");
}

TEST_CASE("a receive of a different count or dtype is a mismatch on both sides") {
  for (const bool other_dtype : {false, true}) {
    CHECK(failure_text(run_linked_threads(2, [&](SocketLinks& links) {
            ShmRank rank(links);
            std::vector<uint32_t> data(1'000'000);
            std::vector<uint32_t> fewer(999'999);
            const Dtype dtype = other_dtype ? Dtype::kF32 : Dtype::kU32;
            const Status status =
                rank.rank() == 0
                    ? rank.call(to(1), message(Coll::kSend, 1, data))
                    : rank.call(from(0), message(Coll::kRecv, 0, other_dtype ? data : fewer, dtype));
            WEFT_EXPECT(status.code() == Code::kMismatch);
            WEFT_EXPECT(status.text().find("send u32 x 1000000") != std::string::npos);
            WEFT_EXPECT(status.text().find(other_dtype ? "f32 x 1000000" : "u32 x 999999") !=
                        std::string::npos);
          })) == "");
  }
}

TEST_CASE("a receive names the rank that sends nothing") {
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          ShmRank rank(links);
          if (rank.rank() == 0) {
            std::vector<uint32_t> data(1);
            const Status status = rank.call(from(1), message(Coll::kRecv, 1, data), 50);
            WEFT_EXPECT(status.code() == Code::kTimeout);
            WEFT_EXPECT(status.info().ranks == std::vector<int>{1});
            rank.lane(from(1)).abandon();
            WEFT_EXPECT(rank.lane(from(1)).missing().empty());
          }
        })) == "");
}

TEST_CASE("a packet of another message is an error by name") {
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          ShmRank rank(links);
          shm::Group& group = rank.group();
          std::vector<uint32_t> data(4, 7);
          SystemClock clock;
          std::vector<Bytes> all;
          if (rank.rank() == 1) {
            const uint64_t ring = group.layout().ring(0, 0);
            WEFT_EXPECT_OK(group.ensure(1, ring, shm::kRingStride));
            // The packet belongs to message 4, but message 0 is next.
            new (group.memory(1, ring)) shm::PacketHeader{5, Descriptor::of(message(Coll::kRecv, 1, data))};
            group.at<shm::PairBlock>(1, group.layout().pair(0, 0)).produced.value = 1;
          }
          WEFT_EXPECT_OK(links.all_gather({}, &all, Deadline::after(clock, 20'000, 0)));
          if (rank.rank() == 1) return;
          const Status status = rank.call(from(1), message(Coll::kRecv, 1, data));
          WEFT_EXPECT(status.code() == Code::kPeerFailed);
          WEFT_EXPECT(status.info().ranks == std::vector<int>{1});
          WEFT_EXPECT(status.text().find("message number 5, expected 1") != std::string::npos);
          WEFT_EXPECT(data == std::vector<uint32_t>(4, 7));
        })) == "");
}

TEST_CASE("the notes of a pair are separate from its messages, and errors name their call") {
  CHECK(failure_text(run_linked_processes(2, [](SocketLinks& links) {
          ShmRank rank(links);
          const int peer = 1 - rank.rank();
          // A message without a receive yet is longer than its ring.
          std::vector<uint32_t> held(1'000'000, 5), in(held.size());
          rank.lane(to(peer)).start(message(Coll::kSend, peer, held), 0);
          for (uint64_t slot = 0; slot < 20; slot++) {
            std::vector<uint32_t> note(2, static_cast<uint32_t>(slot)), theirs(2);
            rank.lane(to(peer, 1)).start(message(Coll::kSend, peer, note), slot);
            rank.lane(from(peer, 1)).start(message(Coll::kRecv, peer, theirs), slot);
            CollectiveLane* lanes[] = {&rank.lane(to(peer, 1)), &rank.lane(from(peer, 1))};
            WEFT_EXPECT_OK(rank.finish_all(lanes));
            WEFT_EXPECT(theirs == note);
          }
          rank.lane(from(peer)).start(message(Coll::kRecv, peer, in), 0);
          CollectiveLane* both[] = {&rank.lane(to(peer)), &rank.lane(from(peer))};
          WEFT_EXPECT_OK(rank.finish_all(both));
          WEFT_EXPECT(in == held);
          // A note of one call, which the other rank reads as that of another call.
          std::vector<uint32_t> word(2);
          CollectiveArgs args = message(rank.rank() == 0 ? Coll::kSend : Coll::kRecv, peer, word);
          WholeCall whole{Descriptor::of(args), 77};
          whole.descriptor.count = rank.rank() == 0 ? 10 : 11;
          args.whole = &whole;
          CollectiveLane& lane = rank.lane(rank.rank() == 0 ? to(peer, 1) : from(peer, 1));
          lane.start(args, 20);
          CollectiveLane* last[] = {&lane};
          const Status status = rank.finish_all(last);
          if (rank.rank() == 0) return;  // it may not have received the error
          WEFT_EXPECT(status.code() == Code::kMismatch);
          WEFT_EXPECT(status.text().find("operation 77") != std::string::npos);
        })) == "");
}

}  // namespace unit_shm_pair
