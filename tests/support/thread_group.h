// Lets rank threads of one test create a communicator: an exchange, a channel for file descriptors, and a
// control hub. ranks.h (real threads) and simulation.h (one thread at a time) use it, so every wait goes
// through the clock. Threads: any thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "comm/comm.h"
#include "loopback/control.h"
#include "transport/backend.h"

namespace weft::test {

class ThreadGroup {
 public:
  // The clock must outlive the group. The clock and delays are those of the ranks.
  ThreadGroup(int size, Clock& clock, std::shared_ptr<loopback::Delays> delays = nullptr);

  int size() const { return size_; }
  loopback::ControlHub& hub() { return *hub_; }
  std::unique_ptr<Control> connect(int rank) { return loopback::ControlHub::connect(hub_, rank); }
  std::unique_ptr<Exchange> exchange(int rank);
  std::unique_ptr<FdChannel> fds(int rank);

 private:
  friend class ThreadExchange;
  friend class ThreadFds;

  const int size_;
  Clock& clock_;
  const std::shared_ptr<loopback::ControlHub> hub_;
  std::mutex mutex_;
  std::map<uint32_t, std::map<int, Bytes>> rounds_;  // values that ranks have given; guarded by the mutex
  std::map<std::pair<int, int>, std::deque<Fd>> descriptors_;  // (from, to); guarded
};

// Builds a rank's collectives: from a backend (collectives_of), or as the test defines.
using MakeCollectives = std::function<Status(const BackendArgs&, std::unique_ptr<Collectives>*)>;
// algorithms: as WEFT_TUNE, for backends that move messages. host: the backend under a device backend.
MakeCollectives collectives_of(const Backend& backend, const std::string& algorithms = "",
                               const Backend* host = nullptr);
// Wraps `make` so that device buffers are staged through host memory.
MakeCollectives staged_over(MakeCollectives make);

// Creates a rank's communicator. Collective over the group's ranks. hosts: the number of each rank's
// simulated host; 0 if it has none.
Status form(ThreadGroup& group, int rank, const std::shared_ptr<Context>& context,
            const MakeCollectives& make, const CommOptions& options, std::shared_ptr<Comm>* comm,
            std::vector<int> hosts = {});

}  // namespace weft::test
