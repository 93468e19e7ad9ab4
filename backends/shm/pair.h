// Sends messages from one rank to another through a ring of packets in the sender's segment. A short message
// is complete for the sender once the ring contains it. Called by comm/lane under the progress lock.
#pragma once

#include <memory>
#include <vector>

#include "group.h"
#include "transport/collectives.h"

namespace weft::shm {

// The base of both directions: one message at a time, packet by packet.
class PairLane : public CollectiveLane {
 public:
  PairLane(std::shared_ptr<Group> group, int peer, uint32_t channel)
      : group_(std::move(group)), peer_(peer), channel_(channel), moved_(group_->first_packet()) {}

  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return result_; }
  void abandon() override { running_ = false; }
  std::vector<int> missing() const override {
    return running_ ? std::vector<int>{group_->name(peer_)} : std::vector<int>();
  }
  const char* algorithm() const override { return "ring"; }

 protected:
  virtual void begin() = 0;
  virtual int ring_owner() const = 0;
  virtual uint64_t ring_offset() const = 0;
  // Moves packet `packet` of the message if the other side has made that possible.
  virtual bool move(uint64_t packet) = 0;
  void finish(Status status) {
    result_ = std::move(status);
    running_ = false;
  }
  uint64_t offset(uint64_t packet) const { return packet * kPacketBytes; }
  // Returns the number of packets in the ring. Control messages (channel 1) are short and sent one at a time.
  uint64_t depth() const { return channel_ == 1 ? 1 : kRingDepth; }
  // Returns the address of the next packet in the ring.
  std::byte* next_packet() const {
    return group_->memory(ring_owner(), ring_offset() + moved_ % depth() * kRingStride);
  }
  uint64_t bytes(uint64_t packet) const { return std::min(kPacketBytes, bytes_ - offset(packet)); }
  PairBlock& block(int rank, int about) const {
    return group_->at<PairBlock>(rank, group_->layout().pair(about, channel_));
  }

  const std::shared_ptr<Group> group_;
  const int peer_;
  const uint32_t channel_;
  CollectiveArgs args_;
  Descriptor descriptor_;
  uint64_t slot_ = 0;
  uint64_t reported_slot_ = 0;  // the slot that errors report
  uint64_t moved_;              // packets of all messages: this side's position in the ring
  bool running_ = false;

 private:
  Status result_;
  bool ready_ = false;  // the ring is populated
  uint64_t bytes_ = 0;
  uint64_t packets_ = 0;
  uint64_t next_ = 0;
};

class SendLane final : public PairLane {
 public:
  using PairLane::PairLane;

 private:
  void begin() override {}
  bool move(uint64_t packet) override;
  int ring_owner() const override { return group_->rank(); }
  uint64_t ring_offset() const override { return group_->layout().ring(peer_, channel_); }
};

class ReceiveLane final : public PairLane {
 public:
  using PairLane::PairLane;

 private:
  void begin() override;
  bool move(uint64_t packet) override;
  int ring_owner() const override { return peer_; }
  uint64_t ring_offset() const override { return group_->layout().ring(group_->rank(), channel_); }
};

}  // namespace weft::shm
