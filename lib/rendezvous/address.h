// The address at which a store listens: "tcp://host:port", "tcp://[::1]:port" or "unix:@name" (a name in
// Linux's abstract namespace: it has no file and disappears with its last process). Or the folder in which
// rank 0 writes the address that it has chosen: "file:///folder".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace weft {

struct Address {
  enum class Kind : uint8_t { kTcp, kUnix, kFolder };
  Kind kind = Kind::kUnix;
  std::string host;  // tcp; without brackets
  uint16_t port = 0;
  std::string name;    // unix; without the @
  std::string folder;  // an absolute path

  std::string text() const;
  // Returns true if it is reachable from this host only: unix, "localhost", 127.0.0.0/8, ::1. Other host
  // names count as not local.
  bool local() const;
};

inline constexpr size_t kMaxFolder = 1024;   // bytes of a folder's path
inline constexpr size_t kMaxUnixName = 107;  // capacity of sockaddr_un's path after the first byte

// Parses an address. kArg states the reason.
Status parse_address(const std::string& text, Address* address);

// Checks that a job without a secret uses a local address, or a folder, in which rank 0 writes a key. kAuth
// states what to set.
Status check_reach(const Address& address, bool secret);

}  // namespace weft
