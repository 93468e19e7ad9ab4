// The layout of a rank's segment, with equal offsets on every rank of the host. The segments of all ranks lie
// in one file, one behind the other:
//
//   header | lane blocks | pair blocks | staging of every lane | rings of every pair | arena
//
// A field that another process writes may contain anything, so readers copy it once and check the copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/collectives.h"

namespace weft::shm {

inline constexpr uint64_t kMagic = 0x366d687374666577;  // "weftshm6"
inline constexpr uint32_t kLanes = 64;                  // collective lanes of a communicator
inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kHugePage = 2 << 20;
inline constexpr uint64_t kInlineBytes = 48;  // payload beside the arrival flag: one cache line in total
// A lane's staging is a ring of kDepth chunks for long operations, or two alternating halves for short
// operations.
inline constexpr uint64_t kDepth = 4;
inline constexpr uint64_t kChunkBytes = 128 << 10;
inline constexpr uint64_t kStagingBytes = kDepth * kChunkBytes;
inline constexpr uint64_t kHalfBytes = kStagingBytes / 2;
// A pair's ring holds the packets that one rank sends to another: a header and up to kPacketBytes each.
inline constexpr uint64_t kRingDepth = 8;
inline constexpr uint64_t kRingStride = 32 << 10;
inline constexpr uint64_t kPacketBytes = kRingStride - 64;
inline constexpr uint64_t kRingBytes = kRingDepth * kRingStride;
// Channels of a pair: LaneKey::id.
inline constexpr uint32_t kPairChannels = 3;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Begins the file.
struct Header {
  uint64_t magic;
  uint64_t nonce;  // proves that the received descriptor is the intended one
  uint64_t total;  // Layout::total
};

// A rank's claims about an operation that is too large for the inline payload. Flags and addresses are not
// trusted: they are checked against its segment before use.
struct Claims {
  uint64_t flags;
  uint64_t src_offset;  // in its segment, if kMapped
  uint64_t dst_offset;
  uint64_t src_address;  // in its process
  uint64_t dst_address;
};
inline constexpr uint64_t kStaged = 1;  // its staging already contains the first round
inline constexpr uint64_t kMapped = 2;  // its arena contains what peers need of src and dst
inline constexpr uint64_t kPulled = 4;  // peers may read src and dst in place

// A rank's arrival at one operation. sequence is written last.
inline constexpr uint64_t kWithdrawn = UINT64_MAX;  // the rank has abandoned the operation
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
  Descriptor descriptor;  // for the text of a mismatch error
};

// Shows how far the one rank that writes it has come, as phase(slot, round). It has a cache line of its own.
struct alignas(128) Counter {
  std::atomic<uint64_t> value;
};

// Encodes slot and round: the round is in the bits below the slot, so that counters only grow. They may wrap:
// compare them with reached(), which is right for values less than 2^63 apart, that is 2^39 slots. Every
// kCatchUpSlots a rank moves all of its counters, even those that no operation has moved since.
inline constexpr int kRoundBits = 24;
inline constexpr uint64_t kMostRounds = (uint64_t{1} << kRoundBits) - 1;
inline constexpr uint64_t kCatchUpSlots = uint64_t{1} << 30;
inline uint64_t phase(uint64_t slot, uint64_t round) {
  return ((slot + 1) << kRoundBits) + round;
}
inline bool reached(uint64_t value, uint64_t goal) {
  return static_cast<int64_t>(value - goal) >= 0;
}

// A rank's shared state in one lane. Posts alternate. A rank that posts slot s + 2 has seen all ranks at s +
// 1, so no rank reads its post of slot s any more.
struct LaneBlock {
  Post posts[2];
  Counter produced;  // rounds whose input is in its staging
  Counter reduced;   // rounds whose result it has published
  Counter consumed;  // rounds of which it no longer reads anything
  // The fence against late writes into arenas. A writer sets `writing`, then reads `sealed` of the ranks into
  // whose memory it is about to write, and clears `writing` afterwards. A rank that has failed sets `sealed`
  // and then waits for the others' `writing`. Both stores and both loads are sequentially consistent, so one
  // of the two sees the other.
  Counter writing;  // 1 while the rank writes into peers' arenas
  Counter sealed;   // 1: no rank may write into this rank's arena any more
};
static_assert(sizeof(LaneBlock) % 128 == 0);

// A rank's shared state about one peer.
struct PairBlock {
  Counter produced;  // packets that it has put into its ring for the peer
  Counter consumed;  // packets that it has taken out of the peer's ring
  Post receive;      // the receive from the peer that it executes
};

// Precedes each packet in a ring.
struct alignas(64) PacketHeader {
  uint64_t sequence;  // slot + 1
  Descriptor descriptor;
};
static_assert(sizeof(PacketHeader) == 64);

// Offsets in a segment. They follow from agreed values, so they are equal on all ranks.
struct Layout {
  Layout() = default;
  Layout(int ranks, uint64_t arena);
  bool operator==(const Layout&) const = default;

  uint64_t lane(uint32_t id) const { return lanes + id * sizeof(LaneBlock); }
  uint64_t pair(int peer, uint32_t channel) const { return pairs + at(peer, channel) * sizeof(PairBlock); }
  uint64_t lane_staging(uint32_t id) const { return staging + id * kStagingBytes; }
  uint64_t ring(int peer, uint32_t channel) const { return rings + at(peer, channel) * kRingBytes; }
  // Every operation touches [0, control_bytes), so its owner populates it at once.
  uint64_t control_bytes() const { return staging; }
  // Offset of a rank's segment in the file.
  uint64_t segment(int rank) const { return static_cast<uint64_t>(rank) * stride; }
  uint64_t file_bytes() const { return ranks * stride; }

  uint64_t lanes = 0;
  uint64_t pairs = 0;
  uint64_t staging = 0;
  uint64_t rings = 0;
  uint64_t arena = 0;
  uint64_t arena_bytes = 0;
  uint64_t total = 0;
  uint64_t ranks = 0;
  // From one segment to the next in the file: an odd number of huge pages, so that the low 28 bits of
  // addresses at equal offsets differ in bits 21 to 27 alone, for up to 128 ranks. See kPlaces.
  uint64_t stride = 0;

 private:
  static uint64_t at(int peer, uint32_t channel) {
    return static_cast<uint64_t>(peer) * kPairChannels + channel;
  }
};

}  // namespace weft::shm
