#include "lane.h"

#include <utility>

#include "base/text.h"

namespace weft::nccl {

// Keeps the event and the memory while the device may still use them, that is until NCCL has released the
// communicator.
Lane::~Lane() {
  if (on_device() && !communicator_->ended()) return;
  if (done_ != nullptr) communicator_->accelerator().destroy_event(communicator_->device(), done_);
  if (memory_ != nullptr) communicator_->accelerator().free_pinned(memory_);
}

Status Lane::prepare(const DeviceCall& call) {
  WEFT_TRY(communicator_->check_device(call));
  if (!call.direct) WEFT_TRY(below_->prepare(call));
  const std::lock_guard lock(mutex_);
  Accelerator& accelerator = communicator_->accelerator();
  if (memory_ == nullptr) {
    WEFT_TRY(accelerator.allocate_pinned(call.device, Workspace::kBytes, &memory_));
    work_.pieces = reinterpret_cast<CopyPiece*>(memory_);
  }
  return done_ == nullptr ? accelerator.create_event(call.device, &done_) : Status();
}

uint64_t Lane::memory_bytes() const {
  return below_->memory_bytes() + (memory_ != nullptr ? Workspace::kBytes : 0);
}

void Lane::start(const CollectiveArgs& args, uint64_t slot) {
  whole_ = {Descriptor::of(args), reported_slot(args, slot)};
  own_ = args.device != nullptr && (executes(args) || args.coll == Coll::kBarrier);
  args_ = args;
  if (!own_) return start_below(args);
  status_ = Status();
  state_ = State::kStream;
}

// The lane below executes more operations than this one, so it has slots of its own.
void Lane::start_below(CollectiveArgs args) {
  args.whole = &whole_;
  below_->start(args, below_slot_++);
}

Poll Lane::poll() {
  if (!own_) return below_->poll();
  if (state_ == State::kEnding) {
    if (!communicator_->ended()) return Poll::kWaiting;
    state_ = State::kOver;
  }
  return state_ == State::kOver ? Poll::kFinished : advance();
}

Poll Lane::advance() {
  const State before = state_;
  Poll below = Poll::kWaiting;
  if (meets()) {
    below = below_->poll();
    if (below != Poll::kFinished) return below;
    if (!below_->result().ok()) return fail(below_->result());
  }
  Status status;
  switch (state_) {
    case State::kStream:
      status = poll_stream();
      break;
    case State::kBarrier:
      status = begin_numbering();
      break;
    case State::kNumbering:
      state_ = State::kTurn;
      break;
    case State::kTurn:
      if (communicator_->has_turn(turn_)) status = begin_work();
      break;
    case State::kLaunching:
      status = settle();
      break;
    default:
      status = poll_work();
  }
  if (!status.ok()) return fail(status);
  if (state_ == State::kOver) return Poll::kFinished;
  return state_ == before ? Poll::kWaiting : Poll::kAdvanced;
}

// Queues nothing behind the program's work. If that hangs, it holds no NCCL work, which could not be aborted.
Status Lane::poll_stream() {
  bool arrived = false;
  WEFT_TRY(communicator_->accelerator().query(communicator_->device(), args_.device->ready, &arrived));
  return arrived ? begin_barrier() : Status();
}

Status Lane::begin_barrier() {
  if (communicator_->size() == 1) return begin_numbering();
  CollectiveArgs barrier;
  barrier.dtype = args_.dtype;
  state_ = State::kBarrier;
  start_below(barrier);
  return {};
}

// Begins to number the operation, after all ranks have arrived with the same call. Lanes arrive in an order
// that differs between ranks; NCCL's order must not.
Status Lane::begin_numbering() {
  if (args_.coll == Coll::kBarrier) {
    state_ = State::kOver;
    return {};
  }
  if (communicator_->rank() == 0) turn_ = communicator_->next_turn();
  if (communicator_->size() == 1) {
    state_ = State::kTurn;
    return {};
  }
  CollectiveArgs number;
  number.coll = Coll::kBroadcast;
  number.dtype = Dtype::kU64;
  number.count = 1;
  number.src = number.dst = reinterpret_cast<std::byte*>(&turn_);
  state_ = State::kNumbering;
  start_below(number);
  return {};
}

Status Lane::begin_work() {
  WEFT_TRY(communicator_->failure());
  const auto calls = communicator_->try_calls();
  if (!calls || !communicator_->launch_gate().enter()) return {};
  state_ = State::kLaunching;
  communicator_->count(args_.count * dtype_size(args_.dtype));
  return launch(*communicator_, args_, work_);
}

Status Lane::settle() {
  WEFT_TRY(communicator_->failure());  // the failure may be another lane's
  const auto calls = communicator_->try_calls();
  if (!calls) return {};
  bool done = false;
  WEFT_TRY(communicator_->settled(&done));
  if (!done) return {};
  WEFT_TRY(launch_rest(*communicator_, args_, work_));
  Accelerator& accelerator = communicator_->accelerator();
  WEFT_TRY(accelerator.record(communicator_->device(), done_, communicator_->stream()));
  communicator_->pass_turn();
  state_ = State::kRunning;
  return {};
}

Status Lane::poll_work() {
  bool done = false;
  WEFT_TRY(communicator_->reached(done_, &done));
  if (!done) return {};
  communicator_->launch_gate().leave();
  state_ = State::kOver;
  return {};
}

// Ends the operation only after its work has left the device.
Poll Lane::fail(const Status& status) {
  status_ = status.with_slot(whole_.slot);
  if (on_device()) {
    communicator_->give_up(status);
    state_ = State::kEnding;
    return Poll::kWaiting;
  }
  state_ = State::kOver;
  return Poll::kFinished;
}

void Lane::abandon() {
  if (meets()) below_->abandon();
  if (on_device())
    communicator_->give_up(
        Status::error(Code::kAborted, "the NCCL communicator was aborted with an operation in progress"));
}

// Includes this process until NCCL has released its device.
std::vector<int> Lane::writers() const {
  if (meets()) return below_->writers();
  if (!on_device() || communicator_->ended()) return {};
  return {communicator_->name()};
}

}  // namespace weft::nccl
