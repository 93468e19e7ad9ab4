// Input: the handshake info that a rank sends before two ranks connect over a link. A decoded value encodes
// to the same bytes and is within its limits.
#include "frames/card.h"
#include "fuzz.h"

using namespace weft;
using fuzz::demand;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  for (const int ranks : {1, 2, 3}) {
    frames::Card card;
    if (!frames::decode(bytes, ranks, &card)) continue;
    demand(card.tokens.size() == static_cast<size_t>(ranks));
    demand(card.address.size() <= frames::kMostAddressBytes &&
           card.problem.size() <= frames::kMostProblemBytes);
    demand(card.address.empty() != card.problem.empty());
    const Bytes again = frames::encode(card);
    demand(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
  return 0;
}
