// Input: messages on the control channel of rank 0 of three, each with its sender, length and bytes, and
// losses of ranks. They reach a communicator (reported failures, other ranks that leave, splits that are
// created) and the communicator generation in which survivors agree. Failures that result name only existing
// ranks.
#include <memory>

#include "comm/comm.h"
#include "comm/context.h"
#include "control/generations.h"
#include "fuzz.h"
#include "kernels/host_ops.h"

using namespace weft;
using fuzz::demand;

namespace {

constexpr int kRanks = 3;

// Sends nothing, and delivers the messages of the test.
class Wire final : public Control {
 public:
  explicit Wire(ControlListener** listener) : listener_(listener) {}
  void start(ControlListener* listener) override { *listener_ = listener; }
  void send(int rank, ByteView message) override {
    demand(rank > 0 && rank < kRanks && message.size() <= kMaxMessage);
  }
  void leave() override {}
  void stop() override { *listener_ = nullptr; }

 private:
  ControlListener** const listener_;
};

class NoLane final : public CollectiveLane {
 public:
  void start(const CollectiveArgs& /*args*/, uint64_t /*slot*/) override {}
  Poll poll() override { return Poll::kWaiting; }
  Status result() const override { return {}; }
  void abandon() override {}
  std::vector<int> missing() const override { return {}; }
  const char* algorithm() const override { return "none"; }
};

// Collectives that need goodbye messages.
class NoCollectives final : public Collectives {
 public:
  Status open_lane(const LaneKey& /*key*/, std::unique_ptr<CollectiveLane>* lane) override {
    *lane = std::make_unique<NoLane>();
    return {};
  }
  bool outlives_sender() const override { return false; }
  std::shared_ptr<Arena> arena() override { return nullptr; }
  CollectiveCounters counters() const override { return {}; }
  int local_size() const override { return kRanks; }
  const char* name() const override { return "none"; }
};

void check_failure(const Comm& comm) {
  if (!comm.failed()) return;
  const Status why = comm.failure();
  demand(!why.ok() && !why.text().empty());
  for (const int rank : why.info().ranks) demand(rank >= 0 && rank < kRanks);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  static const std::shared_ptr<Context> context = [] {
    ContextOptions options;
    options.mode = Engine::Mode::kCaller;
    options.host = &host_ops();
    std::shared_ptr<Context> made;
    demand(Context::create(std::move(options), &made).ok());
    return made;
  }();
  ControlListener* listener = nullptr;
  const std::shared_ptr<Comm> comm = Comm::create(context, 0, kRanks, {}, std::make_unique<Wire>(&listener),
                                                  std::make_unique<NoCollectives>());
  demand(comm != nullptr && listener != nullptr);
  const std::unique_ptr<Exchange> part = comm->subgroup(comm->next_subgroup_id(), {0, 2});
  while (!input.empty() && listener != nullptr) {
    const uint8_t event = input.byte();
    const int from = 1 + event % 2;
    if (event >= 250) {
      listener->on_peer_left(from);
    } else {
      listener->on_message(from, input.take(input.byte()));
    }
    check_failure(*comm);
  }
  std::vector<Bytes> all;
  const Status met = part->all_gather({}, &all, Deadline::at(0));
  demand(!met.ok() || all.size() == 2);
  comm->fail(Status::error(Code::kCancelled, "the test is over"), false);
  Generation next;
  const Status agreed = comm->generation().generations->agree(0, false, {}, Deadline::at(0), &next);
  demand(!agreed.ok() || (!next.members.empty() && next.members.size() <= kRanks));
  demand(comm->close().ok());
  return 0;
}
