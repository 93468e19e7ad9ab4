#include "reducer/vote.h"

#include <cstring>

namespace weft {
namespace {

constexpr uint32_t kMaxReason = 4096;

}  // namespace

Bytes encode(const Vote& vote) {
  ByteWriter writer;
  writer.put(vote.code).put_string(std::string_view(vote.reason).substr(0, kMaxReason)).put_raw(vote.content);
  return writer.take();
}

bool decode(ByteView bytes, Vote* vote) {
  ByteReader reader(bytes);
  vote->code = reader.get<Code>();
  vote->reason = reader.get_string(kMaxReason);
  const ByteView content = reader.get_raw(vote->content.size());
  if (!reader.done() || vote->code < Code::kOk || vote->code > kLastCode) return false;
  std::memcpy(vote->content.data(), content.data(), content.size());
  return true;
}

}  // namespace weft
