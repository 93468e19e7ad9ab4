#include "rendezvous/invitation/open_stores.h"

#include <utility>

#include "rendezvous/socket.h"

namespace weft {

Status open_store(const AuthKey& job, const std::string& name, const ThreadStart& on_thread_start,
                  Clock& clock, Log& log, Invitation* invitation, std::unique_ptr<StoreServer>* server) {
  WEFT_TRY(init_crypto());
  invitation->key = random_key();
  invitation->hosts = interface_hosts();
  if (invitation->hosts.empty()) invitation->hosts.emplace_back("127.0.0.1");
  Address anywhere;
  anywhere.kind = Address::Kind::kTcp;
  anywhere.host = "0.0.0.0";
  bool in_use = false;
  WEFT_TRY(StoreServer::start({anywhere, invitation->store_key(job), on_thread_start, true, name}, clock, log,
                              server, &in_use));
  invitation->port = (*server)->address().port;
  return {};
}

void OpenStores::put(const Invitation& invitation, std::unique_ptr<StoreServer> server) {
  const std::lock_guard lock(mutex_);
  stores_[invitation.key] = std::move(server);
}

std::unique_ptr<StoreServer> OpenStores::take(const Invitation& invitation) {
  const std::lock_guard lock(mutex_);
  const auto found = stores_.find(invitation.key);
  if (found == stores_.end()) return nullptr;
  std::unique_ptr<StoreServer> server = std::move(found->second);
  stores_.erase(found);
  return server;
}

}  // namespace weft
