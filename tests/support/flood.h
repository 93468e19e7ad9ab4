// Hostile connections by the thousand, for tests of ports that strangers reach. Used by
// unit/test_strangers.cpp and tools/test_store_flood.cpp.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "rendezvous/auth.h"

namespace weft::test {

// What a good client of the store says, from its hello to its leaving. Asserts.
Bytes good_traffic(const AuthKey& secret);

// A process that connects to ports of 127.0.0.1 in turn, as fast as it can, until this is destroyed. Its
// connections take turns to say garbage, an HTTP request, a TLS hello, a good hello and then far too much,
// what a good client said to somebody else, a good hello byte by byte, a good hello and then nothing,
// nothing, half a hello and then the end, and to reset; the last few hundred stay open. Threads: one thread
// at a time.
class Flood {
 public:
  // recorded: what a good client said. greetings: all say a good hello and then nothing.
  Flood(const std::vector<uint16_t>& ports, const Bytes& recorded, bool greetings = false);
  ~Flood();
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  // Connections that were made so far.
  uint64_t connections() const { return *count_; }

 private:
  pid_t pid_ = -1;
  std::atomic<uint64_t>* count_ = nullptr;  // shared with the process
};

}  // namespace weft::test
