#include "rendezvous/invitation/open_stores.h"

#include <utility>

#include "rendezvous/socket.h"

namespace weft {

Status open_store(const AuthKey& job, const std::string& name, const ThreadStart& on_thread_start,
                  const NetworkSettings& network, Clock& clock, Log& log, Invitation* invitation,
                  std::unique_ptr<StoreServer>* server) {
  WEFT_TRY(init_crypto());
  invitation->key = random_key();
  WEFT_TRY(interface_hosts(network, &invitation->hosts));
  if (invitation->hosts.empty()) invitation->hosts.emplace_back("127.0.0.1");
  Address anywhere;
  anywhere.kind = Address::Kind::kTcp;
  anywhere.host = "0.0.0.0";
  const AuthKey key = invitation->store_key(job);
  WEFT_TRY(listen_in(network, [&](uint16_t port, bool* in_use) {
    anywhere.port = port;
    return StoreServer::start({anywhere, key, on_thread_start, true, name}, clock, log, server, in_use);
  }));
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
