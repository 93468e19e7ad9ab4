#include "group_setup_wire.h"

#include <algorithm>

#include "base/text.h"
#include "layout.h"
#include "transport/result.h"

namespace weft::shm {
namespace {

constexpr uint32_t kMaxResult = 4096;

}  // namespace

Bytes encode(const RankInfo& rank_info) {
  ByteWriter writer;
  writer.put(kMagic);
  rank_info.process.put(writer);
  writer.put(rank_info.nonce)
      .put(rank_info.arena_bytes)
      .put(rank_info.needed_bytes)
      .put(rank_info.available_bytes);
  return writer.take();
}

bool decode(ByteView bytes, RankInfo* rank_info) {
  ByteReader reader(bytes);
  if (reader.get<uint64_t>() != kMagic) return false;
  rank_info->process = ProcessIdentity::get(reader);
  rank_info->nonce = reader.get<uint64_t>();
  rank_info->arena_bytes = reader.get<uint64_t>();
  rank_info->needed_bytes = reader.get<uint64_t>();
  rank_info->available_bytes = reader.get<uint64_t>();
  return reader.done();
}

Bytes encode(const AddressInfo& address_info) {
  ByteWriter writer;
  return writer.put(address_info.nonce).put(address_info.segment).take();
}

bool decode(ByteView bytes, AddressInfo* address_info) {
  ByteReader reader(bytes);
  address_info->nonce = reader.get<uint64_t>();
  address_info->segment = reader.get<uint64_t>();
  return reader.done();
}

Bytes encode(const SetupResult& setup_result) {
  ByteWriter writer;
  return writer.put_bytes(encode_result(setup_result.status.with_ranks({})))
      .put(setup_result.answers)
      .put(setup_result.thresholds.one_shot)
      .put(setup_result.thresholds.pull)
      .put(static_cast<uint8_t>(setup_result.thresholds.origin))
      .take();
}

bool decode(ByteView bytes, SetupResult* setup_result) {
  ByteReader reader(bytes);
  const ByteView result = reader.get_bytes(kMaxResult);
  setup_result->answers = reader.get<uint8_t>();
  setup_result->thresholds.one_shot = reader.get<uint64_t>();
  setup_result->thresholds.pull = reader.get<uint64_t>();
  const auto origin = reader.get<uint8_t>();
  setup_result->thresholds.origin = static_cast<Thresholds::Origin>(origin);
  return reader.done() && setup_result->answers <= kAllAnswerBits &&
         setup_result->thresholds.one_shot <= kHalfBytes &&
         origin <= static_cast<uint8_t>(Thresholds::Origin::kGiven) &&
         decode_result(result, 0, &setup_result->status);
}

Status check_memory(const std::vector<RankInfo>& ranks) {
  uint64_t needed = 0;
  uint64_t available = UINT64_MAX;
  for (const RankInfo& rank : ranks) {
    needed += std::min(rank.needed_bytes, UINT64_MAX - needed);
    available = std::min(available, rank.available_bytes);
  }
  if (needed <= available) return {};
  return Status::error(
      Code::kNoMemory,
      cat("the arenas' allocated ", bytes_text(needed),
          " are needed a second time until the old communicator is destroyed, and the host has only ",
          bytes_text(available), " left: free arena memory first"));
}

}  // namespace weft::shm
