#include "captured_lane.h"

#include <cstring>

#include "base/text.h"
#include "calls.h"

namespace weft::nccl {

Status CapturedLane::open(const Communicator& like, std::shared_ptr<GraphLane>* lane) {
  std::shared_ptr<Communicator> communicator;
  WEFT_TRY(Communicator::for_graphs(like, &communicator));
  *lane = std::make_shared<CapturedLane>(std::move(communicator));
  return {};
}

Status CapturedLane::identify(Bytes* id) {
  ncclUniqueId made{};
  WEFT_TRY(communicator_->identify(&made));
  const auto* const bytes = reinterpret_cast<const std::byte*>(made.internal);
  id->assign(bytes, bytes + sizeof made.internal);
  return {};
}

Status CapturedLane::connect(ByteView id) {
  ncclUniqueId told{};
  if (id.size() != sizeof told.internal)
    return Status::error(Code::kInternal,
                         cat("rank 0 sent ", id.size(), " bytes as ncclUniqueId, expected ",
                             sizeof told.internal, ": run the same version of Weft on all ranks"));
  std::memcpy(told.internal, id.data(), sizeof told.internal);
  return communicator_->connect(told);
}

Status CapturedLane::connected(bool* done) {
  return communicator_->settled(done);
}

Status CapturedLane::allocate(uint64_t size, std::byte** memory) {
  WEFT_TRY(Communicator::allocate(communicator_, size, &memory_));
  *memory = memory_.get();
  return {};
}

uint64_t CapturedLane::table_bytes() const {
  return Workspace::kBytes;
}

Status CapturedLane::put(const CollectiveArgs& args, std::byte* table, Deadline deadline) {
  Status status = capture(args, table, deadline);
  if (!status.ok()) give_up(status);
  return status;
}

// Captures an all_reduce into a graph. A non-blocking communicator may put it there from a thread of its own.
// It is part of the graph once that is done.
Status CapturedLane::capture(const CollectiveArgs& args, std::byte* table, Deadline deadline) {
  Clock& clock = communicator_->clock();
  const auto go_on = [&](uint32_t round) -> Status {
    WEFT_TRY(communicator_->failure());
    if (deadline.expired(clock)) {
      return Status::error(Code::kTimeout,
                           "NCCL did not add its operation to the captured graph before the deadline",
                           Evidence::kDeadline);
    }
    clock.relax(round);
    return {};
  };
  // After the communicator was aborted, the end thread may hold the lock as long as graphs exist.
  auto calls = communicator_->try_calls();
  for (uint32_t round = 0; !calls; round++) {
    WEFT_TRY(go_on(round));
    calls = communicator_->try_calls();
  }
  WEFT_TRY(communicator_->failure());
  Workspace work;
  work.pieces = reinterpret_cast<CopyPiece*>(table);
  WEFT_TRY(launch(*communicator_, args, work));
  bool done = false;
  for (uint32_t round = 0;; round++) {
    WEFT_TRY(communicator_->settled(&done));
    if (done) return launch_rest(*communicator_, args, work);
    WEFT_TRY(go_on(round));
  }
}

Status CapturedLane::health() {
  WEFT_TRY(communicator_->failure());
  const auto calls = communicator_->try_calls();
  if (!calls) return {};
  WEFT_TRY(communicator_->failure());
  bool done = false;
  return communicator_->settled(&done);
}

void CapturedLane::give_up(const Status& why) {
  const std::lock_guard lock(mutex_);
  communicator_->give_up(why);
}

}  // namespace weft::nccl
