#include "comm/flight_dump.h"

#include <utility>

#include "base/guard.h"
#include "base/text.h"
#include "comm/comm.h"

namespace weft {

FlightDump::~FlightDump() {
  if (thread_.joinable()) thread_.detach();
}

void FlightDump::announce(Clock& clock) {
  patience_ns_.store(Deadline::after(clock, kPatienceMs, 0).ns(), std::memory_order_relaxed);
  announced_.store(true, std::memory_order_release);
}

void FlightDump::start(std::shared_ptr<Comm> comm) noexcept {
  const std::shared_ptr<Context> context = comm->shared_context();
  const int rank = comm->rank();
  const auto missed = [context, rank](const Status& why) {
    const auto warn = [&] {
      context->log().warn(cat("rank ", rank, ": the flight record was not written: ", why.text()));
    };
    (void)guarded_run(warn).ok();
  };
  const Status started = guarded([&] {
    const auto write = [comm = std::move(comm), context, missed, writing = writing_]() mutable {
      writing->writer.store(std::this_thread::get_id());
      const Status written = guarded([&] {
        const std::string folder = comm->options().flight_path;
        const FlightRecord record = comm->flight();
        comm.reset();
        return context->options().write_flight(record, folder);
      });
      comm.reset();
      if (!written.ok()) missed(written);
      writing->done.store(true, std::memory_order_release);
    };
    const std::lock_guard lock(mutex_);
    return start_thread("weft-flight", write, context->options().thread_start, &thread_);
  });
  if (started.ok()) return;
  missed(started);
  writing_->done.store(true, std::memory_order_release);
}

bool FlightDump::pending(Clock& clock) const {
  if (!announced_.load(std::memory_order_acquire) || writing_->done.load(std::memory_order_acquire))
    return false;
  return !Deadline::at(patience_ns_.load(std::memory_order_relaxed)).expired(clock);
}

void FlightDump::close(Clock& clock) {
  if (!announced_.load(std::memory_order_acquire)) return;
  // The writer thread itself may drop the last reference to the communicator.
  const bool own = writing_->writer.load() == std::this_thread::get_id();
  const Deadline deadline = Deadline::after(clock, kCloseMs, 0);
  const auto done = [&] { return writing_->done.load(std::memory_order_acquire); };
  for (uint32_t round = 0; !own && !done() && !deadline.expired(clock); round++) clock.relax(round);
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) return;
  done() ? thread_.join() : thread_.detach();
}

}  // namespace weft
