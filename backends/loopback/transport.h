// One rank's side of a Fabric. Threads: as transport/transport.h says.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <vector>

#include "fabric.h"
#include "transport/transport.h"

namespace weft::loopback {

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<Fabric> fabric, int rank);
  ~LoopbackTransport() override;

  void send(int peer, const MessageTag& tag, const Descriptor& descriptor, const std::byte* data,
            uint64_t size, Message* message) override;
  void receive(int peer, const MessageTag& tag, std::byte* data, uint64_t capacity,
               Message* message) override;
  bool progress() override;
  void cancel(Message* message) override;
  bool peek(int peer, uint32_t lane, uint64_t slot, Descriptor* descriptor) override;
  TransportCounters counters() const override;
  int local_size() const override { return fabric_->size(); }
  const char* name() const override { return "loopback"; }

 private:
  // A send that waits to be copied, or a receive.
  struct Posted {
    bool is_send = false;
    int peer = 0;
    Message* message = nullptr;
    std::atomic<bool> taken{false};  // sends: set by the receiver
    // Receives.
    MessageTag tag;
    std::byte* data = nullptr;
    uint64_t capacity = 0;
    uint64_t copied = 0;
    uint64_t envelope = 0;  // id of the envelope being copied
    uint64_t seen_arrivals = UINT64_MAX;
    std::list<Posted>::iterator self;
  };

  Posted& post();
  void retire(Posted& posted, Status status);  // completes its message
  bool advance(Posted& posted);
  bool advance_receive(Posted& receive);
  bool visible(const Envelope& envelope) const;
  // Copies a piece, with the mailbox's mutex held; returns true after the last piece.
  bool accept(Posted& receive, Envelope& envelope);

  const std::shared_ptr<Fabric> fabric_;
  const int rank_;
  std::list<Posted> posted_;
  std::list<Posted> unused_;  // kept to reuse their memory
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
};

}  // namespace weft::loopback
