// The memory that MPI sends from and receives into: slots of kSlotBytes, each with its request. MPI cannot be
// made to release a slot while a rank does not answer, so what MPI still uses when a link ends is never freed
// (abandon). Threads: guarded by MpiLink's mutex.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "library.h"

namespace weft::mpi {

inline constexpr int kFrameTag = 0;
inline constexpr size_t kSlotBytes = 64 * 1024;

// Slots that frames are sent from.
class SendSlots {
 public:
  void allocate();
  bool allocated() const { return memory_ != nullptr; }
  bool full() const { return free_.empty(); }
  bool idle() const { return free_.size() == kCount; }

  // Copies a frame into a free slot and starts to send it. Returns MPI's error; then the slot is free again.
  int send(MPI_Comm comm, int peer, ByteView head, ByteView data);
  // Frees the slots of sent frames, and calls failed(peer, error) for each that was not sent. Returns true if
  // it freed any. *error: MPI's error if it cannot send any more.
  template <class Failed>
  bool reclaim(int* error, Failed&& failed) {
    bool single = false;
    const int count = test(error, &single);
    for (int i = 0; i < count; i++) {
      const auto slot = static_cast<size_t>(completed_[static_cast<size_t>(i)]);
      const int failure = !single ? MPI_SUCCESS : statuses_[static_cast<size_t>(i)].MPI_ERROR;
      free_.push_back(slot);
      if (failure != MPI_SUCCESS) failed(peers_[slot], failure);
    }
    return count > 0;
  }
  // Gives up the requests of all slots. Nothing is sent afterwards.
  std::vector<MPI_Request> take_requests() { return std::exchange(requests_, {}); }
  void abandon() { static_cast<void>(memory_.release()); }

 private:
  static constexpr size_t kCount = 32;

  int test(int* error, bool* single);

  std::unique_ptr<std::byte[]> memory_;
  std::vector<MPI_Request> requests_;  // of each slot; null: free
  std::vector<int> peers_;
  std::vector<size_t> free_;
  std::vector<int> completed_;        // for MPI_Testsome
  std::vector<MPI_Status> statuses_;  // the same
};

// Slots that frames from any rank are received into, in the order in which their receives were posted. So
// each sender's order is kept.
class ReceiveSlots {
 public:
  // Allocates the slots and posts their receives. Returns MPI's error.
  int post_all(MPI_Comm comm);
  // Sets *received if the receive that was posted first has its frame, which *frame is until repost. Returns
  // MPI's error.
  int test(bool* received, ByteView* frame);
  // Posts the receive of the frame's slot again. Returns MPI's error.
  int repost(MPI_Comm comm);
  // Cancels the receives. Returns their requests, which are then to be completed.
  std::vector<MPI_Request>& cancel();
  void abandon() { static_cast<void>(memory_.release()); }

 private:
  static constexpr size_t kCount = 32;

  int post(MPI_Comm comm, size_t slot);

  std::unique_ptr<std::byte[]> memory_;
  std::vector<MPI_Request> requests_;  // of each slot
  size_t next_ = 0;                    // the slot whose receive was posted first
};

}  // namespace weft::mpi
