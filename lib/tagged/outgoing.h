// Sends frames to one other rank: this rank's messages, in the order of their calls, and its answers to the
// other rank's. Short messages are copied, as many as fit into the receiver's window, and their sends
// complete at once. Others are offered.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "tagged/owner.h"
#include "transport/collectives.h"

namespace weft::tagged {

class Outgoing {
 public:
  // rank: this one. lane: the send lane of `key`. first_offer: the first offer has
  // the number after it.
  Outgoing(Owner& owner, int rank, const LaneKey& key, std::unique_ptr<CollectiveLane> lane,
           uint64_t first_offer)
      : owner_(owner),
        rank_(rank),
        peer_(key.peer),
        lane_(std::move(lane)),
        slot_(key.first_slot),
        last_id_(first_offer) {}

  // Sends a message, or completes its send and keeps the copy, or lets it wait.
  void send(Operation& send);
  // Queues a frame about the peer's messages.
  void answer(const Header& header) { answers_.push_back(header); }
  // Handles the peer's frame about this rank's messages: kAccept, kRefuse or kCredit. Returns false if it
  // does not follow from the frames before it.
  bool answered(const Header& header);
  // Returns true if the lane reads the send's buffer.
  bool moving(const Operation& send) const { return chunk_ == &send; }
  // Forgets a send that ends early and whose buffer is not read, and withdraws its offer.
  void forget(const Operation& send);
  // Returns true if frames have to be sent although no operation waits.
  bool busy() const { return writing_ != Writing::kNothing || !answers_.empty() || !messages_.empty(); }
  // Returns true if answers or copies have to be sent.
  bool owes() const;
  // Sends what the lane takes. Returns the lane's failure; sets *advanced if something was done.
  Status progress(bool* advanced);
  // The peer takes no further frames.
  void abandon();

 private:
  enum class Writing { kNothing, kFrame, kData };
  // A message of which nothing was sent.
  struct Message {
    Operation* send;  // null: it is complete, and its data was copied
    Header header;
    std::vector<std::byte> data;
  };

  bool fits(const Operation& send) const;
  static Message copy(const Operation& send);
  void admit();
  bool next_frame();
  bool next_message();
  void next_chunk();
  void write_frame();
  void write(const std::byte* data, uint64_t bytes);
  void written();

  Owner& owner_;
  const int rank_, peer_;
  const std::unique_ptr<CollectiveLane> lane_;
  uint64_t slot_;  // of the lane
  // The frame that is being written, and the data that follows it.
  Writing writing_ = Writing::kNothing;
  Frame frame_;
  const std::byte* data_ = nullptr;  // null: none
  std::vector<std::byte> copy_;      // of an eager message
  Operation* chunk_ = nullptr;       // of the frame

  std::deque<Header> answers_;
  std::deque<Message> messages_;            // in the order of their calls
  std::map<uint64_t, Operation*> offered_;  // by id
  std::deque<Operation*> streaming_;
  bool chunk_next_ = false;  // messages and chunks take turns
  uint64_t last_id_;
  uint64_t credit_ = kEagerWindowBytes;  // part of the window that no message takes, copies included
};

}  // namespace weft::tagged
