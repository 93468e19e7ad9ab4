#include "rendezvous/store_protocol.h"

#include <algorithm>

#include "environment/launch.h"
#include "transport/exchange.h"

namespace weft::store {
namespace {

constexpr auto kMostBytes = static_cast<uint32_t>(Exchange::kMaxBytes);

// Reads the type; returns true if it is the given one.
bool begins(ByteReader& reader, Type type) {
  return reader.get<Type>() == type && reader.ok();
}

void put_ranks(ByteWriter& writer, const std::vector<int>& ranks) {
  const size_t count = std::min(ranks.size(), kMaxRanksInText);
  writer.put(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; i++) writer.put(static_cast<int32_t>(ranks[i]));
}

bool get_ranks(ByteReader& reader, std::vector<int>* ranks) {
  const uint32_t count = reader.get<uint32_t>();
  if (!reader.ok() || count > kMaxRanksInText) return false;
  ranks->clear();
  for (uint32_t i = 0; i < count; i++) {
    const int32_t rank = reader.get<int32_t>();
    if (rank < 0 || rank >= kMaxRanks) return false;
    ranks->push_back(rank);
  }
  return reader.ok();
}

bool known(Code code) {
  return code > Code::kOk && code <= kLastCode;
}
bool known(Evidence evidence) {
  return evidence >= Evidence::kNone && evidence <= Evidence::kReport;
}

}  // namespace

Type type_of(ByteView frame) {
  return frame.empty() ? Type(0) : static_cast<Type>(frame[0]);
}

Bytes encode(const Join& join) {
  ByteWriter writer;
  writer.put(Type::kJoin).put_string(std::string_view(join.job).substr(0, kMaxJob));
  return writer.put(join.sequence).put(join.rank).put(join.size).take();
}
bool decode(ByteView frame, Join* join) {
  ByteReader reader(frame);
  if (!begins(reader, Type::kJoin)) return false;
  join->job = reader.get_string(kMaxJob);
  join->sequence = reader.get<uint64_t>();
  join->rank = reader.get<int32_t>();
  join->size = reader.get<int32_t>();
  return reader.done();
}

Bytes encode(const Give& give) {
  ByteWriter writer;
  return writer.put(Type::kGive).put(give.round).put_bytes(give.bytes).take();
}
bool decode(ByteView frame, Give* give) {
  ByteReader reader(frame);
  if (!begins(reader, Type::kGive)) return false;
  give->round = reader.get<uint64_t>();
  const ByteView bytes = reader.get_bytes(kMostBytes);
  give->bytes.assign(bytes.begin(), bytes.end());
  return reader.done();
}

Bytes encode_result(uint64_t round, const std::vector<Bytes>& parts, size_t first, size_t* next) {
  size_t end = first;
  for (size_t size = 0; end < parts.size() && (end == first || size + parts[end].size() <= kPartBytes);
       end++) {
    size += parts[end].size();
  }
  ByteWriter writer;
  writer.put(Type::kResult)
      .put(round)
      .put(static_cast<int32_t>(first))
      .put(static_cast<uint32_t>(end - first));
  for (size_t i = first; i < end; i++) writer.put_bytes(parts[i]);
  *next = end;
  return writer.take();
}
bool decode(ByteView frame, Result* result) {
  ByteReader reader(frame);
  if (!begins(reader, Type::kResult)) return false;
  result->round = reader.get<uint64_t>();
  result->first = reader.get<int32_t>();
  const uint32_t count = reader.get<uint32_t>();
  result->parts.clear();
  // Every part takes at least its length field, so a count cannot exceed what the frame holds.
  for (uint32_t i = 0; i < count && reader.ok(); i++) {
    const ByteView part = reader.get_bytes(kMostBytes);
    result->parts.emplace_back(part.begin(), part.end());
  }
  return reader.done();
}

Bytes encode(const Missing& missing) {
  ByteWriter writer;
  writer.put(Type::kMissing);
  put_ranks(writer, missing.ranks);
  return writer.put_string(std::string_view(missing.note).substr(0, kMaxText)).take();
}
bool decode(ByteView frame, Missing* missing) {
  ByteReader reader(frame);
  if (!begins(reader, Type::kMissing) || !get_ranks(reader, &missing->ranks)) return false;
  missing->note = reader.get_string(kMaxText);
  return reader.done();
}

Bytes encode_failed(const Status& status) {
  const ErrorInfo& info = status.info();
  ByteWriter writer;
  writer.put(Type::kFailed).put(info.code).put(info.evidence);
  put_ranks(writer, info.ranks);
  return writer.put_string(std::string_view(info.text).substr(0, kMaxText)).take();
}
bool decode_failed(ByteView frame, Status* status) {
  ByteReader reader(frame);
  if (!begins(reader, Type::kFailed)) return false;
  const Code code = reader.get<Code>();
  const Evidence evidence = reader.get<Evidence>();
  std::vector<int> ranks;
  if (!known(code) || !known(evidence) || !get_ranks(reader, &ranks)) return false;
  const std::string text = reader.get_string(kMaxText);
  if (!reader.done()) return false;
  // An error local to another rank is a report here.
  const Evidence here = evidence == Evidence::kLocal ? Evidence::kReport : evidence;
  *status = Status::error(code, text, here).with_ranks(ranks);
  return true;
}

Bytes encode_plain(Type type) {
  return {static_cast<std::byte>(type)};
}

}  // namespace weft::store
