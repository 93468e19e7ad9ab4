// Exchanges of vectors between two ranks that fold what they receive: the rounds of recursive halving. A
// vector is sent in chunks; while one chunk is folded, the next one is received.
#pragma once

#include <array>

#include "coll/algorithm.h"

namespace weft::coll {

// Adds rounds to a schedule. One object serves all exchanges of an operation. Both ranks of an exchange give
// it the same stage number.
class PairExchange {
 public:
  // longest: most elements that one exchange receives, on any rank.
  PairExchange(const Shape& shape, Schedule& schedule, uint64_t longest)
      : element_(shape.element), chunk_(pipeline_elements(shape, longest)), schedule_(schedule) {
    for (Ref& room : rooms_) room = schedule.scratch(std::min(longest, chunk_) * element_);
  }

  enum class Way { kBoth, kGive, kTake };  // kGive: only sends; the peer takes
  struct Exchange {
    Way way = Way::kBoth;
    int peer = 0;
    uint32_t stage = 0;
    Ref own;            // this rank's vector so far
    Slice sent = {};    // of `own`, to the peer
    Slice kept = {};    // of `own`: the peer sends its part of it
    Ref to = {};        // a vector, in which `kept` becomes both parts' fold; may be `own`
    bool lower = true;  // this rank's part comes first in the fold
    bool last = false;  // the fold is the result
  };
  void add(const Exchange& exchange) {
    const uint64_t chunks = chunks_of(std::max(exchange.sent.count, exchange.kept.count), chunk_);
    for (uint64_t c = 0; c < chunks; c++) {
      // The first chunk may have been folded in the previous round.
      const When when = c == 0 ? When::kInRound : When::kAhead;
      const uint32_t step = exchange.stage << kChunkBits | static_cast<uint32_t>(c);
      if (exchange.way != Way::kTake) {
        const Slice out = chunk_of(exchange.sent, c, chunk_);
        schedule_.send(exchange.peer, step, at(exchange.own, out), out.count * element_, when);
      }
      if (exchange.way != Way::kGive) {
        const Slice in = chunk_of(exchange.kept, c, chunk_);
        schedule_.receive(exchange.peer, step, room(c), in.count * element_, when);
        if (c > 0) fold(exchange, c - 1);
        schedule_.meanwhile();
        if (c + 1 == chunks) fold(exchange, c);
      }
      schedule_.end_round();
    }
  }

 private:
  static constexpr uint32_t kChunkBits = 24;

  Ref room(uint64_t chunk) const { return rooms_[chunk % rooms_.size()]; }
  Ref at(Ref vector, const Slice& slice) const {
    vector.offset += slice.begin * element_;
    return vector;
  }
  void fold(const Exchange& exchange, uint64_t c) {
    const Slice part = chunk_of(exchange.kept, c, chunk_);
    const Ref own = at(exchange.own, part);
    const Ref inputs[] = {exchange.lower ? own : room(c), exchange.lower ? room(c) : own};
    if (exchange.last) {
      schedule_.fold(inputs, at(exchange.to, part), part.count);
    } else {
      schedule_.add(inputs, at(exchange.to, part), part.count);
    }
  }

  const uint64_t element_;
  const uint64_t chunk_;  // elements
  Schedule& schedule_;
  std::array<Ref, 3> rooms_;  // one posted, one being received and one being folded
};

}  // namespace weft::coll
