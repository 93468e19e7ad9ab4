// What a rank tells the others of itself before they meet over a link. Written and read by meet.cpp, on the
// program's thread; it comes from another process, so its bounds are checked before anything is believed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"

namespace weft::frames {

// Of one rank's address, far above what UCX makes for a machine with many devices, the longest that we know.
inline constexpr uint32_t kMostAddressBytes = 64 * 1024;
inline constexpr uint32_t kMostProblemBytes = 1024;

// Its address, and for each rank the token that it shall show. Or why it has none.
struct Card {
  std::string problem;
  Bytes address;
  std::vector<uint64_t> tokens;
};

inline Bytes encode(const Card& card) {
  ByteWriter writer;
  writer.put_string(card.problem).put_bytes(card.address);
  for (const uint64_t token : card.tokens) writer.put(token);
  return writer.take();
}

// False, and the card is not to be used, when the bytes are not one card for so many ranks.
inline bool decode(ByteView bytes, int ranks, Card* card) {
  ByteReader reader(bytes);
  card->problem = reader.get_string(kMostProblemBytes);
  const ByteView address = reader.get_bytes(kMostAddressBytes);
  card->address.assign(address.begin(), address.end());
  card->tokens.clear();
  for (int r = 0; r < ranks && reader.ok(); r++) card->tokens.push_back(reader.get<uint64_t>());
  return reader.done() && (card->problem.empty() != card->address.empty());
}

}  // namespace weft::frames
