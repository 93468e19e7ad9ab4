#include "coll/variable_composites.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "coll/scratch.h"
#include "engine/composite.h"

namespace weft::coll {
namespace {

// About how many bytes one stage or one piece of work may touch.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
// Up to this size of all blocks, padded, one all_gather is faster than a broadcast from each rank.
constexpr uint64_t kPaddedBytes = uint64_t{64} << 10;

class VariableComposite : public Composite {
 public:
  VariableComposite(const CollectiveArgs& args, int rank, int size)
      : args_(args), rank_(rank), size_(size), element_(dtype_size(args.dtype)) {
    args_.composite = nullptr;
  }

 protected:
  const Blocks& blocks() const { return *args_.blocks; }
  bool is_root() const { return rank_ == args_.peer; }
  static uint64_t most(const BlockList& list, int size) {
    return *std::max_element(list.counts, list.counts + size);
  }
  // Sets the stage to an ordinary collective of this operation.
  void set(CollectiveArgs* stage, Coll coll, uint64_t count, const std::byte* src, std::byte* dst) const {
    const DeviceCall* const device = stage->device;
    *stage = args_;
    stage->device = device;
    stage->coll = coll;
    stage->blocks = nullptr;
    stage->tag = 0;
    stage->count = count;
    stage->src = src;
    stage->dst = dst;
  }

  CollectiveArgs args_;
  const int rank_;
  const int size_;
  const uint64_t element_;
  Scratch scratch_;
};

// all_gather_v of long blocks: broadcasts each block straight into its destination. Also works on a device.
class Broadcasts final : public VariableComposite {
 public:
  using VariableComposite::VariableComposite;
  const char* name() const override { return "broadcasts"; }

  Status next(CollectiveArgs* stage, Next* what) override {
    const uint64_t own = blocks().to.count(rank_) * element_;
    std::byte* const place = args_.dst + blocks().to.offset(rank_) * element_;
    if (stage->device == nullptr && copied_ < own && place != args_.src) {
      const uint64_t bytes = std::min(kPieceBytes, own - copied_);
      std::memcpy(place + copied_, args_.src + copied_, bytes);
      copied_ += bytes;
      *what = Next::kMore;
      return {};
    }
    while (next_ < size_ && blocks().to.count(next_) == 0) next_++;
    if (next_ == size_) return {};
    std::byte* const at = args_.dst + blocks().to.offset(next_) * element_;
    // In host memory the root's own block is already in its destination; on a device the broadcast copies it.
    const bool from_src = stage->device != nullptr && next_ == rank_;
    set(stage, Coll::kBroadcast, blocks().to.count(next_), from_src ? args_.src : at, at);
    stage->peer = next_++;
    *what = Next::kRun;
    return {};
  }

 private:
  uint64_t copied_ = 0;
  int next_ = 0;
};

// Executes any of these collectives as ordinary ones, piece by piece. A piece has the next elements of every
// block, padded to as many as the longest block has.
class Pieces final : public VariableComposite {
 public:
  Pieces(const CollectiveArgs& args, int rank, int size, uint64_t longest)
      : VariableComposite(args, rank, size), longest_(longest) {}
  const char* name() const override { return "pieces"; }

  Status next(CollectiveArgs* stage, Next* what) override {
    if (begin_ == 0 && count_ == 0) WEFT_TRY(prepare());
    if (std::exchange(runs_, false)) {
      unpack();
      begin_ += count_;
    }
    count_ = std::min(piece_, longest_ - begin_);
    if (count_ == 0) {
      // If all blocks are empty, one barrier lets the ranks compare their calls.
      *what = std::exchange(met_, true) ? Next::kOver : Next::kRun;
      return {};
    }
    pack();
    set(stage, even(args_.coll), count_, in_, out_);
    runs_ = met_ = true;
    *what = Next::kRun;
    return {};
  }

 private:
  // True if this rank sends (receives) one block for each rank; false for a single block.
  bool gives_all() const {
    if (args_.coll == Coll::kScatterV) return is_root();
    return args_.coll == Coll::kReduceScatterV || args_.coll == Coll::kAllToAllV;
  }
  bool takes_all() const {
    if (args_.coll == Coll::kGatherV) return is_root();
    return args_.coll == Coll::kAllGatherV || args_.coll == Coll::kAllToAllV;
  }
  bool gives() const { return args_.coll != Coll::kScatterV || is_root(); }
  bool takes() const { return args_.coll != Coll::kGatherV || is_root(); }

  Status prepare() {
    const auto n = static_cast<uint64_t>(size_);
    piece_ = std::min(longest_, std::max<uint64_t>(kPieceBytes / (n * element_), 1));
    const uint64_t bytes = piece_ * element_;
    const uint64_t in = !gives() ? 0 : gives_all() ? n * bytes : bytes;
    const uint64_t out = !takes() ? 0 : takes_all() ? n * bytes : bytes;
    const uint64_t gap = (in + 63) / 64 * 64;
    WEFT_TRY(scratch_.reserve(gap + out, args_.coll));
    if (in > 0) {
      in_ = scratch_.get();
      std::memset(in_, 0, in);  // the padding is read
    }
    if (out > 0) out_ = scratch_.get() + gap;
    return {};
  }

  // bytes() returns the bytes of the current piece of a block, and start() where it begins in the list's
  // buffer.
  uint64_t bytes(const BlockList& list, int rank) const {
    const uint64_t count = list.count(rank);
    return std::min(count_, count - std::min(count, begin_)) * element_;
  }
  uint64_t start(const BlockList& list, int rank) const { return (list.offset(rank) + begin_) * element_; }
  template <class Each>
  void each(bool all, Each&& each) const {
    for (int r = all ? 0 : rank_; r < (all ? size_ : rank_ + 1); r++) {
      if (args_.coll == Coll::kAllToAllV && r == rank_) continue;  // Agreed has copied it
      each(r, all ? static_cast<uint64_t>(r) * count_ * element_ : 0);
    }
  }

  void pack() {
    if (!gives()) return;
    each(gives_all(), [&](int r, uint64_t at) {
      const uint64_t size = bytes(blocks().from, r);
      const uint64_t begin = gives_all() ? start(blocks().from, r) : begin_ * element_;
      if (size > 0) std::memcpy(in_ + at, args_.src + begin, size);
    });
  }

  void unpack() {
    if (!takes()) return;
    each(takes_all(), [&](int r, uint64_t at) {
      const uint64_t size = bytes(blocks().to, r);
      const uint64_t begin = takes_all() ? start(blocks().to, r) : begin_ * element_;
      if (size > 0) std::memcpy(args_.dst + begin, out_ + at, size);
    });
  }

  const uint64_t longest_;
  uint64_t piece_ = 0;
  uint64_t begin_ = 0;
  uint64_t count_ = 0;
  bool runs_ = false;
  bool met_ = false;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

// all_to_all_v: the ranks first exchange and compare their counts.
class Agreed final : public VariableComposite {
 public:
  Agreed(const CollectiveArgs& args, int rank, int size, bool executes)
      : VariableComposite(args, rank, size), executes_(executes) {}
  const char* name() const override { return pieces_ != nullptr ? pieces_->name() : nullptr; }

  Status next(CollectiveArgs* stage, Next* what) override {
    if (pieces_ != nullptr && copy_own()) {
      *what = Next::kMore;
      return {};
    }
    if (pieces_ != nullptr) return pieces_->next(stage, what);
    switch (step_++) {
      case 0:
        *what = Next::kRun;
        return show(stage);
      case 1: {
        uint64_t longest = 0;
        WEFT_TRY(compare(&longest));
        if (executes_) {
          // For device blocks the count of the call is 0, and lib/coll/staged takes the longest block from
          // here.
          set(stage, args_.coll, stage->device != nullptr ? longest : 0, args_.src, args_.dst);
          stage->blocks = args_.blocks;
          *what = Next::kRun;
          return {};
        }
        pieces_ = std::make_unique<Pieces>(args_, rank_, size_, longest);
        return next(stage, what);
      }
      default:
        return {};
    }
  }

 private:
  uint64_t* rows() const { return reinterpret_cast<uint64_t*>(scratch_.get()); }
  // Returns the counts that a rank sends to each rank, followed by those that it receives from each.
  const uint64_t* row(int rank) const {
    return rows() + static_cast<uint64_t>(rank) * 2 * static_cast<uint64_t>(size_);
  }
  uint64_t sends(int from, int to) const { return row(from)[to]; }
  uint64_t takes(int from, int to) const { return row(to)[size_ + from]; }

  // Copies a piece of this rank's own block, which is not communicated. Returns true if there was one.
  bool copy_own() {
    const uint64_t own = blocks().from.count(rank_) * element_;
    if (copied_ == own) return false;
    const uint64_t bytes = std::min(kPieceBytes, own - copied_);
    std::memcpy(args_.dst + blocks().to.offset(rank_) * element_ + copied_,
                args_.src + blocks().from.offset(rank_) * element_ + copied_, bytes);
    copied_ += bytes;
    return true;
  }

  Status show(CollectiveArgs* stage) {
    const auto n = static_cast<uint64_t>(size_);
    WEFT_TRY(scratch_.reserve(n * 2 * n * sizeof(uint64_t), args_.coll));
    uint64_t* const mine = rows() + static_cast<uint64_t>(rank_) * 2 * n;
    std::copy_n(blocks().to.counts, n, std::copy_n(blocks().from.counts, n, mine));
    set(stage, Coll::kAllGather, 2 * n, reinterpret_cast<const std::byte*>(mine), scratch_.get());
    stage->dtype = Dtype::kU64;
    stage->device = nullptr;
    return {};
  }

  // Compares the counts of every pair of ranks. All ranks have the same counts, so their errors name the same
  // pair.
  Status compare(uint64_t* longest) const {
    for (int from = 0; from < size_; from++) {
      for (int to = 0; to < size_; to++) {
        const uint64_t sent = sends(from, to), taken = takes(from, to);
        if (from != to || executes_) *longest = std::max(*longest, sent);
        if (sent == taken) continue;
        return Status::error(
                   Code::kMismatch,
                   cat("all_to_all_v ", weft::name(args_.dtype), ": rank ", from, " sends ", sent,
                       " elements to rank ", to, ", which expects ", taken, ": give the same count on both"),
                   Evidence::kDescriptor)
            .with_ranks(from == to ? std::vector<int>{from} : std::vector<int>{from, to});
      }
    }
    return {};
  }

  const bool executes_;
  int step_ = 0;
  uint64_t copied_ = 0;  // bytes of this rank's own block
  std::unique_ptr<Pieces> pieces_;
};

uint64_t longest_of(const CollectiveArgs& args, int size) {
  const uint64_t* const counts = args.blocks->from.counts;
  return *std::max_element(counts, counts + size);
}
uint64_t padded_bytes(const CollectiveArgs& args, int size) {
  return longest_of(args, size) * static_cast<uint64_t>(size) * dtype_size(args.dtype);
}

}  // namespace

bool skewed(const CollectiveArgs& args, int size) {
  if (args.coll != Coll::kAllGatherV) return false;
  const uint64_t padded = padded_bytes(args, size);
  return padded > kPaddedBytes && padded / 2 > args.count * dtype_size(args.dtype);
}

std::unique_ptr<Composite> variable_composite(const CollectiveArgs& args, int rank, int size, bool executes) {
  if (args.coll == Coll::kAllToAllV) return std::make_unique<Agreed>(args, rank, size, executes);
  if (args.coll == Coll::kAllGatherV && padded_bytes(args, size) > kPaddedBytes) {
    return std::make_unique<Broadcasts>(args, rank, size);
  }
  return std::make_unique<Pieces>(args, rank, size, longest_of(args, size));
}

}  // namespace weft::coll
