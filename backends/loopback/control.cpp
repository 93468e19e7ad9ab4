#include "control.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/text.h"

namespace weft::loopback {

struct ControlHub::Event {
  enum class Kind { kMessage, kLeft, kLost };
  Kind kind = Kind::kMessage;
  int from = 0;
  Bytes message;
  Status why;
  uint64_t visible_ns = 0;
};

struct ControlHub::Inbox {
  std::mutex mutex;
  std::deque<Event> events;             // guarded by mutex
  ControlListener* listener = nullptr;  // guarded by mutex
  std::thread::id deliverer;            // guarded by mutex; valid while delivering
  std::atomic<uint32_t> delivering{0};  // written under mutex
  bool departed = false;                // guarded by mutex: has sent its goodbye, or died
};

class LoopbackControl final : public Control {
 public:
  LoopbackControl(std::shared_ptr<ControlHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~LoopbackControl() override {
    stop();
    if (depart()) {
      const auto why = Status::error(
          Code::kPeerFailed, cat("rank ", rank_, " closed its control channel without a goodbye message"),
          Evidence::kConnection);
      hub_->tell_all(rank_, {ControlHub::Event::Kind::kLost, rank_, {}, why.with_ranks({rank_}), 0});
    }
  }

  void start(ControlListener* listener) override {
    ControlHub::Inbox& inbox = *hub_->inboxes_[static_cast<size_t>(rank_)];
    {
      const std::lock_guard lock(inbox.mutex);
      inbox.listener = listener;
    }
    hub_->deliver(rank_);
  }

  void send(int rank, ByteView message) override {
    if (message.size() > kMaxMessage || departed()) return;
    hub_->add(rank, {ControlHub::Event::Kind::kMessage, rank_, Bytes(message.begin(), message.end()), {}, 0});
  }

  void poll() override { hub_->deliver(rank_); }

  void leave() override {
    if (depart()) hub_->tell_all(rank_, {ControlHub::Event::Kind::kLeft, rank_, {}, {}, 0});
  }

  void stop() override {
    ControlHub::Inbox& inbox = *hub_->inboxes_[static_cast<size_t>(rank_)];
    {
      const std::lock_guard lock(inbox.mutex);
      inbox.listener = nullptr;
      if (inbox.delivering && inbox.deliverer == std::this_thread::get_id()) return;
    }
    // Listeners do not block, so the loop ends.
    for (uint32_t round = 0; inbox.delivering.load(std::memory_order_acquire) != 0; round++) {
      hub_->clock_.relax(round);
    }
  }

 private:
  // Returns true for the first goodbye of a live rank.
  bool depart() {
    ControlHub::Inbox& inbox = *hub_->inboxes_[static_cast<size_t>(rank_)];
    const std::lock_guard lock(inbox.mutex);
    return !std::exchange(inbox.departed, true);
  }

  bool departed() {
    ControlHub::Inbox& inbox = *hub_->inboxes_[static_cast<size_t>(rank_)];
    const std::lock_guard lock(inbox.mutex);
    return inbox.departed;
  }

  const std::shared_ptr<ControlHub> hub_;
  const int rank_;
};

ControlHub::ControlHub(int size, Clock& clock, std::shared_ptr<Delays> delays)
    : clock_(clock), delays_(std::move(delays)) {
  for (int r = 0; r < size; r++) inboxes_.push_back(std::make_unique<Inbox>());
}

ControlHub::~ControlHub() = default;

std::unique_ptr<Control> ControlHub::connect(const std::shared_ptr<ControlHub>& hub, int rank) {
  return std::make_unique<LoopbackControl>(hub, rank);
}

void ControlHub::kill(int rank, Evidence evidence, const std::string& text) {
  {
    Inbox& inbox = *inboxes_[static_cast<size_t>(rank)];
    const std::lock_guard lock(inbox.mutex);
    if (std::exchange(inbox.departed, true)) return;
  }
  const Status why = Status::error(Code::kPeerFailed, text, evidence).with_ranks({rank});
  tell_all(rank, {Event::Kind::kLost, rank, {}, why, 0});
}

void ControlHub::tell_all(int from, const Event& event) {
  for (size_t r = 0; r < inboxes_.size(); r++) {
    if (static_cast<int>(r) != from) add(static_cast<int>(r), event);
  }
}

void ControlHub::add(int to, Event event) {
  Inbox& inbox = *inboxes_[static_cast<size_t>(to)];
  {
    const std::lock_guard lock(inbox.mutex);
    if (inbox.departed) return;
    if (delays_) {
      event.visible_ns = delays_->visible_ns(event.from, to);
      if (event.kind == Event::Kind::kLeft) {
        event.visible_ns = std::max(event.visible_ns, delays_->settled_ns(event.from, to));
      }
      // Events from one rank keep their order.
      for (const Event& before : inbox.events) {
        if (before.from == event.from) event.visible_ns = std::max(event.visible_ns, before.visible_ns);
      }
    }
    inbox.events.push_back(std::move(event));
  }
  if (!delays_) deliver(to);
}

// Delivers events to a rank. One thread at a time does so, without a lock, so that the listener may send.
void ControlHub::deliver(int to) {
  Inbox& inbox = *inboxes_[static_cast<size_t>(to)];
  std::unique_lock lock(inbox.mutex);
  if (inbox.delivering != 0) return;
  inbox.delivering = 1;
  inbox.deliverer = std::this_thread::get_id();
  for (;;) {
    const uint64_t now = delays_ ? delays_->now_ns() : 0;
    auto it = inbox.events.begin();
    while (it != inbox.events.end() && it->visible_ns > now) ++it;
    ControlListener* const listener = inbox.listener;
    if (listener == nullptr || it == inbox.events.end()) break;
    const Event event = std::move(*it);
    inbox.events.erase(it);
    lock.unlock();
    if (event.kind == Event::Kind::kMessage) listener->on_message(event.from, event.message);
    if (event.kind == Event::Kind::kLeft) listener->on_peer_left(event.from);
    if (event.kind == Event::Kind::kLost) listener->on_peer_lost(event.from, event.why);
    lock.lock();
  }
  inbox.delivering = 0;
}

}  // namespace weft::loopback
