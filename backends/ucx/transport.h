// Transport over UCP's active messages: one worker a communicator, one endpoint a rank. Made by connect.h.
//
// Messages travel in pieces. Short ones are sent eagerly; a long one is offered first and sent when the
// receiver has its place ready. Everything that is written to a buffer of the program is written here, in
// callbacks, for a message that is still wanted: a rank that wakes up late finds nobody who takes what it
// sends. (UCX's own rendezvous lets go of a receive's buffer only when its sender cooperates, even when the
// endpoint is closed by force.) What arrives before its receive is kept, and no more than kWindowBytes from
// each rank: beyond that a sender offers everything.
//
// Threads: as core/transport.h says. UCX calls back from inside ucp_worker_progress, that is, under the same
// lock. UCX's own thread only accepts connections.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/transport.h"
#include "library.h"
#include "peer.h"

namespace weft::ucx {

// Eager bytes that a receiver holds for one sender at most, and what each message counts besides its data.
inline constexpr uint64_t kWindowBytes = uint64_t{2} << 20;
inline constexpr uint64_t kMessageCost = 128;
inline uint64_t cost(uint64_t size) {
  return size + kMessageCost;
}
// How long a broken endpoint is not reported: a rank that gives up because of another's failure breaks its
// connections too, and the control channel tells the cause meanwhile.
inline constexpr uint64_t kGraceNs = 500'000'000;

class UcxTransport final : public Transport {
 public:
  // clock and log outlive the transport.
  UcxTransport(int rank, int size, Clock& clock, Log& log);
  ~UcxTransport() override;

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
  TransportCounters counters() const override;
  int local_size() const override { return local_size_; }
  std::string transports() const override { return transports_; }
  const char* name() const override { return "ucx"; }

  // For connect.cpp, before anything is posted.
  Status open(Bytes* address);
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  Status add_endpoint(int rank, const Bytes& address);
  void tell(Peer& peer, NoteKind kind, uint64_t first = 0, uint64_t second = 0);
  void set_local_size(int size) { local_size_ = size; }
  void note_transports();  // when the endpoints are connected

  // What another process sent: a Header, Fragment or Note, as bytes, and the data behind it. For on_frame and
  // tests/fuzz.
  template <class Frame>
  void hear(ByteView frame, ByteView data);

 private:
  template <class Frame>
  static ucs_status_t on_frame(void* self, const void* header, size_t header_size, void* data, size_t size,
                               const ucp_am_recv_param_t* param);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);
  template <class Frame>
  static void on_sent(void* request, ucs_status_t status, void* flight);
  static void on_told(void* request, ucs_status_t status, void* told);

  // What came; false when it breaks the rules.
  bool arrived(Peer& peer, const Header& header, ByteView data);
  bool arrived(Peer& peer, const Fragment& fragment, ByteView data);
  bool arrived(Peer& peer, const Note& note, ByteView data);

  Posted& post(int rank, Message* message);
  void take(Posted& receive, const Header& header, ByteView data);
  void append(Posted& receive, ByteView data);
  bool keep(Peer& peer, const Header& header, ByteView data);
  template <class Frame>
  void fly(Flight<Frame>& flight, unsigned id, const std::byte* data, uint64_t size);
  bool stream(Posted& send);  // more of a message that is going; true if UCX took any
  void finish_if_done(Posted& send);
  void retire(Posted& posted, Status status);
  void pay_back(Peer& peer, uint64_t bytes);
  void lose(Peer& peer, Status why);
  bool report_broken();
  void close_by_force(Peer& peer);
  void drain(const Posted& send);

  const int rank_;
  Clock& clock_;
  Log& log_;
  int local_size_ = 1;
  std::string transports_;
  ContextPtr context_;
  WorkerPtr worker_;
  std::vector<Peer> peers_;
  std::list<Posted> unused_;  // kept for their memory
  std::list<Arrived> unused_arrived_;
  std::list<Told> told_;
  uint64_t last_name_ = 0;
  uint32_t streams_ = 0;        // sends that are going and not all handed to UCX
  std::vector<void*> closing_;  // UCX's requests of endpoints that are being closed
  void* flushing_ = nullptr;    // UCX's request of a flush
  bool unsettled_ = false;      // something was sent since the last flush began
  bool advanced_ = false;       // something was done in this call of progress()
  bool any_broken_ = false;
  bool strangers_ = false;  // a message was thrown away
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
};

}  // namespace weft::ucx
