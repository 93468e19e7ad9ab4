#include "comm/drain.h"

#include "comm/comm.h"

namespace weft {
namespace {

enum class DrainKind : uint8_t { kLeaving = 1, kHaveEverything = 2 };

}  // namespace

Drain::Drain(Comm& comm)
    : comm_(comm),
      leaving_(static_cast<size_t>(comm.size())),
      has_everything_(static_cast<size_t>(comm.size())) {}

bool Drain::drain(Deadline deadline) {
  Engine& engine = comm_.context().engine();
  for (int r = 0; r < comm_.size(); r++) {
    if (r == comm_.rank()) continue;
    const uint64_t sent = engine.locked([&] { return comm_.collectives().sent_to(r); });
    ByteWriter message;
    message.put(kMessage).put(DrainKind::kLeaving).put(sent);
    comm_.control().send(r, message.bytes());
  }
  const bool taken = engine.wait([&] { return comm_.failed() || all_have_everything(); }, deadline);
  engine.remove(this);
  return taken;
}

bool Drain::all_have_everything() const {
  for (int r = 0; r < comm_.size(); r++) {
    if (r != comm_.rank() && !has_everything_[static_cast<size_t>(r)] && !comm_.departed(r)) return false;
  }
  return true;
}

void Drain::on_message(int rank, ByteReader& message) {
  const auto what = message.get<DrainKind>();
  const auto sent = what == DrainKind::kLeaving ? message.get<uint64_t>() : 0;
  if (!message.done()) return;
  const auto r = static_cast<size_t>(rank);
  if (what == DrainKind::kHaveEverything) has_everything_[r] = true;
  if (what == DrainKind::kLeaving && leaving_[r].exchange(sent + 1) == 0) waiting_++;
  comm_.context().engine().notify();
}

void Drain::fail(const Status& why) noexcept {
  comm_.fail(why);
}

Poll Drain::poll() {
  if (comm_.failed()) return Poll::kParked;
  bool settled = comm_.collectives().settled();
  if (waiting_ == 0 && settled) return Poll::kParked;
  comm_.collectives().progress();
  for (int r = 0; r < comm_.size(); r++) {
    std::atomic<uint64_t>& leaving = leaving_[static_cast<size_t>(r)];
    const uint64_t expected = leaving.load();
    if (expected == 0) continue;
    if (comm_.collectives().received_from(r) + 1 < expected && !comm_.departed(r)) {
      settled = false;
      continue;
    }
    leaving = 0;
    waiting_--;
    ByteWriter message;
    message.put(kMessage).put(DrainKind::kHaveEverything);
    comm_.control().send(r, message.bytes());
  }
  return settled ? Poll::kParked : Poll::kWaiting;
}

}  // namespace weft
