// Errors that every rank finds in an agreement and is about to return (Comm::agreed_error). Ranks announce
// them to each other over the control channel. So if a rank ends because of such an error, the others fail
// with the error, and not with the loss of the rank.
//
// Threads: announce: any thread without the progress lock, in the same order on all ranks. withdraw: needs
// the progress lock. on_error and on_continues: the thread that delivers the control channel's messages.
// last_of: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

class Comm;

class AgreedErrors {
 public:
  // comm outlives it.
  explicit AgreedErrors(Comm& comm);

  // Sends the error to the other ranks, then waits until each of them has announced it or has left, or until
  // kPatienceMs have passed.
  void announce(const Status& error);
  // Withdraws the announced error, if there is one: this rank starts another operation.
  void withdraw() {
    if (stands_.load(std::memory_order_relaxed)) [[unlikely]]
      send_withdrawal();
  }
  // Returns the last error that another rank has announced and not withdrawn; ok if there is none.
  Status last_of(int rank);
  // Handle the control messages of these types, after the type byte.
  void on_error(int rank, ByteView message);
  void on_continues(int rank);

  static constexpr uint8_t kErrorMessage = 7;      // its result follows
  static constexpr uint8_t kContinuesMessage = 8;  // the sender continues in spite of its last error

 private:
  static constexpr int64_t kPatienceMs = 2000;
  struct Received {
    uint64_t count = 0;  // number of errors that the rank has announced
    Status last;         // the rank's last error; kOk once the rank has started another operation
  };

  void send_withdrawal();
  void send(ByteView message);
  bool others_found(uint64_t errors);

  Comm& comm_;
  std::mutex
      send_mutex_;  // orders the messages that this rank sends; ControlListener callbacks never take it
  uint64_t announced_ = 0;           // guarded by send_mutex_
  std::atomic<bool> stands_{false};  // written under send_mutex_
  std::mutex received_mutex_;
  std::vector<Received> received_;  // by rank; guarded by received_mutex_
};

}  // namespace weft
