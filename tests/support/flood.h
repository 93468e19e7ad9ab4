// Hostile connections by the thousand, for tests of ports that unauthenticated clients can reach. Used by
// unit/test_unauthenticated.cpp and tools/test_store_flood.cpp.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "rendezvous/auth.h"

namespace weft::test {

// Returns the bytes that a valid client of the store sends, from its hello to its goodbye. Asserts.
Bytes good_traffic(const AuthKey& secret);

// A process that connects to ports of 127.0.0.1 in turn, as fast as it can, until this object is destroyed.
// Each connection is of a random kind. It may send garbage, an HTTP request, or a TLS hello. It may send a
// valid hello, followed by too much data or by nothing, or byte by byte. It may replay what a valid client
// sent to another server. It may send half a hello and end, send nothing, or reset. The last few hundred
// connections stay open. Threads: one thread at a time.
class Flood {
 public:
  // recorded: what a valid client sent. greetings: all connections send a valid hello and then nothing.
  Flood(const std::vector<uint16_t>& ports, const Bytes& recorded, bool greetings = false);
  ~Flood();
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  // Returns the number of connections made so far.
  uint64_t connections() const { return *count_; }

 private:
  pid_t pid_ = -1;
  std::atomic<uint64_t>* count_ = nullptr;  // shared with the flooding process
};

}  // namespace weft::test
