// The store: where the ranks of a job meet. Hosted by rank 0 (StoreExchange) or by `weft store`. It
// authenticates whoever connects, brings members of the same job and communicator together in groups
// (store_group.h), and tells a group at once when one of its members is gone.
//
// One thread, "weft-store", owns everything here; it sleeps in poll. Strangers are bounded in number, in time
// and in what they can make the store remember. Those that have said Weft's hello and those that have not are
// counted apart, and each of them displaces the oldest of its kind: they cannot disturb the jobs that are
// forming.
#pragma once

#include <memory>

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
  // It serves the one meeting of its host, to the end: who comes when that has failed hears of it. Else a
  // meeting that has failed is forgotten, and its ranks may begin anew.
  bool one_meeting = false;
};

class StoreServer {
 public:
  // kAuth for an address that needs a secret; kSystem when it cannot listen there, *in_use if somebody else
  // does. clock and log outlive the server.
  static Status start(const StoreServerOptions& options, Clock& clock, Log& log,
                      std::unique_ptr<StoreServer>* server, bool* in_use);
  // Stops at once.
  ~StoreServer();

  // Where it listens, with the port that was chosen.
  const Address& address() const;
  // Send newcomers away (they try again elsewhere or later), let the members of complete groups finish until
  // the deadline, then end. Any thread, once.
  void stop(Deadline deadline);

  static constexpr int kMaxSilent = 128;   // strangers that have not said Weft's hello
  static constexpr int kMaxGreeted = 128;  // those that have, and have proved nothing
  static constexpr int kMaxStrangers = kMaxSilent + kMaxGreeted;
  static constexpr int64_t kStrangerMs = 5000;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace weft
