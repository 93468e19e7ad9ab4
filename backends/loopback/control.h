// The control channel between ranks of one process, without sockets or threads: for tests and the simulation.
// Events wait in the inbox of their receiver. A thread that adds one delivers all due events, unless another
// thread is delivering. With Delays events become due later, and the rank's own poll() delivers them.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "fabric.h"
#include "transport/control.h"

namespace weft::loopback {

// The inboxes of all ranks. Threads: any thread.
class ControlHub {
 public:
  // clock outlives the hub.
  ControlHub(int size, Clock& clock, std::shared_ptr<Delays> delays = nullptr);
  ~ControlHub();

  // Returns the control channel of a rank; once for each rank.
  static std::unique_ptr<Control> connect(const std::shared_ptr<ControlHub>& hub, int rank);
  // Simulates the death of a rank: the other ranks receive it as from a socket or a pidfd.
  void kill(int rank, Evidence evidence, const std::string& text);
  // Delivers the due events of a rank.
  void poll(int rank) { deliver(rank); }

 private:
  friend class LoopbackControl;
  struct Event;
  struct Inbox;

  void add(int to, Event event);
  void tell_all(int from, const Event& event);
  void deliver(int to);

  Clock& clock_;
  const std::shared_ptr<Delays> delays_;
  std::vector<std::unique_ptr<Inbox>> inboxes_;
};

}  // namespace weft::loopback
