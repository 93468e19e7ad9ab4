// Stores that rank 0 starts at a free port, and their invitations. A context keeps those of
// weft_unique_id_create until rank 0 creates the communicator.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "environment/network.h"
#include "rendezvous/invitation/invitation.h"
#include "rendezvous/store_server.h"

namespace weft {

// Starts a store for one communicator, with a random key. Its members have the job's name and, if there is
// one, the job's secret. kArg: network names an interface that does not exist. kSystem: it cannot listen.
// clock and log outlive the server. Threads: any thread.
Status open_store(const AuthKey& job, const std::string& name, const ThreadStart& on_thread_start,
                  const NetworkSettings& network, Clock& clock, Log& log, Invitation* invitation,
                  std::unique_ptr<StoreServer>* server);

// Threads: any thread.
class OpenStores {
 public:
  void put(const Invitation& invitation, std::unique_ptr<StoreServer> server);
  // Returns the store of an invitation, once; null if it is not here.
  std::unique_ptr<StoreServer> take(const Invitation& invitation);

 private:
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<StoreServer>> stores_;  // by the invitation's key; guarded by mutex_
};

}  // namespace weft
