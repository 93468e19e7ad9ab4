// Receives frames from one other rank, and hands its messages to the receives that take them. Reads a frame
// only while an operation waits for this rank. So an idle communicator costs nothing, and a rank that sends
// to a busy one waits once its lane is full.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "tagged/matching.h"
#include "tagged/outgoing.h"
#include "tagged/owner.h"
#include "transport/collectives.h"

namespace weft::tagged {

class Incoming {
 public:
  // rank: this one. lane: the receive lane of `key`. outgoing: sends the answers. first_offer: as for
  // Outgoing.
  Incoming(Owner& owner, Matching& matching, Outgoing& outgoing, int rank, const LaneKey& key,
           std::unique_ptr<CollectiveLane> lane, uint64_t first_offer)
      : owner_(owner),
        matching_(matching),
        outgoing_(outgoing),
        rank_(rank),
        peer_(key.peer),
        lane_(std::move(lane)),
        slot_(key.first_slot),
        last_offer_(first_offer) {}

  // Gives a receive a message of the peer that has waited in the matching.
  void deliver(Operation& receive, const Unexpected& message);
  // Returns true if the lane writes into the receive's buffer.
  bool moving(const Operation& receive) const { return filling_ != nullptr && filling_->receive == &receive; }
  // Forgets a receive that has accepted an offer of the peer and ends early; its data is discarded.
  void forget(const Operation& receive);
  // Returns true if frames have to be received although no operation waits.
  bool busy() const { return !accepted_.empty(); }
  // Receives what has arrived. Returns the lane's failure, or kPeerFailed with Evidence::kDescriptor if a
  // frame is invalid; sets *advanced if something was done.
  Status progress(bool* advanced);
  // The peer sends no further frames.
  void abandon();

 private:
  enum class Reading { kNothing, kFrame, kData };
  // An offer that a receive has accepted.
  struct Accepted {
    Header header;
    uint64_t received = 0;
    Operation* receive = nullptr;  // null: it has ended, and the data is discarded
  };

  bool handle(const Header& header);
  bool handle_eager(const Header& header);
  bool handle_offer(const Header& header);
  bool handle_chunk(const Header& header);
  bool handle_withdrawal(uint64_t id);
  void read(std::byte* data, uint64_t bytes);
  void arrived();
  void arrived_chunk();
  void deliver(Operation& receive, const Header& header, const std::byte* data);
  void accept(Operation& receive, const Header& offer);
  std::list<Accepted>::iterator accepted(uint64_t id);
  Status invalid() const;

  Owner& owner_;
  Matching& matching_;
  Outgoing& outgoing_;
  const int rank_, peer_;
  const std::unique_ptr<CollectiveLane> lane_;
  uint64_t slot_;  // of the lane
  // The frame that is being read, and the data that follows it.
  Reading reading_ = Reading::kNothing;
  Frame frame_;
  std::vector<std::byte> copy_;  // of an eager message
  Accepted* filling_ = nullptr;  // whose chunk is being received
  std::vector<std::byte> discarded_;

  std::list<Accepted> accepted_;
  uint64_t offers_ = 0;  // accepted, or in the matching
  uint64_t last_offer_;
  uint64_t window_ = 0;  // that the peer's messages take; includes owed_
  uint64_t owed_ = 0;    // part of the window that is free, which the peer does not know
};

}  // namespace weft::tagged
