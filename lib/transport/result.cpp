#include "transport/result.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

constexpr uint32_t kMaxResultText = 2048;

}  // namespace

Bytes encode_result(const Status& result) {
  const ErrorInfo& info = result.info();
  ByteWriter writer;
  writer.put(info.code).put(info.evidence).put(static_cast<uint32_t>(info.ranks.size()));
  for (const int rank : info.ranks) writer.put(static_cast<int32_t>(rank));
  return writer.put_string(std::string_view(info.text).substr(0, kMaxResultText)).take();
}

bool decode_result(ByteView bytes, int size, Status* result) {
  ByteReader reader(bytes);
  ErrorInfo info;
  info.code = reader.get<Code>();
  info.evidence = reader.get<Evidence>();
  const auto count = reader.get<uint32_t>();
  if (count > static_cast<uint32_t>(size)) return false;
  for (uint32_t i = 0; i < count; i++) {
    const auto rank = reader.get<int32_t>();
    if (rank < 0 || rank >= size || (i > 0 && rank <= info.ranks.back())) return false;
    info.ranks.push_back(rank);
  }
  info.text = reader.get_string(kMaxResultText);
  if (!reader.done() || info.code < Code::kOk || info.code > kLastCode) return false;
  if (info.evidence < Evidence::kNone || info.evidence > Evidence::kReport) return false;
  if (info.code != Code::kOk) {
    *result = Status(std::move(info));
    return true;
  }
  *result = Status();
  return info.evidence == Evidence::kNone && info.ranks.empty() && info.text.empty();
}

}  // namespace weft
