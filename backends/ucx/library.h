// The UCX library: a context and a worker for each communicator, with settings that ignore the environment
// where Weft's guarantees depend on them. Used by the backend's probe and by connect.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "base/buffer.h"
#include "base/log.h"
#include "base/status.h"

namespace weft::ucx {

// While one exists, UCX's output on this thread goes to the log. Surrounds every call of UCX.
class LogScope {
 public:
  explicit LogScope(Log& log);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

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

// Returns "UCX 1.13.1": the loaded library, which may differ from the one that this module was built against.
std::string version();

// Returns kUnavailable with the reason if UCX is too old or finds no device that it may use.
Status open_context(int peers, ContextPtr* context);
// Returns "tcp/eth0, posix/memory": the devices that a context may use.
std::string devices(ucp_context_h context);

Status open_worker(ucp_context_h context, WorkerPtr* worker);
Status address_of(ucp_worker_h worker, Bytes* address);
// Returns "tcp/eth0": the transports that carry the endpoint's messages.
std::string transports(ucp_ep_h endpoint);

// Returns kUnavailable with "what: UCX's error text".
Status failed(const std::string& what, ucs_status_t status);

}  // namespace weft::ucx
