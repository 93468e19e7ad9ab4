// Input: events at rank 0 of five during membership consensus. A byte selects each event: another rank's
// message with its length and bytes, a death, or some time. Whatever members send, the decision is a set of
// members, is made once, and sent messages can be decoded.
#include "control/consensus.h"
#include "fuzz.h"

using namespace weft;
using fuzz::demand;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const std::vector<int> members = {0, 2, 3, 5, 8};
  Consensus consensus(0, members);
  Consensus reader(2,
                   members);  // receives what rank 0 sends, over a network that loses and reorders messages
  std::vector<int> decision;
  uint64_t now_ns = 0;
  consensus.join(false);
  while (!input.empty()) {
    const uint8_t event = input.byte();
    const int who = members[event % members.size()];
    const uint8_t what = static_cast<uint8_t>(event / members.size() % 8);
    if (what == 0) {
      consensus.lose(who);
    } else if (what == 1) {
      now_ns += uint64_t{10'000'000} * (1 + event);
      consensus.advance(now_ns);
    } else {
      ByteReader message(input.take(input.byte()));
      consensus.on_message(who, message);
    }
    for (const auto& [to, bytes] : consensus.take_out()) {
      demand(to != 0 && std::binary_search(members.begin(), members.end(), to));
      ByteReader message(bytes);
      reader.on_message(0, message);
      demand(message.done());
    }
    if (!consensus.decided()) continue;
    if (decision.empty()) decision = consensus.decision();
    demand(!decision.empty() && decision == consensus.decision());
    demand(std::includes(members.begin(), members.end(), decision.begin(), decision.end()));
  }
  return 0;
}
