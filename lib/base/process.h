// Identifies a process among all processes on all hosts. A pid alone is only unique within a namespace and a
// run of the kernel, and is reused. Backends whose ranks may be threads of one process exchange identities.
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/buffer.h"

namespace weft {

struct ProcessIdentity {
  uint64_t pid = 0;
  uint64_t pid_namespace = 0;
  uint64_t start_ticks = 0;  // start time, since the boot of its host
  std::string boot_id;       // of that boot

  bool operator==(const ProcessIdentity&) const = default;

  void put(ByteWriter& writer) const;
  // Reads an identity from another process without validation; the reader reports truncation.
  static ProcessIdentity get(ByteReader& reader);
};

ProcessIdentity this_process();

// Returns the name of this host, of at most 255 bytes; empty if the system does not tell it.
std::string host_name();

}  // namespace weft
