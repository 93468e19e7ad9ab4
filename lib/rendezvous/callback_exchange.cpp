#include "rendezvous/callback_exchange.h"

#include <algorithm>

#include "base/interrupt.h"
#include "base/text.h"

namespace weft {

Status CallbackExchange::call(const void* mine, uint64_t size, void* all) {
  if (Interrupt::ask()) return Interrupt::status();
  const int32_t result = all_gather_(user_data_, mine, size, all);
  if (result == 0) return {};
  return Status::error(
      Code::kPeerFailed,
      cat("weft_comm_options.all_gather returned ", result, " on this rank; 0 means success"),
      Evidence::kReport);
}

Status CallbackExchange::all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) {
  const auto ranks = static_cast<size_t>(size_);
  const uint64_t my_size = mine.size();
  std::vector<uint64_t> sizes(ranks);
  WEFT_TRY(call(&my_size, sizeof my_size, sizes.data()));
  // All ranks check the same sizes, so no rank continues to the second round alone.
  for (int rank = 0; rank < size_; rank++) {
    const uint64_t size = sizes[static_cast<size_t>(rank)];
    if (size <= kMaxBytes) continue;
    if (size == kRefused) {
      return Status::error(Code::kMismatch, cat("rank ", rank, " was refused: see its error"),
                           Evidence::kReport)
          .with_ranks({rank});
    }
    return Status::error(Code::kMismatch,
                         cat("weft_comm_options.all_gather returned a size of ", size, " bytes for rank ",
                             rank, "; at most ", kMaxBytes,
                             " are sent: it must return the ranks' bytes unchanged, in rank order"))
        .with_ranks({rank});
  }
  if (sizes[static_cast<size_t>(rank_)] != my_size) {
    return Status::error(Code::kMismatch,
                         cat("weft_comm_options.all_gather returned ", sizes[static_cast<size_t>(rank_)],
                             " at the place of rank ", rank_, ", which gave ", my_size,
                             ": it must return the ranks' bytes unchanged, in rank order"));
  }
  const uint64_t padded = *std::max_element(sizes.begin(), sizes.end());
  all->assign(ranks, {});
  if (padded > 0) {
    Bytes sent(mine.begin(), mine.end());
    sent.resize(padded);
    Bytes received(padded * ranks);
    WEFT_TRY(call(sent.data(), padded, received.data()));
    for (size_t rank = 0; rank < ranks; rank++) {
      const auto begin = received.begin() + static_cast<ptrdiff_t>(rank * padded);
      (*all)[rank].assign(begin, begin + static_cast<ptrdiff_t>(sizes[rank]));
    }
  }
  if (!deadline.expired(clock_)) return {};
  return Status::error(
      Code::kTimeout,
      "weft_comm_options.all_gather returned after the deadline (weft_comm_options.init_timeout_ms)",
      Evidence::kDeadline);
}

}  // namespace weft
