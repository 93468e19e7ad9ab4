// Sends frames to one other rank: this rank's messages, in the order of their calls, and its answers to the
// other rank's. Short messages are sent at once, as many as fit into the receiver's window. Others are
// offered.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core/collectives.h"
#include "tagged/owner.h"

namespace weft::tagged {

class Outgoing {
 public:
  // rank: this one. lane: the send lane to `peer`.
  Outgoing(Owner& owner, int rank, int peer, std::unique_ptr<CollectiveLane> lane)
      : owner_(owner), rank_(rank), peer_(peer), lane_(std::move(lane)) {}

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
  bool busy() const { return writing_ != Writing::kNothing || !answers_.empty(); }
  // Sends what the lane takes. Returns the lane's failure; sets *advanced if something was done.
  Status progress(bool* advanced);
  // The peer takes no further frames.
  void abandon();

 private:
  enum class Writing { kNothing, kFrame, kData };
  bool next_frame();
  bool next_message();
  void next_chunk();
  void write(const std::byte* data, uint64_t bytes);
  void written();

  Owner& owner_;
  const int rank_, peer_;
  const std::unique_ptr<CollectiveLane> lane_;
  uint64_t slot_ = 0;  // of the lane
  // The frame that is being written, and the data that follows it.
  Writing writing_ = Writing::kNothing;
  Frame frame_;
  const std::byte* data_ = nullptr;  // null: none
  std::vector<std::byte> copy_;      // of an eager message
  Operation* eager_ = nullptr;       // of the frame; null if it has ended
  Operation* chunk_ = nullptr;       // of the frame

  std::deque<Header> answers_;
  std::deque<Operation*> waiting_;
  std::map<uint64_t, Operation*> offered_;  // by id
  std::deque<Operation*> streaming_;
  bool chunk_next_ = false;  // messages and chunks take turns
  uint64_t last_id_ = 0;
  uint64_t credit_ = kEagerWindowBytes;
};

}  // namespace weft::tagged
