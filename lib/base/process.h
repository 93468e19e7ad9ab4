// What tells a process from all others, on any host: its number means something within a namespace and a run
// of the kernel only, and is used again after it has ended. Backends whose ranks may be threads of one
// process exchange it. Threads: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/buffer.h"

namespace weft {

struct ProcessIdentity {
  uint64_t pid = 0;
  uint64_t pid_namespace = 0;
  uint64_t start_ticks = 0;  // since its host was started
  std::string boot_id;       // of that start

  bool operator==(const ProcessIdentity&) const = default;

  void put(ByteWriter& writer) const;
  // From another process: as it comes; the reader says whether it was whole.
  static ProcessIdentity get(ByteReader& reader);
};

ProcessIdentity this_process();

}  // namespace weft
