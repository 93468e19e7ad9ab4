// A Transport over a Link. It matches messages by tag, splits them into frames, and can cancel a message at
// any time. Created by connect_over (connect.h).
//
// Short messages are sent eagerly. A long message is offered first, and its data is sent after the receiver
// has posted the receive. Received data is written to the program's buffers only here, in on_frame() and
// receive(), and only for a posted receive. Late data for a cancelled receive is therefore never written to
// the program's memory.
//
// An eager message that arrives before its receive is posted is retained, up to kWindowBytes from each rank.
// A sender that has used up its window offers all further messages.
//
// Threads: as transport/transport.h says. The link reports events under the same lock.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "framed/link.h"
#include "framed/peer.h"
#include "framed/posted_messages.h"
#include "framed/unexpected_messages.h"
#include "transport/transport.h"

namespace weft::framed {

// Delay before operations fail because a peer is lost. A rank that aborts because of another rank's failure
// closes its connections too. Within the delay the control channel reports the original cause.
inline constexpr uint64_t kGraceNs = 500'000'000;

class FramedTransport final : public Transport, private LinkEvents {
 public:
  // clock and log outlive the transport. first_name: as for PostedMessages.
  FramedTransport(int rank, int size, std::unique_ptr<Link> link, Clock& clock, Log& log,
                  uint64_t first_name = 0);
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

  // Functions for connect.cpp, before any message is posted.
  Status open(Bytes* address) { return link_->open(*this, address); }
  bool joins() const { return link_->joins(); }
  Status join(const std::vector<ByteView>& addresses) { return link_->join(addresses); }
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  Status connect(int rank, ByteView address);
  void send_note(Peer& peer, NoteKind kind, uint64_t first = 0, uint64_t second = 0);
  void set_local_size(int size) { local_size_ = size; }
  void note_transports();  // logs and stores the links' paths; called when all ranks are connected

  // Processes a frame that another process sent. Called by the link and by tests/fuzz.
  void on_frame(ByteView head, ByteView data) override;

 private:
  void sent(InFlightFrame& frame, const Status& status) override;
  void lost(int peer, Status why) override { lose(this->peer(peer), std::move(why)); }

  template <class Frame>
  void handle(ByteView head, ByteView data);
  // Process an authenticated frame. They return false if it violates the protocol.
  bool arrived(Peer& peer, const Header& header, ByteView data);
  bool arrived(Peer& peer, const Fragment& fragment, ByteView data);
  bool arrived(Peer& peer, const Note& note, ByteView data);

  void take(Posted& receive, const Header& header, ByteView data);
  void append(Posted& receive, ByteView data);
  template <class Frame>
  void fly(Flight<Frame>& flight, const std::byte* data, uint64_t size);
  bool stream(Posted& send);
  void finish_if_done(Posted& send);
  void retire(Posted& posted, Status status);
  void return_credit(Peer& peer, uint64_t bytes);
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
  PostedMessages posted_;
  UnexpectedMessages unexpected_;
  std::list<Flight<Note>> notes_;  // in flight (busy) or free
  uint32_t streams_ = 0;           // sends that are `going` and not yet passed to the link completely
  bool stopped_ = false;           // Link::stop was called
  bool advanced_ = false;          // this call of progress() did some work
  bool any_broken_ = false;
  bool invalid_frame_logged_ = false;  // an invalid frame was discarded and logged
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
  // Declared last, so destroyed first: its in-flight frames refer to the members above.
  std::unique_ptr<Link> link_;
};

}  // namespace weft::framed
