// The paths through staging. They only require that this process can access the user's buffers. Called by the
// lane under the progress lock.
#include "path.h"

namespace weft::shm {

Paths::Paths(PathContext& context)
    : staged(make_staged(context)),
      two_shot(make_two_shot(context)),
      mapped(make_mapped(context)),
      owner(make_owner(context)),
      pulled(make_pulled(context)),
      owner_pulled(make_owner_pulled(context)) {}

Status Path::ensure_staging() {
  if (staging_ready_) return {};
  for (int r = 0; r < context_.group.size(); r++) {
    WEFT_TRY(context_.group.ensure(r, context_.staging, kStagingBytes));
  }
  staging_ready_ = true;
  return {};
}

namespace {

// Any collective: every rank's input passes through its ring, one chunk of every block at a time.
class StagedPath final : public Path {
 public:
  using Path::Path;
  const char* name() const override { return "staged"; }

  Status begin(const Operation& op, Rounds* rounds) override {
    part_ = op.src_blocks == 1 ? kChunkBytes : kChunkBytes / static_cast<uint64_t>(op.size) / 64 * 64;
    *rounds = {divide_up(op.bytes, part_), true, false, true, kChunkBytes};
    return ensure_staging();
  }

  Status in(const Operation& op, uint64_t round) override {
    const Range range = part_of(op.bytes, part_, round);
    std::byte* const to = chunk(op.rank, round);
    for (int b = 0; b < op.src_blocks; b++) {
      if (op.src_blocks > 1 && b == op.rank) continue;
      const auto block = static_cast<uint64_t>(b);
      std::memcpy(to + block * part_, op.input() + block * op.bytes + range.offset, range.bytes);
    }
    context_.group.count_shared(range.bytes * static_cast<uint64_t>(op.src_blocks));
    return {};
  }

  Status out(const Operation& op, uint64_t round) override {
    struct Source {
      StagedPath& path;
      uint64_t round;
      uint64_t skip;  // offset of the block that this rank wants
      Status view(int peer, uint64_t, const std::byte** at) {
        *at = path.chunk(peer, round) + skip;
        return {};
      }
      Status copy(int peer, uint64_t bytes, std::byte* to) {
        std::memcpy(to, path.chunk(peer, round) + skip, bytes);
        return {};
      }
    };
    const Range range = part_of(op.bytes, part_, round);
    const uint64_t skip = op.src_blocks == 1 ? 0 : static_cast<uint64_t>(op.rank) * part_;
    WEFT_TRY(take_range(context_.group, op, range.offset, range.bytes, context_.inputs.data(),
                        Source{*this, round, skip}));
    // All-gathers (Take::kEach) of more than a half are no faster with this.
    const int peer = op.only_source();
    if (peer >= 0 && op.take != Operation::Take::kEach) {
      write_read_lines(chunk(peer, round) + skip, range.bytes);
    }
    return {};
  }

 private:
  uint64_t part_ = 0;  // bytes of a block in a round
};

// all_reduce: a round is divided among the ranks. Each rank folds its slice out of all rings and leaves the
// result in each of them in place of the input. Every rank then copies the result out of its own ring. So two
// cores pass every line back and forth, and each writes it in turn. A write to a line that another core has
// only read since costs several times as much, because it needs a request to all caches.
class TwoShotPath final : public Path {
 public:
  using Path::Path;
  const char* name() const override { return "two-shot"; }

  Status begin(const Operation& op, Rounds* rounds) override {
    *rounds = {divide_up(op.bytes, kChunkBytes), true, true, true, kChunkBytes, false, true};
    return ensure_staging();
  }

  // Round 0 may be staged before begin().
  Status in(const Operation& op, uint64_t round) override {
    WEFT_TRY(ensure_staging());
    const Range range = part_of(op.bytes, kChunkBytes, round);
    const Range own = slice(op, range, op.rank);
    const std::byte* const from = op.args.src + range.offset;
    std::byte* const to = place(op, op.rank, round);
    const uint64_t end = own.offset + own.bytes;
    std::memcpy(to, from, own.offset);
    std::memcpy(to + end, from + end, range.bytes - end);
    context_.group.count_shared(range.bytes - own.bytes);
    return {};
  }

  Status mid(const Operation& op, uint64_t round) override {
    const Range range = part_of(op.bytes, kChunkBytes, round);
    const Range own = slice(op, range, op.rank);
    if (own.bytes == 0) return {};
    context_.outputs[0] = op.args.dst + range.offset + own.offset;
    int outputs = 1;
    for (int r = 0; r < op.size; r++) {
      const std::byte** const input = &context_.inputs[static_cast<size_t>(r)];
      *input = op.args.src + range.offset + own.offset;
      if (r == op.rank) continue;
      std::byte* const theirs = place(op, r, round) + own.offset;
      *input = theirs;
      context_.outputs[static_cast<size_t>(outputs++)] = theirs;
    }
    fold(context_.group, op, context_.inputs.data(), context_.outputs.data(), outputs, own.bytes);
    context_.group.count_shared(own.bytes * static_cast<uint64_t>(op.size - 1));
    return {};
  }

  Status out(const Operation& op, uint64_t round) override {
    const Range range = part_of(op.bytes, kChunkBytes, round);
    const Range own = slice(op, range, op.rank);
    std::byte* const to = op.args.dst + range.offset;
    const std::byte* const from = place(op, op.rank, round);
    const uint64_t end = own.offset + own.bytes;
    std::memcpy(to, from, own.offset);
    std::memcpy(to + end, from + end, range.bytes - end);
    return {};
  }

 private:
  // Returns the place of a round in a rank's staging. Round 0 is at the start of this slot's half, because
  // peers may still read the other half, for the previous slot.
  std::byte* place(const Operation& op, int rank, uint64_t round) const {
    return chunk(rank, (op.slot & 1) * (kDepth / 2) + round);
  }
  // Returns the bytes of a round that `rank` reduces.
  static Range slice(const Operation& op, const Range& round, int rank) {
    return part_of(round.bytes, slice_bytes(round.bytes, op.size, 64), static_cast<uint64_t>(rank));
  }
};

}  // namespace

std::unique_ptr<Path> make_staged(PathContext& context) {
  return std::make_unique<StagedPath>(context);
}
std::unique_ptr<Path> make_two_shot(PathContext& context) {
  return std::make_unique<TwoShotPath>(context);
}

}  // namespace weft::shm
