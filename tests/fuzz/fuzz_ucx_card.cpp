// Input: what a rank tells another one of itself before they meet over UCX. What is decoded encodes to the
// same bytes, and keeps its bounds.
#include "fuzz.h"
#include "ucx/card.h"

using namespace weft;
using fuzz::demand;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  for (const int ranks : {1, 2, 3}) {
    ucx::Card card;
    if (!ucx::decode(bytes, ranks, &card)) continue;
    demand(card.tokens.size() == static_cast<size_t>(ranks));
    demand(card.address.size() <= ucx::kMostAddressBytes && card.problem.size() <= ucx::kMostProblemBytes);
    demand(card.address.empty() != card.problem.empty());
    const Bytes again = ucx::encode(card);
    demand(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
  return 0;
}
