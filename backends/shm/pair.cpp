#include "pair.h"

#include <cstring>
#include <new>

#include "base/text.h"

namespace weft::shm {
namespace {

constexpr uint64_t kBytesPerPoll = 1 << 20;  // most bytes moved in one poll

}  // namespace

void PairLane::start(const CollectiveArgs& args, uint64_t slot) {
  args_ = args;
  slot_ = slot;
  reported_slot_ = reported_slot(args, slot);
  descriptor_ = Descriptor::of(args);
  bytes_ = args.count * dtype_size(args.dtype);
  // A message of zero bytes still sends its descriptor.
  packets_ = bytes_ == 0 ? 1 : bytes_ / kPacketBytes + (bytes_ % kPacketBytes != 0);
  next_ = 0;
  result_ = {};
  running_ = true;
  if (!ready_) {
    if (Status status = group_->ensure(ring_owner(), ring_offset(), depth() * kRingStride); !status.ok()) {
      return finish(std::move(status));
    }
    ready_ = true;
  }
  begin();
}

Poll PairLane::poll() {
  if (!running_) return Poll::kFinished;
  bool advanced = false;
  for (uint64_t work = 0; work < kBytesPerPoll && move(next_); work += kPacketBytes) {
    advanced = true;
    if (running_ && ++next_ == packets_) finish({});
    if (!running_) return Poll::kFinished;
  }
  return running_ ? (advanced ? Poll::kAdvanced : Poll::kWaiting) : Poll::kFinished;
}

bool SendLane::move(uint64_t packet) {
  const PairBlock& theirs = block(peer_, group_->rank());
  // The receiver's descriptor, if it has already reached this message.
  const Post& receive = theirs.receive;
  const bool here = receive.arrival.sequence.load(std::memory_order_acquire) == slot_ + 1;
  const Descriptor descriptor = here ? receive.descriptor : descriptor_;
  const bool agreed = descriptor == descriptor_;
  const uint64_t free = theirs.consumed.value.load(std::memory_order_acquire) + depth();
  if (reached(free, moved_ + 1)) {
    std::byte* const to = next_packet();
    new (to) PacketHeader{slot_ + 1, descriptor_};
    // If the receiver executes something else, it gets the header, so that it learns of the mismatch, and no
    // data.
    const uint64_t size = agreed ? bytes(packet) : 0;
    if (size > 0) std::memcpy(to + sizeof(PacketHeader), args_.src + offset(packet), size);
    group_->count_shared(size);
    block(group_->rank(), peer_).produced.value.store(++moved_, std::memory_order_release);
  } else if (agreed) {
    return false;
  }
  if (!agreed)
    finish(
        mismatch(reported_slot_, group_->name(group_->rank()), descriptor_, group_->name(peer_), descriptor));
  return true;
}

void ReceiveLane::begin() {
  Post& post = block(group_->rank(), peer_).receive;
  post.descriptor = descriptor_;
  post.arrival.sequence.store(slot_ + 1, std::memory_order_release);
}

bool ReceiveLane::move(uint64_t packet) {
  const PairBlock& theirs = block(peer_, group_->rank());
  if (!reached(theirs.produced.value.load(std::memory_order_acquire), moved_ + 1)) return false;
  std::byte* const from = next_packet();
  PacketHeader header;
  std::memcpy(&header, from, sizeof header);
  if (header.sequence != slot_ + 1) {
    finish(Status::error(Code::kPeerFailed,
                         cat("operation ", reported_slot_, ": rank ", group_->name(peer_), " sent packet ",
                             packet, " with message number ", header.sequence, ", expected ", slot_ + 1,
                             ": the shared memory is corrupt"),
                         Evidence::kDescriptor)
               .with_ranks({group_->name(peer_)})
               .with_slot(reported_slot_));
    return true;
  }
  if (!(header.descriptor == descriptor_)) {
    finish(mismatch(reported_slot_, group_->name(group_->rank()), descriptor_, group_->name(peer_),
                    header.descriptor));
    return true;
  }
  if (bytes(packet) > 0) std::memcpy(args_.dst + offset(packet), from + sizeof(PacketHeader), bytes(packet));
  write_read_lines(from, sizeof(PacketHeader) + bytes(packet));
  block(group_->rank(), peer_).consumed.value.store(++moved_, std::memory_order_release);
  return true;
}

}  // namespace weft::shm
