// What the ranks of a mesh say to each other: the advertisement that each gives to the Exchange, and the
// frames on their connections. Decoding checks everything: advertisements and frames come from other
// processes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "rendezvous/auth.h"

namespace weft::mesh {

// How to reach a rank, and from rank 0 the comm's key.
struct Advertisement {
  std::string unix_name;              // of its abstract unix socket
  uint16_t tcp_port = 0;              // 0: does not listen on TCP
  std::vector<std::string> hosts;     // its addresses, in the order in which to try them
  int64_t heartbeat_timeout_ms = -1;  // what it lets others be silent; -1: for ever
  Key key{};                          // used from rank 0 only
};
inline constexpr size_t kMaxHosts = 8;

Bytes encode(const Advertisement& advertisement);
bool decode(ByteView bytes, Advertisement* advertisement);

// The first byte of every frame.
enum class Type : uint8_t {
  kHello = 1,      // the sender's rank: the first frame on a connection
  kMessage = 2,    // of Control::send
  kFd = 3,         // a descriptor came with this frame
  kFarewell = 4,   // of Control::leave
  kHeartbeat = 5,  // a sign of life
  kMissed = 6      // the receiver gave none for too long: the last frame on a connection
};

Bytes hello_frame(int rank);
// The rank that a hello frame claims, if it is one.
std::optional<int> hello_rank(ByteView frame);
Bytes message_frame(ByteView message);
Bytes plain_frame(Type type);
Type type_of(ByteView frame);  // Type(0) for an empty frame

}  // namespace weft::mesh
