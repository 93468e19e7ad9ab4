// The pre-step: what a synchronised step does before gradients are communicated, if the reducer's options ask
// for it. The ranks compare their values (weft_reducer_options.check_interval), and one rank's buffers are
// broadcast (WEFT_REDUCER_BUFFERS). Part of a reducer's state; carried over when the reducer is bound to
// another communicator.
//
// Threads: open and arrive by the program's thread, before the step opens and after its pre-step is over. In
// between the memory belongs to Step.
#pragma once

#include <cstdint>
#include <vector>

#include "reducer/step/step_handshake.h"
#include "reducer/values/chunks.h"

namespace weft {

class PreStep {
 public:
  // Takes the options and manifest of the reducer.
  PreStep(const Manifest& manifest, bool buffers, int32_t root, uint32_t check_interval);

  bool compares() const { return interval_ != 0; }
  bool compares(uint64_t step) const { return interval_ != 0 && step % interval_ == 0; }
  // True if the step's begin must wait for the pre-step.
  bool due(uint64_t step) const { return !chunks_.empty() || compares(step); }
  const std::vector<Chunk>& chunks() const { return chunks_; }  // of the buffers
  std::byte* memory(const Manifest& manifest, size_t chunk) {
    return chunks_[chunk].direct ? home(chunks_[chunk], manifest) : staging_.data() + offsets_[chunk];
  }
  int32_t root_option() const { return root_; }
  uint32_t check_interval() const { return interval_; }
  // Returns the rank whose buffers are sent; -1 if no rank has data.
  int root(const StepHandshake& handshake, int size) const;

  // Called before the step: hashes the values if the step compares them, and packs the buffers if this rank
  // may be the root. Returns the digest of all values, or 0.
  uint64_t open(const Manifest& manifest, const Buckets& buckets, uint64_t step, bool may_be_root);
  // Called afterwards on the other ranks: unpacks the root's buffers.
  void arrive(const Manifest& manifest, const Buckets& buckets);
  bool may_be_root(int rank, bool has_data, int size) const;

  // Return the compared parameters and their digests, to find those that differ.
  const std::vector<uint32_t>& params() const { return params_; }
  const std::vector<uint64_t>& digests() const { return digests_; }
  uint64_t memory_bytes() const;

 private:
  const int32_t root_;
  const uint32_t interval_;
  std::vector<Chunk> chunks_;
  std::vector<uint64_t> offsets_;  // of each chunk in staging_
  Bytes staging_;
  std::vector<uint32_t> params_;
  std::vector<uint64_t> digests_;
};

// Returns the parameters whose values are equal on all ranks between steps. Buffers are not among them.
std::vector<uint32_t> compared_params(const Manifest& manifest);
void digest_values(const Manifest& manifest, const Buckets& buckets, const std::vector<uint32_t>& params,
                   std::vector<uint64_t>* digests);

}  // namespace weft
