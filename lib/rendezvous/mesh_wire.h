// Messages between the ranks of a mesh: the advertisement that each rank publishes through the Exchange, and
// the frames on connections. They come from other processes, so decoding validates everything.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "rendezvous/auth.h"

namespace weft::mesh {

// How to reach a rank; from rank 0 also the communicator's key.
struct Advertisement {
  Versions versions;
  std::string unix_name;              // abstract unix socket name
  uint16_t tcp_port = 0;              // 0: does not listen on TCP
  std::vector<std::string> hosts;     // addresses, in the order in which to try them
  int64_t heartbeat_timeout_ms = -1;  // -1: none
  Key key{};                          // used from rank 0 only
};
inline constexpr size_t kMaxHosts = 8;

Bytes encode(const Advertisement& advertisement);
// Returns false for anything that encode does not write, and for an advertisement of other versions.
bool decode(ByteView bytes, Advertisement* advertisement);
// Returns the versions in an advertisement; empty for other bytes. Advertisements of all versions begin with
// them, because what follows may differ.
std::optional<Versions> versions_of(ByteView bytes);

// The first byte of every frame.
enum class MeshFrame : uint8_t {
  kHello = 1,      // the sender's rank: the first frame on a connection
  kMessage = 2,    // from Control::send
  kFd = 3,         // a descriptor was sent with this frame
  kGoodbye = 4,    // from Control::leave
  kHeartbeat = 5,  // shows that the sender is alive
  kMissed = 6      // the receiver's heartbeats were missing: the last frame on a connection
};

Bytes hello_frame(int rank);
// Returns the rank in a hello frame; empty for another frame.
std::optional<int> hello_rank(ByteView frame);
Bytes message_frame(ByteView message);
Bytes plain_frame(MeshFrame type);
MeshFrame type_of(ByteView frame);  // MeshFrame(0) for an empty frame

}  // namespace weft::mesh
