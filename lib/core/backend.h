// What a backend gives the library: one constant description, listed in lib/registry.cpp. A backend moves
// messages (make_transport) or executes collectives itself (make_collectives).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "core/accelerator.h"
#include "core/allocator.h"
#include "core/collectives.h"
#include "core/control.h"
#include "core/device.h"
#include "core/exchange.h"
#include "core/failpoints.h"
#include "core/fd_channel.h"
#include "core/measurements.h"
#include "core/transport.h"

namespace weft {

// Files of libraries that the program names; empty: as the environment says.
struct Libraries {
  std::string nccl;
};

// Borrowed for the call that makes the backend's object, except clock, log and host, which outlive it.
struct BackendArgs {
  Exchange& exchange;
  Clock& clock;
  Log& log;
  const DeviceOps& host;
  uint64_t arena_limit_bytes = 0;
  Deadline deadline = Deadline::never();
  FdChannel* fds = nullptr;  // null where ranks are not connected by sockets (loopback)
  HostAllocator allocator;   // for memory that is not shared
  FailPointsPtr failpoints;  // of tests; null: none
  // Of the communicator that this one is shrunk from: goes on with what was allocated, at the same addresses,
  // and out of reach of ranks that were left out. Null otherwise; of another kind: stays as it is.
  std::shared_ptr<Arena> arena;
  std::vector<int> names;      // ranks of the communicator, by rank of exchange; empty: the same
  const void* self = nullptr;  // Backend::self
  Libraries libraries;
  // For backends on devices: the accelerator, which works, and what carries host memory, over which it lies.
  std::shared_ptr<Accelerator> accelerator;
  std::unique_ptr<Collectives>* host_collectives = nullptr;
  int device = -1;                       // index of this rank's device, for backends on devices
  bool progress_thread = true;           // the engine has one, beside the program's own that drive it
  bool crowded = false;                  // this host has more ranks than cores for them
  Measurements* measurements = nullptr;  // null: nothing is measured, nothing is kept
  // The number of this rank's NUMA node that it was told, as all ranks were; -1: what its cores say.
  int node = -1;
};

// A test may make this rank fail here.
inline Status reach(const BackendArgs& args, FailPlace place, uint64_t number) {
  return args.failpoints == nullptr ? Status() : args.failpoints->reach(place, number, 0, args.clock);
}

struct Backend {
  const char* name;
  const char* summary;  // one line for `weft info`
  int preference;  // the highest that all ranks can use is chosen when the user names none; below 0: never
                   // chosen
  // Ok, or kUnavailable with "because ..."; *detail says what it will use. Cheap, no communication.
  Status (*find)(const Libraries& libraries, std::string* detail);
  Status probe(std::string* detail, const Libraries& libraries = {}) const { return find(libraries, detail); }
  // Exactly one of these two is set, unless it is composed of others (below). Collective over args.exchange;
  // every rank fails or none, except for deaths.
  Status (*make_transport)(const BackendArgs& args, std::unique_ptr<Transport>* transport);
  Status (*make_collectives)(const BackendArgs& args, std::unique_ptr<Collectives>* collectives);
  // Whether it is for these ranks, when the user names no backend: collective, after probe succeeded
  // everywhere, the same answer on all ranks. May be null: always.
  Status (*reachable)(const BackendArgs& args, bool* all);
  // Of a backend that is made by the registry: what executes collectives inside a host, and what moves
  // messages between hosts. It has no probe of its own.
  const Backend* local = nullptr;
  const Backend* across = nullptr;
  const Backend* under = nullptr;  // where local is one on devices: what that lies over, inside a host
  const void* self = nullptr;      // for its functions, in BackendArgs
  // Executes collectives of device memory, over another backend that has those of host memory, tells ranks
  // apart that do not come, and compares what they execute.
  bool on_device = false;
};

inline bool needs_device(const Backend& backend) {
  return backend.on_device || (backend.local != nullptr && backend.local->on_device);
}

inline Status make_transport(const Backend& backend, BackendArgs args,
                             std::unique_ptr<Transport>* transport) {
  args.self = backend.self;
  return backend.make_transport(args, transport);
}

// What a module (libweft-<name>.so) exports, under this name. abi is compared first.
struct BackendModule {
  uint32_t abi;
  const Backend* backend;
  const Backend* variant = nullptr;  // the same with other promises, under a name of its own; null: none
};
inline constexpr uint32_t kBackendModuleAbi = 13;
inline constexpr const char* kBackendModuleSymbol = "weft_backend_module";

}  // namespace weft
