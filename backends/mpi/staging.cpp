#include "staging.h"

#include <cstring>

namespace weft::mpi {

void SendSlots::allocate() {
  memory_ = std::make_unique<std::byte[]>(kCount * kSlotBytes);
  requests_.assign(kCount, MPI_REQUEST_NULL);
  peers_.resize(kCount);
  completed_.resize(kCount);
  statuses_.resize(kCount);
  for (size_t i = 0; i < kCount; i++) free_.push_back(i);
}

// Uses a synchronous send: it completes when the receiver has begun to receive. A standard send may complete
// when MPI has buffered the data, and only further MPI calls would send it on.
int SendSlots::send(MPI_Comm comm, int peer, ByteView head, ByteView data) {
  const size_t slot = free_.back();
  free_.pop_back();
  std::byte* const to = memory_.get() + slot * kSlotBytes;
  std::memcpy(to, head.data(), head.size());
  if (!data.empty()) std::memcpy(to + head.size(), data.data(), data.size());
  peers_[slot] = peer;
  const int error = MPI_Issend(to, static_cast<int>(head.size() + data.size()), MPI_BYTE, peer, kFrameTag,
                               comm, &requests_[slot]);
  if (error == MPI_SUCCESS) return error;
  requests_[slot] = MPI_REQUEST_NULL;
  free_.push_back(slot);
  return error;
}

// Returns how many sends have ended: completed_ has their slots. *single: statuses_ has the error of each.
int SendSlots::test(int* error, bool* single) {
  *error = MPI_SUCCESS;
  if (idle()) return 0;
  int count = 0;
  const int result = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  completed_.data(), statuses_.data());
  int kind = MPI_ERR_OTHER;
  if (result != MPI_SUCCESS) MPI_Error_class(result, &kind);
  *single = result != MPI_SUCCESS && kind == MPI_ERR_IN_STATUS;
  if (result != MPI_SUCCESS && !*single) {
    *error = result;
    return 0;
  }
  return count == MPI_UNDEFINED ? 0 : count;
}

int ReceiveSlots::post_all(MPI_Comm comm) {
  memory_ = std::make_unique<std::byte[]>(kCount * kSlotBytes);
  requests_.assign(kCount, MPI_REQUEST_NULL);
  for (size_t i = 0; i < kCount; i++) {
    const int error = post(comm, i);
    if (error != MPI_SUCCESS) return error;
  }
  return MPI_SUCCESS;
}

int ReceiveSlots::post(MPI_Comm comm, size_t slot) {
  return MPI_Irecv(memory_.get() + slot * kSlotBytes, static_cast<int>(kSlotBytes), MPI_BYTE, MPI_ANY_SOURCE,
                   kFrameTag, comm, &requests_[slot]);
}

int ReceiveSlots::test(bool* received, ByteView* frame) {
  *received = false;
  if (requests_.empty()) return MPI_SUCCESS;
  int done = 0;
  MPI_Status status{};
  int error = MPI_Test(&requests_[next_], &done, &status);
  if (error != MPI_SUCCESS || done == 0) return error;
  int bytes = 0;
  error = MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (error != MPI_SUCCESS) return error;
  *received = true;
  *frame = ByteView(memory_.get() + next_ * kSlotBytes, static_cast<size_t>(bytes));
  return MPI_SUCCESS;
}

int ReceiveSlots::repost(MPI_Comm comm) {
  const int error = post(comm, next_);
  if (error == MPI_SUCCESS) next_ = (next_ + 1) % kCount;
  return error;
}

std::vector<MPI_Request>& ReceiveSlots::cancel() {
  for (MPI_Request& request : requests_) {
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  }
  return requests_;
}

}  // namespace weft::mpi
