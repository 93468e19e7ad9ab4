#include "transport/exchange.h"

#include "base/text.h"
#include "transport/result.h"

namespace weft {

Status agree_on(Exchange& exchange, const Status& mine, Deadline deadline) {
  std::vector<Bytes> all;
  const Bytes result = encode_result(mine.with_ranks({}));
  if (const Status told = exchange.all_gather(result, &all, deadline); !told.ok())
    return mine.ok() ? told : mine;
  if (!mine.ok()) return mine;
  for (size_t r = 0; r < all.size(); r++) {
    const int name = exchange.name(static_cast<int>(r));
    Status theirs;
    if (!decode_result(all[r], exchange.size(), &theirs)) {
      return Status::error(Code::kInternal, cat("internal: rank ", name, " sent a malformed result of ",
                                                all[r].size(), " bytes; report this as a bug of Weft"))
          .with_ranks({name});
    }
    if (theirs.ok()) continue;
    return Status::error(theirs.code(), cat("rank ", name, ": ", theirs.text()), Evidence::kReport)
        .with_ranks({name});
  }
  return {};
}

}  // namespace weft
