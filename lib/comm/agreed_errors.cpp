#include "comm/agreed_errors.h"

#include <utility>

#include "comm/comm.h"
#include "transport/result.h"

namespace weft {

AgreedErrors::AgreedErrors(Comm& comm) : comm_(comm), received_(static_cast<size_t>(comm.size())) {}

void AgreedErrors::announce(const Status& error) {
  if (comm_.size() == 1 || comm_.failed()) return;
  uint64_t number = 0;
  {
    const std::lock_guard lock(send_mutex_);
    number = ++announced_;
    ByteWriter message;
    message.put(kErrorMessage).put_raw(encode_result(error));
    send(message.bytes());
    stands_.store(true, std::memory_order_relaxed);
  }
  Context& context = comm_.context();
  const auto over = [&] {
    comm_.control().poll();
    return comm_.failed() || others_found(number);
  };
  context.engine().wait(over, Deadline::after(context.clock(), kPatienceMs, 0));
}

void AgreedErrors::send(ByteView message) {
  for (int r = 0; r < comm_.size(); r++) {
    if (r != comm_.rank()) comm_.control().send(r, message);
  }
}

// Returns true if every other rank that has not left has announced at least as many errors.
bool AgreedErrors::others_found(uint64_t errors) {
  const std::lock_guard lock(received_mutex_);
  for (int r = 0; r < comm_.size(); r++) {
    if (r != comm_.rank() && received_[static_cast<size_t>(r)].count < errors && !comm_.departed(r)) {
      return false;
    }
  }
  return true;
}

void AgreedErrors::send_withdrawal() {
  const std::lock_guard lock(send_mutex_);
  ByteWriter message;
  message.put(kContinuesMessage);  // may throw: the error then remains announced
  if (stands_.exchange(false, std::memory_order_relaxed)) send(message.bytes());
}

void AgreedErrors::on_error(int rank, ByteView message) {
  Status error;
  if (!decode_result(message, comm_.size(), &error) || error.ok()) return;
  {
    const std::lock_guard lock(received_mutex_);
    Received& received = received_[static_cast<size_t>(rank)];
    received.count++;
    received.last = std::move(error);
  }
  comm_.context().engine().notify();
}

void AgreedErrors::on_continues(int rank) {
  const std::lock_guard lock(received_mutex_);
  received_[static_cast<size_t>(rank)].last = Status();
}

Status AgreedErrors::last_of(int rank) {
  const std::lock_guard lock(received_mutex_);
  return received_[static_cast<size_t>(rank)].last;
}

}  // namespace weft
