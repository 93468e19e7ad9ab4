// Forming a communicator: meet the other ranks, connect the control channel, agree on a backend, make its
// collectives. Called by lib/capi on the program's thread.
#pragma once

#include <weft/weft.h>

#include <memory>
#include <string>

#include "base/buffer.h"
#include "core/comm.h"
#include "core/shrink.h"
#include "registry.h"

namespace weft {

// How the ranks of a new communicator meet.
struct Meeting {
  enum class Bootstrap { kEnvironment = 0, kStore = 1, kCallback = 2 };
  Bootstrap bootstrap = Bootstrap::kEnvironment;
  int rank = 0;
  int size = 1;
  std::string store;
  bool store_external = false;
  Bytes secret;
  weft_all_gather_fn all_gather = nullptr;
  void* all_gather_user_data = nullptr;
  CommOptions options;
  // options.heartbeat_timeout_ms is the program's: WEFT_HEARTBEAT_MS does not count.
  bool own_heartbeat = false;
};

Status meet(const std::shared_ptr<Context>& context, const Registry& registry, Meeting meeting,
            std::shared_ptr<Comm>* comm);

// Collective over parent. *part is null for ranks without a color.
Status split(const std::shared_ptr<Comm>& parent, const Registry& registry, bool no_color, int color, int key,
             std::shared_ptr<Comm>* part);

// Collective over the survivors of a failed communicator; see core/shrink.h.
Status shrink(const std::shared_ptr<Comm>& failed, const Registry& registry, const ShrinkOptions& options,
              std::shared_ptr<Comm>* survivors);

}  // namespace weft
