#include "reducer/values/chunks.h"

#include <algorithm>

#include "base/text.h"

namespace weft {

std::vector<uint32_t> params_with(const Manifest& manifest, uint64_t flags, bool reduced) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < manifest.params.size(); i++) {
    const Param& p = manifest.params[i];
    if (p.reduced() ? reduced : (p.flags & flags) != 0) out.push_back(i);
  }
  return out;
}

Status without_value(const Manifest& manifest, uint64_t param) {
  const std::string name = manifest.named(param);
  if (!manifest.params[param].on_device())
    return Status::error(Code::kArg, name + " has no value: weft_param.parameter is NULL");
  return Status::error(
      Code::kUnsupported,
      name +
          " is on a CUDA device: this version broadcasts, gathers and compares values only in host memory "
          "(weft_broadcast accepts device memory)");
}

Status check_values(const Manifest& manifest, const std::vector<uint32_t>& params, uint64_t* missing) {
  for (const uint32_t param : params) {
    const Param& p = manifest.params[param];
    if ((manifest.parameter(param) != nullptr && !p.on_device()) || p.count == 0) continue;
    if (missing != nullptr) *missing = uint64_t{param} + 1;
    return without_value(manifest, param);
  }
  return {};
}

std::vector<Chunk> make_chunks(const Manifest& manifest, const std::vector<uint32_t>& params,
                               uint64_t chunk_bytes) {
  std::vector<Chunk> chunks;
  for (const uint32_t param : params) {
    const Param& p = manifest.params[param];
    const uint64_t element = dtype_size(p.dtype);
    for (uint64_t first = 0; first < p.count;) {
      const bool room = !chunks.empty() && chunks.back().bytes + element <= chunk_bytes;
      Chunk& chunk = room ? chunks.back() : chunks.emplace_back();
      const uint64_t count = std::min(p.count - first, (chunk_bytes - chunk.bytes) / element);
      chunk.pieces.push_back({param, first, count, count * element});
      chunk.bytes += count * element;
      first += count;
    }
  }
  for (Chunk& chunk : chunks) {
    chunk.direct = chunk.pieces.size() == 1 && manifest.params[chunk.pieces.front().param].dense;
  }
  return chunks;
}

namespace {

std::byte* value(const Manifest& manifest, uint32_t param) {
  return static_cast<std::byte*>(manifest.parameter(param));
}

}  // namespace

void pack(const Chunk& chunk, const Manifest& manifest, const Buckets& buckets, std::byte* packed) {
  for (const Piece& piece : chunk.pieces) {
    buckets.place(piece.param).layout->pack(value(manifest, piece.param), packed, piece.first, piece.count);
    packed += piece.bytes;
  }
}

void unpack(const Chunk& chunk, const Manifest& manifest, const Buckets& buckets, const std::byte* packed) {
  for (const Piece& piece : chunk.pieces) {
    buckets.place(piece.param).layout->unpack(packed, value(manifest, piece.param), piece.first, piece.count);
    packed += piece.bytes;
  }
}

std::byte* home(const Chunk& chunk, const Manifest& manifest) {
  const Piece& piece = chunk.pieces.front();
  return value(manifest, piece.param) + piece.first * dtype_size(manifest.params[piece.param].dtype);
}

}  // namespace weft
