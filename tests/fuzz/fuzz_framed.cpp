// Input: what a member of a communicator, which knows its token, sends over a link: frames and data, between
// receives that are posted and cancelled. For any input only waiting receives are written to, and data that
// is kept for later is bounded. Each step is a byte for the action, one for the amount, and the bytes.
#include <cstring>
#include <list>
#include <memory>

#include "base/log.h"
#include "framed/transport.h"
#include "fuzz.h"

using namespace weft;
using namespace weft::framed;
using fuzz::demand;

namespace {

constexpr std::byte kUntouched{0xA5};
constexpr uint64_t kToken = 0x1234;
constexpr size_t kMost = 600;  // of a receive
constexpr size_t kReceives = 32;
constexpr int kSender = 0;

// A link without a peer.
class NoLink final : public Link {
 public:
  Status open(LinkEvents&, Bytes*) override { return {}; }
  Status connect(int, ByteView, LinkLimits*) override { return {}; }
  bool send(int, ByteView, ByteView, InFlightFrame&) override { return false; }
  bool progress() override { return false; }
  void close(int) override {}
  void stop() override {}
  bool settled() override { return true; }
  std::string path(int) const override { return {}; }
  std::string about() const override { return {}; }
  const char* name() const override { return "fuzz"; }
};

// A receive, with guard bytes on both sides.
struct Wanted {
  Message message;
  size_t size = 0;
  Bytes room = Bytes(3 * kMost, kUntouched);
  Bytes when_done;

  // Called after each step: once the receive is done, its buffer must not change.
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
void hear(FramedTransport& transport, fuzz::Input& input, size_t data_size) {
  Frame frame{};
  const ByteView bytes = input.take(sizeof frame);
  std::memcpy(&frame, bytes.data(), bytes.size());
  frame.token = kToken;
  frame.kind = Frame().kind;
  frame.from = kSender;
  transport.on_frame(std::as_bytes(std::span(&frame, 1)), input.take(data_size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  SystemClock clock;
  Log log;
  std::list<Wanted> wanted;
  // The transport receives, and its answers go nowhere.
  FramedTransport transport(1, 2, std::make_unique<NoLink>(), clock, log);
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
        transport.on_frame(input.take(amount), {});
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
