// What lies where in a rank's segment, seen by every rank of the host at the same offsets:
//   header | lane blocks | pair blocks | staging of every lane | rings of every pair | arena
// Any field may hold anything when its writer is another process: readers take one copy and check it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/collectives.h"

namespace weft::shm {

inline constexpr uint64_t kMagic = 0x346d687374666577;  // "weftshm4"
inline constexpr uint32_t kLanes = 64;                  // collective lanes of a comm
inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kHugePage = 2 << 20;
inline constexpr uint64_t kInlineBytes = 48;  // payload beside the arrival flag: one cache line in all
// A lane's staging is a ring of kDepth chunks for long operations, and two halves, used by turns, for short
// ones.
inline constexpr uint64_t kDepth = 4;
inline constexpr uint64_t kChunkBytes = 128 << 10;
inline constexpr uint64_t kStagingBytes = kDepth * kChunkBytes;
inline constexpr uint64_t kHalfBytes = kStagingBytes / 2;
// A pair's ring carries what one rank sends to another one, in packets of a header and up to kPacketBytes.
inline constexpr uint64_t kRingDepth = 8;
inline constexpr uint64_t kRingStride = 32 << 10;
inline constexpr uint64_t kPacketBytes = kRingStride - 64;
inline constexpr uint64_t kRingBytes = kRingDepth * kRingStride;
// Of a pair: the messages of the user, and the notes of a backend that lies over this one.
inline constexpr uint32_t kPairChannels = 2;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct Header {
  uint64_t magic;
  uint64_t nonce;  // proves that the descriptor that came is the one that was meant
};

// What a rank says about its part in an operation too large for the line itself. Flags and addresses are its
// own claims: checked against its segment before use.
struct Claims {
  uint64_t flags;
  uint64_t src_offset;  // in its segment, if kMapped
  uint64_t dst_offset;
  uint64_t src_address;  // in its process
  uint64_t dst_address;
};
inline constexpr uint64_t kStaged = 1;  // the first round is in its staging already
inline constexpr uint64_t kMapped = 2;  // what peers need of src and dst lies in its arena
inline constexpr uint64_t kPulled = 4;  // peers may read src and dst where they are

// One rank's arrival at one operation. sequence is written last.
inline constexpr uint64_t kWithdrawn = UINT64_MAX;  // it has given the operation up
struct alignas(64) Arrival {
  std::atomic<uint64_t> sequence;  // slot + 1
  uint64_t hash;                   // of the descriptor
  union {
    std::byte payload[kInlineBytes];
    Claims claims;
  };
};
static_assert(sizeof(Arrival) == 64);

struct alignas(128) Post {
  Arrival arrival;
  Descriptor descriptor;  // for the text of a mismatch
};

// How far its writer has come: phase(slot, round). One writer, on a line of its own.
struct alignas(128) Counter {
  std::atomic<uint64_t> value;
};

// Rounds of an operation are counted below its slot, so that counters only grow. They may wrap: compare with
// reached(), which is right for values less than 2^63 apart, so for 2^39 slots. Every kCatchUpSlots a rank
// moves all of its counters, whether the operations in between did or not.
inline constexpr int kRoundBits = 24;
inline constexpr uint64_t kMostRounds = (uint64_t{1} << kRoundBits) - 1;
inline constexpr uint64_t kCatchUpSlots = uint64_t{1} << 30;
inline uint64_t phase(uint64_t slot, uint64_t round) {
  return ((slot + 1) << kRoundBits) + round;
}
inline bool reached(uint64_t value, uint64_t goal) {
  return static_cast<int64_t>(value - goal) >= 0;
}

// A rank's words in one lane. Posts alternate: a rank that posts slot s + 2 has seen everybody at s + 1, so
// nobody reads its post of slot s any more.
struct LaneBlock {
  Post posts[2];
  Counter produced;  // rounds whose input lies in its staging
  Counter reduced;   // rounds whose result it has published
  Counter consumed;  // rounds of which it reads nothing any more
  // The fence against late writers into arenas. A writer sets `writing`, looks at `sealed` of those into
  // whose memory it is about to write, and clears `writing` afterwards; who has failed sets `sealed` and
  // waits for the others' `writing`. Both stores and both looks are sequentially consistent: one of the two
  // sees the other.
  Counter writing;  // 1 while it writes into peers' arenas
  Counter sealed;   // 1: nobody may write into its arena any more
};
static_assert(sizeof(LaneBlock) % 128 == 0);

// A rank's words about one peer.
struct PairBlock {
  Counter produced;  // packets it has put into its ring for the peer
  Counter consumed;  // packets it has taken out of the peer's ring
  Post receive;      // the receive from the peer that it executes
};

// Before each packet in a ring.
struct alignas(64) PacketHeader {
  uint64_t sequence;  // slot + 1
  Descriptor descriptor;
};
static_assert(sizeof(PacketHeader) == 64);

// Offsets in a segment. Equal on all ranks: they follow from what was agreed.
struct Layout {
  Layout() = default;
  Layout(int ranks, uint64_t arena);

  uint64_t lane(uint32_t id) const { return lanes + id * sizeof(LaneBlock); }
  uint64_t pair(int peer, uint32_t channel) const { return pairs + at(peer, channel) * sizeof(PairBlock); }
  uint64_t lane_staging(uint32_t id) const { return staging + id * kStagingBytes; }
  uint64_t ring(int peer, uint32_t channel) const { return rings + at(peer, channel) * kRingBytes; }
  // [0, control_bytes) is touched by every operation and populated at once.
  uint64_t control_bytes() const { return staging; }

  uint64_t lanes = 0;
  uint64_t pairs = 0;
  uint64_t staging = 0;
  uint64_t rings = 0;
  uint64_t arena = 0;
  uint64_t arena_bytes = 0;
  uint64_t total = 0;

 private:
  static uint64_t at(int peer, uint32_t channel) {
    return static_cast<uint64_t>(peer) * kPairChannels + channel;
  }
};

}  // namespace weft::shm
