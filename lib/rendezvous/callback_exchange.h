// The Exchange over the program's own all-gather (weft_all_gather_fn), in rounds of equal size: first the
// sizes of all ranks, then their bytes, padded to the largest. The program's channel is trusted, but its
// results are validated. A callback cannot be interrupted, so the deadline is checked only after it returns.
//
// The very first round always consists of one uint64_t. A rank whose arguments were rejected before this
// point may send kRefused in it; all other ranks then return kMismatch. include/weft/weft_mpi.h does this and
// is compiled into programs, so neither the round nor the value may change.
#pragma once

#include <weft/weft.h>

#include "transport/exchange.h"

namespace weft {

class CallbackExchange final : public Exchange {
 public:
  static constexpr uint64_t kRefused = UINT64_MAX;

  CallbackExchange(int rank, int size, weft_all_gather_fn all_gather, void* user_data, Clock& clock)
      : rank_(rank), size_(size), all_gather_(all_gather), user_data_(user_data), clock_(clock) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override;

 private:
  Status call(const void* mine, uint64_t size, void* all);

  const int rank_;
  const int size_;
  const weft_all_gather_fn all_gather_;
  void* const user_data_;
  Clock& clock_;
};

}  // namespace weft
