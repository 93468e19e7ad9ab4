#include "coll/user_reduction.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/callback_mark.h"
#include "base/text.h"
#include "coll/scratch.h"

namespace weft::coll {
namespace {

// About how many bytes of each rank one piece has.
constexpr uint64_t kReducedPieceBytes = uint64_t{1} << 20;

// Reduces the buffers piece by piece. Of each piece every rank reduces one block, of all ranks' data and in
// their order. A block has whole items; the last one may be shorter, and is padded in messages.
class UserReduction final : public Composite {
 public:
  UserReduction(const CollectiveArgs& args, const weft_reduction& how, int rank, int size)
      : args_(args),
        how_(how),
        rank_(static_cast<uint64_t>(rank)),
        size_(static_cast<uint64_t>(size)),
        item_(how.unit * dtype_size(args.dtype)),
        items_(args.count / how.unit),
        most_(std::max<uint64_t>(kReducedPieceBytes / (size_ * item_), 1) * (scatters() ? 1 : size_)) {}
  const char* name() const override { return "user"; }

  Status next(CollectiveArgs* stage, Next* what) override {
    *what = Next::kRun;
    switch (std::exchange(step_, Step::kExchanged)) {
      case Step::kBegin:
        return exchange(stage);
      case Step::kExchanged:
        WEFT_TRY(combine());
        if (scatters()) break;
        step_ = Step::kGathered;
        set(stage, args_.coll == Coll::kReduce ? Coll::kGather : Coll::kAllGather, received(0), sent(0));
        return {};
      case Step::kGathered:
        if (args_.dst != nullptr) std::memcpy(args_.dst + begin_ * item_, sent(0), length_ * item_);
        break;
      case Step::kMet:
        *what = Next::kOver;
        return {};
    }
    begin_ += length_;
    step_ = Step::kBegin;
    *what = begin_ == items_ ? Next::kOver : Next::kMore;
    return {};
  }

 private:
  enum class Step { kBegin, kExchanged, kGathered, kMet };

  // In a reduce_scatter a piece has the same items of every block of the source, else consecutive items.
  bool scatters() const { return args_.coll == Coll::kReduceScatter; }
  std::byte* sent(uint64_t rank) const { return scratch_.get() + rank * block_ * item_; }
  std::byte* received(uint64_t rank) const { return sent(size_ + rank); }

  void set(CollectiveArgs* stage, Coll coll, const std::byte* src, std::byte* dst) const {
    stage->coll = coll;
    stage->count = block_ * how_.unit;
    stage->peer = args_.peer;
    stage->src = src;
    stage->dst = dst;
  }

  Status exchange(CollectiveArgs* stage) {
    length_ = std::min(most_, items_ - begin_);
    if (length_ == 0) {  // no data at all: the ranks only meet, in the stage's barrier
      step_ = Step::kMet;
      return {};
    }
    block_ = scatters() ? length_ : (length_ + size_ - 1) / size_;
    WEFT_TRY(scratch_.reserve(2 * size_ * block_ * item_, args_.coll));
    if (scatters()) {
      for (uint64_t r = 0; r < size_; r++)
        std::memcpy(sent(r), args_.src + (r * items_ + begin_) * item_, length_ * item_);
    } else {
      std::memcpy(sent(0), args_.src + begin_ * item_, length_ * item_);
      std::memset(sent(0) + length_ * item_, 0, (size_ * block_ - length_) * item_);
    }
    set(stage, Coll::kAllToAll, sent(0), received(0));
    return {};
  }

  // Combines this rank's block into the one received from rank 0.
  Status combine() {
    const uint64_t first = scatters() ? 0 : std::min(rank_ * block_, length_);
    const uint64_t count = std::min(block_, length_ - first);
    const CallbackMark mark(CallbackMark::Calls::kNone);
    for (uint64_t r = 1; r < size_ && count > 0; r++) {
      const weft_status status = how_.combine(how_.user_data, received(r), received(0), count * how_.unit,
                                              static_cast<weft_dtype>(args_.dtype));
      if (status == WEFT_OK) continue;
      return Status::error(Code::kHook, cat(weft::name(args_.coll), ": weft_reduction.combine of rank ",
                                            rank_, " returned ", status, " for the data of rank ", r,
                                            ", expected WEFT_OK: look for the reason in that function"))
          .with_ranks({static_cast<int>(rank_)});
    }
    if (scatters()) std::memcpy(args_.dst + begin_ * item_, received(0), count * item_);
    return {};
  }

  const CollectiveArgs args_;
  const weft_reduction how_;
  const uint64_t rank_;
  const uint64_t size_;
  const uint64_t item_;   // bytes
  const uint64_t items_;  // of the buffer, in a reduce_scatter of one block
  const uint64_t most_;   // items of a piece
  uint64_t begin_ = 0;    // first item of the piece
  uint64_t length_ = 0;   // its items
  uint64_t block_ = 0;    // items of a rank's block
  Step step_ = Step::kBegin;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<Composite> user_reduction(const CollectiveArgs& args, const weft_reduction& how, int rank,
                                          int size) {
  return std::make_unique<UserReduction>(args, how, rank, size);
}

}  // namespace weft::coll
