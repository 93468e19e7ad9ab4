// Where a store listens: "tcp://host:port", "tcp://[::1]:port" or "unix:@name" (a name of Linux's abstract
// namespace: no file, gone with its last process).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace weft {

struct Address {
  enum class Kind : uint8_t { kTcp, kUnix };
  Kind kind = Kind::kUnix;
  std::string host;  // tcp; without brackets
  uint16_t port = 0;
  std::string name;  // unix; without the @

  std::string text() const;
  // Reachable from this host only: unix, "localhost", 127.0.0.0/8, ::1. Other names count as not.
  bool local() const;
};

inline constexpr size_t kMaxUnixName = 107;  // what a sockaddr_un holds besides the first byte

// kArg saying what is wrong with it.
Status parse_address(const std::string& text, Address* address);

// Without a secret only local addresses are allowed. kAuth saying what to set.
Status check_reach(const Address& address, bool secret);

}  // namespace weft
