// Input: the handshake info that a rank sends before two ranks connect over a link. A decoded value encodes
// to the same bytes and is within its limits.
#include "framed/handshake_info.h"
#include "fuzz.h"

using namespace weft;
using fuzz::demand;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  for (const int ranks : {1, 2, 3}) {
    framed::HandshakeInfo info;
    if (!framed::decode(bytes, ranks, &info)) continue;
    demand(info.tokens.size() == static_cast<size_t>(ranks));
    demand(info.address.size() <= framed::kMostAddressBytes &&
           info.problem.size() <= framed::kMostProblemBytes);
    demand(info.address.empty() != info.problem.empty());
    const Bytes again = framed::encode(info);
    demand(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
  return 0;
}
