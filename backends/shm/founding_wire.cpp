#include "founding_wire.h"

#include <algorithm>

#include "base/text.h"
#include "core/result.h"
#include "layout.h"

namespace weft::shm {
namespace {

constexpr uint32_t kMaxResult = 4096;

}  // namespace

Bytes encode(const Introduction& introduction) {
  ByteWriter writer;
  writer.put(kMagic);
  introduction.process.put(writer);
  writer.put(introduction.node);
  writer.put(introduction.arena_bytes).put(introduction.needed_bytes).put(introduction.available_bytes);
  return writer.take();
}

bool decode(ByteView bytes, Introduction* introduction) {
  ByteReader reader(bytes);
  if (reader.get<uint64_t>() != kMagic) return false;
  introduction->process = ProcessIdentity::get(reader);
  introduction->node = reader.get<int32_t>();
  introduction->arena_bytes = reader.get<uint64_t>();
  introduction->needed_bytes = reader.get<uint64_t>();
  introduction->available_bytes = reader.get<uint64_t>();
  return reader.done() && introduction->node >= kNoNode && introduction->node < kMostNodes;
}

Bytes encode(const Introduced& introduced) {
  ByteWriter writer;
  writer.put(introduced.nonce).put(introduced.mapping).put(introduced.nonce_address).put(introduced.base);
  return writer.take();
}

bool decode(ByteView bytes, Introduced* introduced) {
  ByteReader reader(bytes);
  introduced->nonce = reader.get<uint64_t>();
  introduced->mapping = reader.get<uint64_t>();
  introduced->nonce_address = reader.get<uint64_t>();
  introduced->base = reader.get<uint64_t>();
  return reader.done();
}

Bytes encode(const Verdict& verdict) {
  ByteWriter writer;
  return writer.put_bytes(encode_result(verdict.status.with_ranks({})))
      .put(verdict.answers)
      .put(verdict.thresholds.one_shot)
      .put(verdict.thresholds.pull)
      .put(verdict.thresholds.two_level)
      .put(static_cast<uint8_t>(verdict.thresholds.origin))
      .take();
}

bool decode(ByteView bytes, Verdict* verdict) {
  ByteReader reader(bytes);
  const ByteView result = reader.get_bytes(kMaxResult);
  verdict->answers = reader.get<uint8_t>();
  verdict->thresholds.one_shot = reader.get<uint64_t>();
  verdict->thresholds.pull = reader.get<uint64_t>();
  verdict->thresholds.two_level = reader.get<uint64_t>();
  const auto origin = reader.get<uint8_t>();
  verdict->thresholds.origin = static_cast<Thresholds::Origin>(origin);
  return reader.done() && verdict->answers <= kAllAnswers && verdict->thresholds.one_shot <= kHalfBytes &&
         origin <= static_cast<uint8_t>(Thresholds::Origin::kGiven) &&
         decode_result(result, 0, &verdict->status);
}

Status check_memory(const std::vector<Introduction>& ranks) {
  uint64_t needed = 0;
  uint64_t available = UINT64_MAX;
  for (const Introduction& rank : ranks) {
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
