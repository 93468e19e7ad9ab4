#include "reducer/feature/pre_step/pre_step_values.h"

#include "reducer/values/digests.h"

namespace weft {

std::vector<uint32_t> compared_params(const Manifest& manifest) {
  return params_with(manifest, WEFT_PARAM_STATE_ONLY, true);
}

void digest_values(const Manifest& manifest, const Buckets& buckets, const std::vector<uint32_t>& params,
                   std::vector<uint64_t>* digests) {
  for (size_t i = 0; i < params.size(); i++) {
    (*digests)[i] = digest_value(*buckets.place(params[i]).layout,
                                 static_cast<const std::byte*>(manifest.parameter(params[i])));
  }
}

PreStep::PreStep(const Manifest& manifest, bool buffers, int32_t root, uint32_t check_interval)
    : root_(root), interval_(check_interval) {
  if (buffers) chunks_ = make_chunks(manifest, params_with(manifest, WEFT_PARAM_BUFFER, false), kChunkBytes);
  uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) {
    offsets_.push_back(bytes);
    if (!chunk.direct) bytes += chunk.bytes;
  }
  staging_.resize(bytes);
  if (compares()) params_ = compared_params(manifest);
  digests_.resize(params_.size());
}

int PreStep::root(const StepHandshake& handshake, int size) const {
  if (root_ == WEFT_ROOT_LAST_ACTIVE) return handshake.last_active;
  return root_ < size ? root_ : 0;  // a shrink may have removed that rank
}

bool PreStep::may_be_root(int rank, bool has_data, int size) const {
  return root_ == WEFT_ROOT_LAST_ACTIVE ? has_data : rank == (root_ < size ? root_ : 0);
}

uint64_t PreStep::open(const Manifest& manifest, const Buckets& buckets, uint64_t step, bool may_be_root) {
  for (size_t i = 0; may_be_root && i < chunks_.size(); i++) {
    if (!chunks_[i].direct) pack(chunks_[i], manifest, buckets, memory(manifest, i));
  }
  if (!compares(step)) return 0;
  digest_values(manifest, buckets, params_, &digests_);
  return digest_range(digests_);
}

void PreStep::arrive(const Manifest& manifest, const Buckets& buckets) {
  for (size_t i = 0; i < chunks_.size(); i++) {
    if (!chunks_[i].direct) unpack(chunks_[i], manifest, buckets, memory(manifest, i));
  }
}

uint64_t PreStep::memory_bytes() const {
  uint64_t bytes = sizeof *this + staging_.capacity() + offsets_.capacity() * sizeof(uint64_t) +
                   params_.capacity() * sizeof(uint32_t) + digests_.capacity() * sizeof(uint64_t);
  for (const Chunk& chunk : chunks_) bytes += sizeof chunk + chunk.pieces.capacity() * sizeof(Piece);
  return bytes;
}

}  // namespace weft
