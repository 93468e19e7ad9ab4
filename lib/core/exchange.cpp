#include "core/exchange.h"

#include "base/text.h"

namespace weft {

Status agree_on(Exchange& exchange, const Status& mine, Deadline deadline) {
  ByteWriter writer;
  writer.put(mine.code()).put_string(std::string_view(mine.text()).substr(0, 2048));
  std::vector<Bytes> all;
  if (const Status told = exchange.all_gather(writer.bytes(), &all, deadline); !told.ok())
    return mine.ok() ? told : mine;
  if (!mine.ok()) return mine;
  for (size_t r = 0; r < all.size(); r++) {
    ByteReader reader(all[r]);
    const auto code = reader.get<Code>();
    const std::string text = reader.get_string(4096);
    if (!reader.done()) return Status::error(Code::kInternal, cat("rank ", r, " sent a malformed result"));
    if (code == Code::kOk) continue;
    return Status::error(code, cat("rank ", r, ": ", text), Evidence::kReport)
        .with_ranks({static_cast<int>(r)});
  }
  return {};
}

}  // namespace weft
