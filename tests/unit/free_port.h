// A port for a test's listener.
#pragma once

#include <cstdint>

#include "base/text.h"
#include "rendezvous/auth.h"
#include "rendezvous/socket.h"
#include "support/catch.h"

namespace weft::test {

// Returns a port that is free now, and below the default range of ports for outgoing connections.
inline uint16_t free_port() {
  for (int i = 0; i < 1000; i++) {
    Fd listener;
    Address address, actual;
    bool in_use = false;
    const Key random = random_key();
    const int port = 10'000 + (static_cast<int>(random[0]) * 256 + static_cast<int>(random[1])) % 20'000;
    REQUIRE(parse_address(cat("tcp://127.0.0.1:", port), &address).ok());
    if (listen_at(address, false, &listener, &actual, &in_use).ok()) return actual.port;
  }
  FAIL("no port is free");
  return 0;
}

}  // namespace weft::test
