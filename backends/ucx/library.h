// The UCX library as Weft uses it: a context and a worker of its own for each communicator, with settings
// that do not depend on the environment where Weft's promises do. Used by the backend's probe and by connect.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "base/buffer.h"
#include "base/log.h"
#include "base/status.h"

namespace weft::ucx {

// While one exists, what UCX wants to print on this thread goes to the log instead. Around every call of UCX.
class Speaking {
 public:
  explicit Speaking(Log& log);
  ~Speaking();
  Speaking(const Speaking&) = delete;
  Speaking& operator=(const Speaking&) = delete;

 private:
  Log* const before_;
};

struct ContextDeleter {
  void operator()(ucp_context_h context) const { ucp_cleanup(context); }
};
struct WorkerDeleter {
  void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
};
using ContextPtr = std::unique_ptr<std::remove_pointer_t<ucp_context_h>, ContextDeleter>;
using WorkerPtr = std::unique_ptr<std::remove_pointer_t<ucp_worker_h>, WorkerDeleter>;

// "UCX 1.13.1": of the library that is loaded, which need not be the one that this was built against.
std::string version();

// kUnavailable with "because ..." when UCX is too old or finds no device that it may use.
Status open_context(int peers, ContextPtr* context);
// "tcp/eth0, posix/memory": the devices that a context may use.
std::string devices(ucp_context_h context);

Status open_worker(ucp_context_h context, WorkerPtr* worker);
Status address_of(ucp_worker_h worker, Bytes* address);
// "tcp/eth0": what the endpoint's messages travel on.
std::string transports(ucp_ep_h endpoint);

// kUnavailable: "what: UCX's words".
Status failed(const std::string& what, ucs_status_t status);

}  // namespace weft::ucx
