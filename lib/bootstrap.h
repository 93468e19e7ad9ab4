// Group setup: rendezvous with the other ranks, connection of the control channel, agreement on a backend,
// creation of its collectives. Called by lib/capi on the program's thread.
#pragma once

#include <weft/weft.h>

#include <memory>
#include <optional>
#include <string>

#include "base/buffer.h"
#include "comm/comm.h"
#include "comm/shrink.h"
#include "environment/launch.h"
#include "registry.h"
#include "rendezvous/invitation/open_stores.h"

namespace weft {

// Parameters of the rendezvous of a new communicator.
struct BootstrapOptions {
  enum class Method { kEnvironment = 0, kStore = 1, kCallback = 2, kUniqueId = 3 };
  Method method = Method::kEnvironment;
  int rank = 0;
  int size = 1;
  std::string store;
  bool store_external = false;
  Bytes secret;
  std::optional<Invitation> invitation;  // with kUniqueId
  std::unique_ptr<StoreServer> server;   // its store, on rank 0
  Launch launch;                         // of a process that its environment describes
  weft_all_gather_fn all_gather = nullptr;
  void* all_gather_user_data = nullptr;
  CommOptions options;
  // The program has set options.heartbeat_timeout_ms: WEFT_HEARTBEAT_MS is ignored.
  bool own_heartbeat = false;
};

Status create_comm(const std::shared_ptr<Context>& context, const Registry& registry,
                   BootstrapOptions bootstrap, std::shared_ptr<Comm>* comm);

// Splits a communicator. Collective over parent. *part is null for ranks without a color.
Status split(const std::shared_ptr<Comm>& parent, const Registry& registry, bool no_color, int color, int key,
             std::shared_ptr<Comm>* part);

// Creates the communicator of the survivors of a failed one. Collective over the survivors; see
// comm/shrink.h.
Status shrink(const std::shared_ptr<Comm>& failed, const Registry& registry, const ShrinkOptions& options,
              std::shared_ptr<Comm>* survivors);

}  // namespace weft
