// Input: messages of another rank while a communicator is created or split: an offer, a description of a
// process, a result, a place in a split, or a vote on a reducer. A decoded message can be encoded again
// without change.
#include <string>

#include "bootstrap_wire.h"
#include "comm/members.h"
#include "fuzz.h"
#include "reducer/vote.h"
#include "transport/result.h"

using namespace weft;
using fuzz::demand;

namespace {

constexpr int kRanks = 5;

template <class Message>
void check(ByteView bytes) {
  Message message;
  if (!decode(bytes, &message)) return;
  const Bytes again = encode(message);
  demand(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t kind = input.byte();
  const ByteView bytes = input.rest();
  if (kind % 4 == 0) {
    check<Offer>(bytes);
    check<ProcessInfo>(bytes);
  }
  if (kind % 4 == 1) check<SplitChoice>(bytes);
  if (kind % 4 == 2) check<Vote>(bytes);
  if (kind % 4 != 3) return 0;
  Status result;
  if (!decode_result(bytes, kRanks, &result)) return 0;
  for (const int rank : result.info().ranks) demand(rank >= 0 && rank < kRanks);
  demand(result.ok() == (result.code() == Code::kOk));
  const Bytes again = encode_result(result);
  demand(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  return 0;
}
