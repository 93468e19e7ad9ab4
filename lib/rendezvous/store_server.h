// The store: the rendezvous point of the ranks of a job. Hosted by rank 0 (StoreExchange) or by `weft store`.
// It authenticates clients, groups members of the same job and communicator (store_group.h), and notifies a
// group at once when one of its members is gone.
//
// One thread, "weft-store", owns everything here; it sleeps in poll. Unauthenticated clients are limited in
// number, in time and in the memory that they use. Those that have sent Weft's hello and those that have not
// are counted separately. A new client beyond a limit displaces the oldest of its kind, so such clients
// cannot disturb group setups.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "rendezvous/address.h"
#include "rendezvous/auth.h"

namespace weft {

struct StoreServerOptions {
  Address listen;  // port 0: any free one
  AuthKey key;     // without a secret only local addresses are served
  ThreadStart on_thread_start;
  // Serves only one group, its host's, to the end: ranks that arrive after it has failed receive its failure.
  // Otherwise a failed group is removed, and its ranks may start again.
  bool one_rendezvous = false;
  // Serves only the ranks of this job; all if not set. Those of another job wait until this store ends, then
  // try again: a launcher may have started them anew before it has ended this store's process.
  std::optional<std::string> job = {};
};

class StoreServer {
 public:
  // Starts the server. kAuth: the address needs a secret. kSystem: it cannot listen there; *in_use: another
  // socket does. clock and log outlive the server.
  static Status start(const StoreServerOptions& options, Clock& clock, Log& log,
                      std::unique_ptr<StoreServer>* server, bool* in_use);
  // Stops immediately.
  ~StoreServer();

  // Returns the listening address, with the chosen port.
  const Address& address() const;
  // Rejects new clients (they retry elsewhere or later), lets the members of complete groups finish until the
  // deadline, then ends. Any thread, once.
  void stop(Deadline deadline);

  static constexpr int kMaxSilent = 128;   // clients that have not sent Weft's hello
  static constexpr int kMaxGreeted = 128;  // clients that have, and are not authenticated
  static constexpr int kMaxUnauthenticated = kMaxSilent + kMaxGreeted;
  static constexpr int64_t kUnauthenticatedMs = 5000;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace weft
