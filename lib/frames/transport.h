// A Transport over a Link: messages matched by tag, cut into frames, and taken back at any time. Made by
// meet.h.
//
// Short messages are sent eagerly; a long one is offered first and sent when the receiver has its place
// ready. Everything that is written to a buffer of the program is written here, in heard(), for a message
// that is still wanted: a rank that wakes up late finds nobody who takes what it sends. What arrives before
// its receive is kept, and no more than kWindowBytes from each rank: beyond that a sender offers everything.
//
// Threads: as core/transport.h says. The link calls back under the same lock.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "core/transport.h"
#include "frames/link.h"
#include "frames/peer.h"

namespace weft::frames {

// Eager bytes that a receiver holds for one sender at most, and what each message counts besides its data.
inline constexpr uint64_t kWindowBytes = uint64_t{2} << 20;
inline constexpr uint64_t kMessageCost = 128;
inline uint64_t cost(uint64_t size) {
  return size + kMessageCost;
}
// How long a lost peer is not reported: a rank that gives up because of another's failure breaks its
// connections too, and the control channel tells the cause meanwhile.
inline constexpr uint64_t kGraceNs = 500'000'000;

class FramedTransport final : public Transport, private LinkEvents {
 public:
  // clock and log outlive the transport.
  FramedTransport(int rank, int size, std::unique_ptr<Link> link, Clock& clock, Log& log);
  ~FramedTransport() override;

  void send(int peer, const MessageTag& tag, const Descriptor& descriptor, const std::byte* data,
            uint64_t size, Message* message) override;
  void receive(int peer, const MessageTag& tag, std::byte* data, uint64_t capacity,
               Message* message) override;
  bool progress() override;
  void cancel(Message* message) override;
  bool peek(int peer, uint32_t lane, uint64_t slot, Descriptor* descriptor) override;
  bool settled() override;
  bool outlives_sender() const override { return false; }
  uint64_t sent_to(int rank) const override {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    return peer.broken ? 0 : peer.sent;
  }
  uint64_t received_from(int rank) const override { return peers_[static_cast<size_t>(rank)].received; }
  Offload* offload() override { return link_->offload(); }
  TransportCounters counters() const override;
  int local_size() const override { return local_size_; }
  std::string transports() const override { return transports_; }
  const char* name() const override { return link_->name(); }

  // For meet.cpp, before anything is posted.
  Status open(Bytes* address) { return link_->open(*this, address); }
  bool joins() const { return link_->joins(); }
  Status join(const std::vector<ByteView>& addresses) { return link_->join(addresses); }
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  Status connect(int rank, ByteView address);
  void tell(Peer& peer, NoteKind kind, uint64_t first = 0, uint64_t second = 0);
  void set_local_size(int size) { local_size_ = size; }
  void note_transports();  // when all are connected

  // What another process sent. Called by the link, and by tests/fuzz.
  void heard(ByteView head, ByteView data) override;

 private:
  void sent(Lent& lent, const Status& status) override;
  void lost(int peer, Status why) override { lose(this->peer(peer), std::move(why)); }

  template <class Frame>
  void hear(ByteView head, ByteView data);
  // What came; false when it breaks the rules.
  bool arrived(Peer& peer, const Header& header, ByteView data);
  bool arrived(Peer& peer, const Fragment& fragment, ByteView data);
  bool arrived(Peer& peer, const Note& note, ByteView data);

  Posted& post(int rank, Message* message);
  void take(Posted& receive, const Header& header, ByteView data);
  void append(Posted& receive, ByteView data);
  bool keep(Peer& peer, const Header& header, ByteView data);
  template <class Frame>
  void fly(Flight<Frame>& flight, const std::byte* data, uint64_t size);
  bool stream(Posted& send);  // more of a message that is going; true if the link took any
  void finish_if_done(Posted& send);
  static Posted* following(const Posted& posted);
  void retire(Posted& posted, Status status);
  void pay_back(Peer& peer, uint64_t bytes);
  void lose(Peer& peer, Status why);
  bool report_broken();
  void close(Peer& peer);
  void drain(const Posted& send);

  const int rank_;
  Clock& clock_;
  Log& log_;
  int local_size_ = 1;
  std::string transports_;
  std::vector<Peer> peers_;
  std::list<Posted> unused_;  // kept for their memory
  std::list<Arrived> unused_arrived_;
  uint64_t idle_bytes_ = 0;        // of the data of these
  std::list<Flight<Note>> notes_;  // some of them under way
  uint64_t last_name_ = 0;
  // What progress() streams next. A send of the link may complete any message; retire() then moves this on.
  Posted* next_ = nullptr;
  uint32_t streams_ = 0;   // sends that are going and not all handed to the link
  bool stopped_ = false;   // the link
  bool advanced_ = false;  // something was done in this call of progress()
  bool any_broken_ = false;
  bool strangers_ = false;  // a message was thrown away
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
  // Last: what it lent refers to what is above, until it is gone.
  std::unique_ptr<Link> link_;
};

}  // namespace weft::frames
