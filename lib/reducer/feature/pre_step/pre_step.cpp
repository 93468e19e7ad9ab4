#include "reducer/feature/pre_step/pre_step.h"

#include "base/text.h"
#include "core/context.h"
#include "reducer/grace.h"
#include "reducer/reducer.h"
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

// Waits, in an open step, for the pre-step before its gradients. If that fails the step is over.
Status Reducer::await_pre_step(int64_t timeout_ms) {
  ReducerState& s = *state_;
  if (!s.pre_step || !s.pre_step->due(start_.number)) return {};
  Context& context = s.comm->context();
  const uint64_t entered_ns = context.clock().now_ns();
  const Deadline deadline = s.comm->op_deadline(timeout_ms);
  step_->set_deadline(deadline);
  context.engine().wait([&] { return step_->pre_step_done(stamp_) || step_->finished(stamp_); },
                        with_grace(deadline));
  if (step_->pre_step_done(stamp_)) {
    step_->set_deadline(Deadline::never());
    const int root = s.pre_step->root(step_->handshake(), s.comm->size());
    if (root >= 0 && root != s.comm->rank()) s.pre_step->arrive(s.manifest, *s.buckets);
    return {};
  }
  if (step_->finished(stamp_) && step_->handshake().outcome != StepOutcome::kReduce) {
    // finish() handles all other outcomes.
    if (step_->handshake().outcome != StepOutcome::kDiffers) return {};
    const std::vector<int> stale = step_->handshake().joined;
    WEFT_TRY(not_reduced());
    return note(name_difference(s.pre_step->params(), s.pre_step->digests(), stale, deadline)
                    .with_prefix(cat("step ", start_.number, " cannot begin: ")));
  }
  return wait_for_step(entered_ns, false, timeout_ms);
}

}  // namespace weft
