// The handshake info that ranks exchange before they connect over a link. connect.cpp encodes and decodes it
// on the thread that creates the communicator. The bytes come from another process, so decode checks all
// bounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"

namespace weft::framed {

// Longest address of a rank, bytes. The longest known addresses are UCX's on a machine with many devices;
// they are far shorter.
inline constexpr uint32_t kMostAddressBytes = 64 * 1024;
// Longest error text, bytes.
inline constexpr uint32_t kMostProblemBytes = 1024;

// One rank's handshake info. It has either an address or a problem.
struct HandshakeInfo {
  std::string problem;           // why the rank's link did not open; empty if it did
  Bytes address;                 // Link::open
  std::vector<uint64_t> tokens;  // by rank: the token that frames from that rank must carry
};

inline Bytes encode(const HandshakeInfo& info) {
  ByteWriter writer;
  writer.put_string(info.problem).put_bytes(info.address);
  for (const uint64_t token : info.tokens) writer.put(token);
  return writer.take();
}

// Decodes the handshake info of a group of `ranks` ranks. Returns false if the bytes are malformed; then
// *info must not be used.
inline bool decode(ByteView bytes, int ranks, HandshakeInfo* info) {
  ByteReader reader(bytes);
  info->problem = reader.get_string(kMostProblemBytes);
  const ByteView address = reader.get_bytes(kMostAddressBytes);
  info->address.assign(address.begin(), address.end());
  info->tokens.clear();
  for (int r = 0; r < ranks && reader.ok(); r++) info->tokens.push_back(reader.get<uint64_t>());
  return reader.done() && (info->problem.empty() != info->address.empty());
}

}  // namespace weft::framed
