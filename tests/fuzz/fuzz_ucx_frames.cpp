// Input: what a member of a communicator, which knows its token, sends over UCX: frames and data, between
// receives that are posted and taken back. Whatever it is, only receives that wait are written to, and what
// is kept for later is bounded. Each step is a byte that says what, one that says how much, and the bytes.
#include <cstring>
#include <list>

#include "base/log.h"
#include "fuzz.h"
#include "ucx/transport.h"

using namespace weft;
using namespace weft::ucx;
using fuzz::demand;

namespace {

constexpr std::byte kUntouched{0xA5};
constexpr uint64_t kToken = 0x1234;
constexpr size_t kMost = 600;  // of a receive
constexpr size_t kReceives = 32;
constexpr int kSender = 0;

// A receive, between bytes that are not its.
struct Wanted {
  Message message;
  size_t size = 0;
  Bytes room = Bytes(3 * kMost, kUntouched);
  Bytes when_done;

  // After each step: from when it is done on, nothing writes to it.
  void look() {
    if (message.done && when_done.empty()) when_done = room;
  }
  void check() const {
    const auto untouched = [](std::byte b) { return b == kUntouched; };
    const auto begin = room.begin() + static_cast<ptrdiff_t>(kMost);
    demand(std::all_of(room.begin(), begin, untouched));
    demand(std::all_of(begin + static_cast<ptrdiff_t>(size), room.end(), untouched));
    demand(!message.done || !message.status.ok() || message.received_bytes <= size);
    demand(!message.done || room == when_done);
  }
};

template <class Frame>
void hear(UcxTransport& transport, fuzz::Input& input, size_t data_size) {
  Frame frame{};
  const ByteView bytes = input.take(sizeof frame);
  std::memcpy(&frame, bytes.data(), bytes.size());
  frame.token = kToken;
  frame.from = kSender;
  transport.hear<Frame>(std::as_bytes(std::span(&frame, 1)), input.take(data_size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  SystemClock clock;
  Log log;
  std::list<Wanted> wanted;
  UcxTransport transport(1, 2, clock, log);  // never opened: it hears, and answers nobody
  transport.peer(kSender).token_in = kToken;
  while (!input.empty()) {
    const uint8_t what = input.byte();
    const size_t amount = size_t{input.byte()} * 2;
    switch (what % 6) {
      case 0: {
        if (wanted.size() == kReceives) break;
        Wanted& receive = wanted.emplace_back();
        receive.size = amount;
        transport.receive(kSender, {what / 64u, 0, 0}, receive.room.data() + kMost, amount, &receive.message);
        break;
      }
      case 1:
        hear<Header>(transport, input, amount);
        break;
      case 2:
        hear<Fragment>(transport, input, amount);
        break;
      case 3:
        hear<Note>(transport, input, amount % 4);
        break;
      case 4:
        transport.hear<Header>(input.take(amount), {});
        transport.hear<Fragment>(input.take(amount), {});
        transport.hear<Note>(input.take(amount), {});
        break;
      case 5:
        if (!wanted.empty() && !wanted.front().message.done) transport.cancel(&wanted.front().message);
        break;
    }
    for (Wanted& receive : wanted) receive.look();
    demand(transport.peer(kSender).arrived_bytes <= kWindowBytes);
    demand(transport.peer(kSender).may_send <= kWindowBytes);
  }
  for (const Wanted& receive : wanted) receive.check();
  return 0;
}
