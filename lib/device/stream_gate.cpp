#include "device/stream_gate.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace weft {

StreamGate::~StreamGate() {
  const bool all = std::all_of(tickets_.begin(), tickets_.end(), [&](const Ticket& t) { return passed(t); });
  for (const Ticket& ticket : tickets_) {
    if (ticket.ready != nullptr) accelerator_->destroy_event(ticket.device, ticket.ready);
    if (ticket.passed != nullptr) accelerator_->destroy_event(ticket.device, ticket.passed);
  }
  for (std::byte* slab : slabs_) {
    if (all) accelerator_->free_pinned(slab);
  }
}

Status StreamGate::enter(int device, DeviceStream stream, DeviceCall* call) {
  Ticket* ticket = nullptr;
  WEFT_TRY(take(device, &ticket));
  *call = {kCudaDevices, device, accelerator_.get(), stream, ticket->ready, ticket};
  Status recorded = accelerator_->record(device, ticket->ready, stream);
  if (!recorded.ok()) leave(call);
  return recorded;
}

Status StreamGate::hold(const DeviceCall& call) {
  auto* const ticket = static_cast<Ticket*>(call.ticket);
  const uint32_t value = ticket->value + 1;
  WEFT_TRY(accelerator_->wait_value(call.device, call.stream, ticket->word, value));
  ticket->value = value;
  ticket->held = true;
  holding_.fetch_add(1, std::memory_order_relaxed);
  return accelerator_->record(call.device, ticket->passed, call.stream);
}

void StreamGate::leave(DeviceCall* call) {
  auto* const ticket = static_cast<Ticket*>(call->ticket);
  if (ticket == nullptr) return;
  call->ticket = nullptr;
  if (ticket->held) {
    std::atomic_ref(*ticket->word).store(ticket->value, std::memory_order_release);
    holding_.fetch_sub(1, std::memory_order_release);
  }
  const std::lock_guard lock(mutex_);
  resting_[ticket->device].push_back(ticket);
}

bool StreamGate::passed(const Ticket& ticket) {
  bool done = true;
  // A failed device runs nothing any more.
  if (ticket.held && !accelerator_->query(ticket.device, ticket.passed, &done).ok()) return true;
  return done;
}

Status StreamGate::take(int device, Ticket** ticket) {
  {
    const std::lock_guard lock(mutex_);
    std::deque<Ticket*>& resting = resting_[device];
    if (!resting.empty() && passed(*resting.front())) {
      *ticket = resting.front();
      resting.pop_front();
      (*ticket)->held = false;
      return {};
    }
  }
  return make(device, ticket);
}

Status StreamGate::make(int device, Ticket** ticket) {
  Ticket made;
  made.device = device;
  WEFT_TRY(new_word(device, &made.word));
  Status status = accelerator_->create_event(device, &made.ready);
  if (status.ok()) status = accelerator_->create_event(device, &made.passed);
  if (!status.ok() && made.ready != nullptr) accelerator_->destroy_event(device, made.ready);
  const std::lock_guard lock(mutex_);
  if (!status.ok()) {
    words_.push_back(made.word);
    return status;
  }
  tickets_.push_back(made);
  *ticket = &tickets_.back();
  return {};
}

Status StreamGate::new_word(int device, uint32_t** word) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (!words_.empty()) {
        *word = words_.back();
        words_.pop_back();
        return {};
      }
    }
    std::byte* slab = nullptr;
    WEFT_TRY(accelerator_->allocate_pinned(device, kSlabBytes, &slab));
    std::memset(slab, 0, kSlabBytes);
    const std::lock_guard lock(mutex_);
    slabs_.push_back(slab);
    for (uint64_t at = 0; at < kSlabBytes; at += kWordBytes)
      words_.push_back(reinterpret_cast<uint32_t*>(slab + at));
  }
}

}  // namespace weft
