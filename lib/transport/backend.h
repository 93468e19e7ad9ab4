// The description of a backend: one constant, listed in its meson.build. A backend moves messages
// (make_transport) or executes collectives itself (make_collectives).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unwinding.h"
#include "device/accelerator.h"
#include "device/allocator.h"
#include "device/device.h"
#include "transport/collectives.h"
#include "transport/control.h"
#include "transport/exchange.h"
#include "transport/failpoints.h"
#include "transport/fd_channel.h"
#include "transport/measurements.h"
#include "transport/transport.h"

namespace weft {

// Library files that the program specifies; empty: as the environment specifies.
struct Libraries {
  std::string nccl;
};

// Arguments that create a backend's object. Borrowed for the call, except clock, log and host, which outlive
// the object.
struct BackendArgs {
  Exchange& exchange;
  Clock& clock;
  Log& log;
  const DeviceOps& host;
  uint64_t arena_limit_bytes = 0;
  Deadline deadline = Deadline::never();
  FdChannel* fds = nullptr;  // null where ranks are not connected by sockets (loopback)
  HostAllocator allocator;   // for memory that is not shared
  FailPointsPtr failpoints;  // fault injection in tests; null: none
  // The arena of the communicator that this one was shrunk from, or null. If the backend implements this kind
  // of arena, it continues to use the allocations at the same addresses, out of reach of ranks that were left
  // out. An arena of another kind stays as it is.
  std::shared_ptr<Arena> arena;
  std::vector<int> names;      // communicator rank of each rank of exchange; empty: equal
  const void* self = nullptr;  // Backend::self
  Libraries libraries;
  // For device backends: a working accelerator, and the collectives of host memory that this backend is built
  // on.
  std::shared_ptr<Accelerator> accelerator;
  std::unique_ptr<Collectives>* host_collectives = nullptr;
  int device = -1;  // for device backends: index of this rank's device
  // The engine has a progress thread, besides the program's threads that poll.
  bool progress_thread = true;
  bool crowded = false;                  // this host has more ranks than cores available to them
  Measurements* measurements = nullptr;  // null: nothing is measured or cached
};

// A fail point: a test may make this rank stop, end or fail here (transport/failpoints.h).
inline Status reach(const BackendArgs& args, FailPlace place, uint64_t number) {
  return args.failpoints == nullptr ? Status() : args.failpoints->reach(place, number, 0, args.clock);
}

struct Backend {
  const char* name;
  const char* summary;  // one line for `weft info`
  // If the user names no backend, the one with the highest preference among those that all ranks can use is
  // chosen. Below 0: never chosen automatically.
  int preference;
  // Returns ok, or kUnavailable with the reason; *detail describes what the backend will use. Cheap, and
  // without communication.
  Status (*find)(const Libraries& libraries, std::string* detail);
  Status probe(std::string* detail, const Libraries& libraries = {}) const { return find(libraries, detail); }
  // Exactly one of these two is set, unless the backend is composed of others (below). Collective over
  // args.exchange: it fails on every rank or on none, except when ranks die.
  Status (*make_transport)(const BackendArgs& args, std::unique_ptr<Transport>* transport);
  Status (*make_collectives)(const BackendArgs& args, std::unique_ptr<Collectives>* collectives);
  // Determines whether this backend suits these ranks, when the user names no backend. Collective, called
  // after probe has succeeded on all ranks; gives the same answer on all ranks. Null: always true.
  Status (*reachable)(const BackendArgs& args, bool* all);
  // For a composed backend, which the registry creates: `local` executes collectives inside a host, `across`
  // moves messages between hosts. A composed backend has no probe of its own.
  const Backend* local = nullptr;
  const Backend* across = nullptr;
  // If `local` is a device backend: the host backend that it is built on. Otherwise null.
  const Backend* under = nullptr;
  const void* self = nullptr;  // passed to the backend's functions in BackendArgs
  // Executes collectives of device memory, and is built on another backend for host memory. The backend
  // detects absent ranks and compares the operations of the ranks.
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

// The symbol that a module (libweft-<name>.so) exports. abi is compared first.
struct BackendModule {
  uint32_t abi;
  const Backend* backend;
  const Backend* variant = nullptr;  // the same backend with other guarantees, under its own name; null: none
  void (*prepare)() = prepare_unwinding;  // the module's own copy, called first
};
inline constexpr uint32_t kBackendModuleAbi = 15;
inline constexpr const char* kBackendModuleSymbol = "weft_backend_module";

}  // namespace weft
