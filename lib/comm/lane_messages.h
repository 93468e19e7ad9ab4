// Confirmed messages from the owner of a lane on one rank to its owners on all others, over the control
// channel. They carry what every rank must know before this rank's next operation on the lane completes
// anywhere: for example, that a reducer's step has failed.
//
// Threads: listen, ignore and send: any thread. on_message: the thread that delivers the control channel's
// messages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft {

class Comm;

class LaneMessageListener {
 public:
  virtual ~LaneMessageListener() = default;
  // A note from another rank; its bytes are not validated. Called on the control thread, one call at a time;
  // must not block.
  virtual void on_lane_message(int rank, ByteView note) = 0;
};

class LaneMessages {
 public:
  // comm outlives it. first_id: of the first note.
  LaneMessages(Comm& comm, uint32_t first_id) : comm_(comm), next_id_(first_id) {}

  // Starts delivering the lane's notes to the listener. Every rank calls this before any of them can send a
  // note.
  void listen(uint32_t lane, std::shared_ptr<LaneMessageListener> listener);
  void ignore(uint32_t lane);
  // Sends a note to all other ranks, and waits until each has confirmed that its listener has received it. A
  // rank without a listener confirms as well. kTimeout names the ranks that have not; otherwise the
  // communicator's failure.
  Status send(uint32_t lane, ByteView note, Deadline deadline);
  // Handles a control message, after its type byte.
  void on_message(int rank, ByteReader& message);

  // Message type on the control channel; 4 and 5 are used by control/generations.h.
  static constexpr uint8_t kMessage = 6;
  static constexpr uint32_t kMaxBytes = 4096;  // of a note

 private:
  void deliver(uint32_t lane, int rank, ByteView note);
  // Returns the ranks that have not confirmed the note and are still there.
  std::vector<int> awaited(uint32_t id);

  Comm& comm_;
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<LaneMessageListener>> listeners_;  // by lane; guarded by mutex_
  std::map<uint32_t, std::vector<bool>> confirmed_;  // by note, then rank; guarded by mutex_
  uint32_t next_id_;                                 // guarded by mutex_
};

}  // namespace weft
