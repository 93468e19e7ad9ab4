// The Exchange over the program's own all-gather (weft_all_gather_fn): fixed-size rounds, first everybody's
// size, then everybody's bytes filled up to the largest. The program's channel is trusted, its results are
// checked all the same. It cannot be interrupted, so a deadline is noticed only afterwards.
//
// The very first round is always of one uint64_t. A rank that was refused before it came here may give
// kRefused in it, and the others return kMismatch, all alike: include/weft/weft_mpi.h, which is compiled into
// programs, does. So neither may change.
#pragma once

#include <weft/weft.h>

#include "core/exchange.h"

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
