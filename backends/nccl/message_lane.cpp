#include "message_lane.h"

#include <utility>

#include "base/dtype.h"
#include "base/text.h"

namespace weft::nccl {
namespace {

// Values of a decision. Other notes carry no value.
constexpr uint64_t kRefused = 0;
constexpr uint64_t kGranted = 1;

}  // namespace

MessageLane::MessageLane(std::shared_ptr<Communicator> communicator, const LaneKey& key,
                         std::unique_ptr<CollectiveLane> data, std::unique_ptr<CollectiveLane> back)
    : communicator_(std::move(communicator)),
      peer_(key.peer),
      sends_(key.kind == LaneKey::Kind::kSend),
      asks_(communicator_->rank() < peer_),
      data_{std::move(data), key.first_slot},
      back_{std::move(back), key.first_slot} {}

// Keeps the event while the device may still record it, that is until NCCL has released the communicator.
MessageLane::~MessageLane() {
  launch_gate().give_back(this);
  if (done_ == nullptr || (on_device() && !communicator_->ended())) return;
  communicator_->accelerator().destroy_event(communicator_->device(), done_);
}

Status MessageLane::prepare(const DeviceCall& call) {
  WEFT_TRY(communicator_->check_device(call));
  const std::lock_guard lock(mutex_);
  return done_ == nullptr ? communicator_->accelerator().create_event(call.device, &done_) : Status();
}

void MessageLane::rest() {
  data_.lane->rest();
  back_.lane->rest();
}

void MessageLane::start(const CollectiveArgs& args, uint64_t slot) {
  whole_ = {Descriptor::of(args), reported_slot(args, slot)};
  own_ = args.device != nullptr;
  args_ = args;
  talks_ = nullptr;
  if (own_) {
    status_ = Status();
    state_ = State::kStream;
    return;
  }
  CollectiveArgs message = args;
  message.whole = &whole_;
  data_.lane->start(message, data_.slot++);
}

void MessageLane::say(State state, uint64_t word) {
  word_ = word;
  note(state, true);
}

void MessageLane::receive(State state) {
  note(state, false);
}

void MessageLane::note(State state, bool says) {
  state_ = state;
  CollectiveArgs args;
  args.coll = says ? Coll::kSend : Coll::kRecv;
  args.dtype = Dtype::kU64;
  args.count = 1;
  args.peer = peer_;
  args.whole = &whole_;
  auto* const word = reinterpret_cast<std::byte*>(&word_);
  if (says) {
    args.src = word;
  } else {
    args.dst = word;
  }
  Below& below = says == sends_ ? data_ : back_;
  talks_ = below.lane.get();
  talks_->start(args, below.slot++);
}

Poll MessageLane::poll() {
  if (!own_) return data_.lane->poll();
  if (state_ == State::kEnding) {
    if (!communicator_->ended()) return Poll::kWaiting;
    state_ = State::kOver;
  }
  return state_ == State::kOver ? Poll::kFinished : advance();
}

Poll MessageLane::advance() {
  if (talks_ != nullptr) {
    const Poll poll = talks_->poll();
    if (poll != Poll::kFinished) return poll;
    const Status heard = std::exchange(talks_, nullptr)->result();
    if (!heard.ok()) return fail(heard);
  }
  const State before = state_;
  const Status status = step();
  if (!status.ok()) return fail(status);
  if (state_ == State::kOver) return Poll::kFinished;
  return state_ == before ? Poll::kWaiting : Poll::kAdvanced;
}

// Does the work of the current state. Called when the state's note, if it has one, was sent or received.
Status MessageLane::step() {
  switch (state_) {
    case State::kStream:
      return poll_stream();
    case State::kHello:
      after_hello();
      return {};
    case State::kHere:
      asks_ ? void(state_ = State::kGate) : receive(State::kAsk);
      return {};
    case State::kGate:
      if (launch_gate().take(this)) say(State::kAsk, kGranted);
      return {};
    case State::kAsk:
      asks_ ? receive(State::kDecision) : void(state_ = State::kDecide);
      return {};
    case State::kDecide:
      decide();
      return {};
    case State::kDecision:
      after_verdict();
      return {};
    case State::kCalm:
      if (!launch_gate().collective()) say(State::kHere, kGranted);
      return {};
    case State::kCall:
      return call();
    case State::kLaunching:
      return settle();
    default:
      return poll_work();
  }
}

Status MessageLane::poll_stream() {
  bool arrived = false;
  WEFT_TRY(communicator_->accelerator().query(communicator_->device(), args_.device->ready, &arrived));
  if (arrived) sends_ ? say(State::kHello, kGranted) : receive(State::kHello);
  return {};
}

void MessageLane::after_hello() {
  if (args_.count == 0) {
    state_ = State::kOver;
  } else if (sends_) {
    receive(asks_ ? State::kHere : State::kAsk);
  } else if (asks_) {
    state_ = State::kGate;
  } else {
    say(State::kHere, kGranted);
  }
}

// Neither answers nor takes the gate while another message holds it: that message ends, or gives the gate
// back, independently of this one.
void MessageLane::decide() {
  if (launch_gate().collective()) {
    say(State::kDecision, kRefused);
  } else if (launch_gate().take(this)) {
    say(State::kDecision, kGranted);
  }
}

void MessageLane::after_verdict() {
  if (word_ == kGranted) {
    state_ = State::kCall;
  } else if (asks_) {
    launch_gate().give_back(this);
    receive(State::kHere);
  } else {
    state_ = State::kCalm;
  }
}

Status MessageLane::call() {
  Communicator& c = *communicator_;
  WEFT_TRY(c.failure());
  const auto calls = c.try_calls();
  if (!calls) return {};
  state_ = State::kLaunching;
  const uint64_t bytes = args_.count * dtype_size(args_.dtype);
  c.count(bytes);
  auto* const stream = static_cast<cudaStream_t>(c.stream());
  const Library& nccl = c.nccl();
  return c.accelerator().within(c.device(), [&] {
    return sends_ ? c.check("send", nccl.ncclSend(args_.src, bytes, ncclUint8, peer_, c.native(), stream))
                  : c.check("recv", nccl.ncclRecv(args_.dst, bytes, ncclUint8, peer_, c.native(), stream));
  });
}

Status MessageLane::settle() {
  WEFT_TRY(communicator_->failure());  // the failure may be another lane's
  const auto calls = communicator_->try_calls();
  if (!calls) return {};
  bool done = false;
  WEFT_TRY(communicator_->settled(&done));
  if (!done) return {};
  WEFT_TRY(communicator_->accelerator().record(communicator_->device(), done_, communicator_->stream()));
  state_ = State::kRunning;
  return {};
}

Status MessageLane::poll_work() {
  bool done = false;
  WEFT_TRY(communicator_->reached(done_, &done));
  if (!done) return {};
  launch_gate().give_back(this);
  state_ = State::kOver;
  return {};
}

// Ends the operation only after its work has left the device.
Poll MessageLane::fail(const Status& status) {
  status_ = status.with_slot(whole_.slot);
  if (on_device()) {
    communicator_->give_up(status);
    state_ = State::kEnding;
    return Poll::kWaiting;
  }
  launch_gate().give_back(this);
  state_ = State::kOver;
  return Poll::kFinished;
}

void MessageLane::abandon() {
  if (!own_) return data_.lane->abandon();
  if (talks_ != nullptr) talks_->abandon();
  if (on_device())
    communicator_->give_up(
        Status::error(Code::kAborted, "the NCCL communicator was aborted with an operation in progress"));
}

// Includes this process until NCCL has released its device.
std::vector<int> MessageLane::writers() const {
  if (talks() != nullptr) return talks()->writers();
  if (!on_device() || communicator_->ended()) return {};
  return {communicator_->name()};
}

std::vector<int> MessageLane::missing() const {
  return talks() != nullptr ? talks()->missing() : std::vector<int>();
}

bool MessageLane::waits_for(int rank) const {
  return talks() != nullptr && talks()->waits_for(rank);
}

std::vector<int> MessageLane::absent() const {
  return talks() != nullptr ? talks()->absent() : std::vector<int>();
}

}  // namespace weft::nccl
