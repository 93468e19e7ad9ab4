// A Link over UCP's active messages: one worker for each communicator, one endpoint for each rank.
//
// Threads: as framed/link.h says. UCX makes its callbacks from inside ucp_worker_progress, that is, under the
// same lock. UCX's own thread only accepts connections.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/guard.h"
#include "framed/link.h"
#include "library.h"

namespace weft::ucx {

class UcxLink final : public framed::Link {
 public:
  // clock and log outlive the link.
  UcxLink(int size, Clock& clock, Log& log);
  ~UcxLink() override;

  Status open(framed::LinkEvents& events, Bytes* address) override;
  Status connect(int peer, ByteView address, framed::LinkLimits* limits) override;
  bool send(int peer, ByteView head, ByteView data, framed::InFlightFrame& frame) override;
  bool progress() override;
  void close(int peer) override;
  void stop() override;
  bool settled() override;
  std::string path(int peer) const override;
  std::string about() const override { return version(); }
  const char* name() const override { return "ucx"; }

 private:
  static ucs_status_t on_frame(void* self, const void* head, size_t head_size, void* data, size_t size,
                               const ucp_am_recv_param_t* param);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* frame);
  Status broke(int peer, ucs_status_t status) const;

  Clock& clock_;
  Log& log_;
  framed::LinkEvents* events_ = nullptr;
  ContextPtr context_;
  WorkerPtr worker_;
  std::vector<ucp_ep_h> endpoints_;  // by rank; null before connect and after close
  std::vector<void*> closing_;       // UCX's requests of endpoints that are being closed
  void* flushing_ = nullptr;         // UCX's request of a flush
  CarriedException carried_;         // thrown by callbacks from UCX
  bool unsettled_ = false;           // something was sent since the last flush began
};

}  // namespace weft::ucx
