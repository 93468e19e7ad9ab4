#include "common/compressed.h"

#include <utility>

#include "common/bucket.h"
#include "common/feedback_hook.h"

namespace weft {
namespace {

// Sizes of a bucket's slices, which are weft_bucket.shares if there are any, and offsets in its scratch. The
// area `values` holds one piece, which stays in the cache. If slices are encoded as a whole, it holds the
// bucket's f32 values, and is empty for f32 buckets.
struct Slices {
  uint64_t ranks, rank, count;
  const uint64_t* shares;
  uint64_t slice, bytes, values, sent, received, work, vote;

  Slices(const weft_bucket& bucket, const Codec& codec)
      : ranks(static_cast<uint64_t>(bucket.size)),
        rank(static_cast<uint64_t>(bucket.rank)),
        count(bucket.count),
        shares(bucket.shares),
        slice(round_up(shares != nullptr ? longest() : (count + ranks - 1) / ranks, codec.unit())),
        bytes(codec.bytes(slice)),
        values(codec.piece() != 0 ? codec.piece() * sizeof(float) : values_bytes(bucket)),
        sent(values),
        received(sent + round_up(ranks * bytes, 64)),
        work(received + round_up(ranks * bytes, 64)),
        vote(round_up(work + codec.scratch_bytes(slice), 64)) {}
  uint64_t begin(uint64_t r) const { return shares != nullptr ? shares[r] : std::min(r * slice, count); }
  uint64_t length(uint64_t r) const {
    return shares != nullptr ? shares[r + 1] - shares[r] : std::min(slice, count - begin(r));
  }
  uint64_t longest() const {
    uint64_t longest = 0;
    for (uint64_t r = 0; r < ranks; r++) longest = std::max(longest, length(r));
    return longest;
  }
};

class Compressed final : public FeedbackHook {
 public:
  Compressed(CompressedSettings settings, std::unique_ptr<Codec> codec, const HookArgs& args)
      : FeedbackHook(args, settings.feedback, settings.rescue),
        settings_(std::move(settings)),
        codec_(std::move(codec)),
        host_(args.host) {}

  std::string name() const override { return settings_.name; }
  bool takes_shares() const override { return true; }

  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    WEFT_TRY(check_floats(settings_.name.c_str(), bucket));
    if (bucket.count > UINT32_MAX) {
      return Status::error(Code::kUnsupported, cat("hook '", settings_.name,
                                                   "' supports buckets of less than 2^32 elements, not of ",
                                                   bucket.count, ": make buckets smaller (bucket_limits)"));
    }
    state_.set_rank(bucket.rank, bucket.size);
    const Slices at(bucket, *codec_);
    plan->scratch_bytes = at.work + codec_->scratch_bytes(at.slice);
    if (settings_.feedback) {
      plan_errors(state_, bucket);
      watch_.plan(bucket);
    }
    plan->collective_count = plain_of(bucket);
    for (uint32_t k = 0; k < plan->collective_count; k++) {
      weft_hook_collective& c = plan->collectives[k];
      c.coll = k == 0 ? WEFT_COLL_ALL_TO_ALL : WEFT_COLL_ALL_GATHER;
      c.dtype = WEFT_DTYPE_U8;
      c.count = at.bytes;
      c.src_space = c.dst_space = WEFT_SPACE_SCRATCH;
      c.src_offset_bytes = k == 0 ? at.sent : at.received + at.rank * at.bytes;
      c.dst_offset_bytes = at.received;
      if (watch_.rescues()) c.flags = WEFT_HOOK_COLLECTIVE_OPTIONAL;
    }
    if (!watch_.rescues()) return {};
    ErrorWatch::declare_plain(bucket, plan);
    ErrorWatch::declare_vote(plan, at.vote);
    plan->scratch_bytes = at.vote + ErrorWatch::kVoteBytes;
    return {};
  }

  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    const Slices at(bucket, *codec_);
    auto* const scratch = static_cast<std::byte*>(bucket.scratch);
    const bool plain = watch_.uncompressed(bucket);
    const bool sharded = at.shares != nullptr;
    if (stage->index == 0) {
      if (settings_.feedback) watch_.measure_gradient(bucket);
      if (plain) {
        watch_.release(bucket);
      } else {
        encode_contributions(bucket, at, scratch);
      }
    } else if (stage->index == plain_of(bucket)) {
      if (!plain && sharded) keep_own(bucket, at, scratch + at.received);
      if (!plain && !sharded) decode_means(bucket, at, scratch + at.received);
      if (settings_.feedback) watch_.measure_memory(bucket);
    } else if (stage->index == 1 && !sharded && !plain) {
      reduce_own(bucket, at, scratch);
    }
    if (watch_.rescues())
      watch_.stage(bucket, state_.iteration(bucket), plain_of(bucket), scratch + at.vote, stage);
    return {};
  }

 private:
  // Returns the number of the stage that decodes results, and of the collective of uncompressed steps.
  static uint32_t plain_of(const weft_bucket& bucket) { return bucket.shares != nullptr ? 1 : 2; }

  // Calls work(offset in slice r, offset in the bucket, length) for each piece of slice r.
  template <class Work>
  void each_piece(const Slices& at, uint64_t r, Work&& work) const {
    const uint64_t length = at.length(r), piece = codec_->piece() != 0 ? codec_->piece() : length;
    for (uint64_t first = 0; first < length; first += piece) {
      work(first, at.begin(r) + first, std::min(piece, length - first));
    }
    if (length == 0) work(0, at.begin(r), 0);  // an empty slice is encoded as well
  }

  // Returns where the bucket's values from `begin` on are processed.
  float* values_at(const weft_bucket& bucket, uint64_t begin) const {
    return codec_->piece() != 0 ? static_cast<float*>(bucket.scratch) : values_of(bucket) + begin;
  }

  void encode_contributions(const weft_bucket& bucket, const Slices& at, std::byte* scratch) {
    for (uint64_t r = 0; r < at.ranks; r++) {
      const uint64_t seed_of_slice = seed(bucket, at.rank, r);
      each_piece(at, r, [&](uint64_t first, uint64_t begin, uint64_t count) {
        Encoding how;
        how.residual = settings_.feedback;
        how.seed = seed_of_slice;
        float* const error = error_within(bucket, begin, count);
        float* const values = error != nullptr ? error : values_at(bucket, begin);
        if (error != nullptr) {
          how.addend = gradients(bucket, begin, count);
        } else {
          load_values(host_, bucket, begin, count, values);
          if (settings_.feedback) add_errors(host_, state_, bucket, begin, count, values);
        }
        codec_->encode(values, {first, count, at.slice}, how, scratch + at.sent + r * at.bytes,
                       scratch + at.work);
        if (settings_.feedback && error == nullptr) keep_errors(state_, bucket, begin, count, values);
      });
    }
  }

  // Returns the error memory of a piece, if it is within one parameter: gradients are then added to it, and
  // encoding leaves the loss there. Null otherwise, and without feedback.
  float* error_within(const weft_bucket& bucket, uint64_t begin, uint64_t count) {
    return settings_.feedback && codec_->piece() != 0 ? error_of(state_, bucket, begin, count) : nullptr;
  }

  // Returns this rank's gradients of a piece as f32.
  const float* gradients(const weft_bucket& bucket, uint64_t begin, uint64_t count) const {
    if (dtype_of(bucket) == Dtype::kF32) return values_of(bucket) + begin;
    load_values(host_, bucket, begin, count, values_at(bucket, begin));
    return values_at(bucket, begin);
  }

  void reduce_own(const weft_bucket& bucket, const Slices& at, std::byte* scratch) {
    std::byte* const received = scratch + at.received;
    const uint64_t seed_of_mean = seed(bucket, at.rank, at.ranks);
    each_piece(at, at.rank, [&](uint64_t first, uint64_t begin, uint64_t count) {
      const Piece piece = {first, count, at.slice};
      float* const mean = values_at(bucket, begin);
      codec_->decode({received, at.ranks, at.bytes}, piece, 1.0 / bucket.divisor, mean);
      Encoding how;
      how.residual = settings_.feedback;
      how.error = error_within(bucket, begin, count);
      how.error_scale = static_cast<float>(bucket.divisor);
      how.seed = seed_of_mean;
      codec_->encode(mean, piece, how, received + at.rank * at.bytes, scratch + at.work);
      if (!settings_.feedback || how.error != nullptr) return;
      keep_more_errors(host_, state_, bucket, begin, count, mean, bucket.divisor);
    });
  }

  // Decodes all contributions to this rank's share.
  void keep_own(const weft_bucket& bucket, const Slices& at, const std::byte* received) {
    each_piece(at, at.rank, [&](uint64_t first, uint64_t begin, uint64_t count) {
      decode({received, at.ranks, at.bytes}, {first, count, at.slice}, 1.0 / bucket.divisor, bucket, begin);
    });
  }

  // Decodes a piece to where its results belong.
  void decode(const Encoded& from, const Piece& piece, double scale, const weft_bucket& bucket,
              uint64_t begin) {
    const bool direct = dtype_of(bucket) == Dtype::kF32;
    float* const values = direct ? values_of(bucket) + begin : values_at(bucket, begin);
    codec_->decode(from, piece, scale, values);
    if (!direct) store_values(host_, bucket, begin, piece.count, values);
  }

  void decode_means(const weft_bucket& bucket, const Slices& at, const std::byte* received) {
    for (uint64_t r = 0; r < at.ranks; r++) {
      each_piece(at, r, [&](uint64_t first, uint64_t begin, uint64_t count) {
        decode({received + r * at.bytes}, {first, count, at.slice}, 1, bucket, begin);
      });
    }
  }

  // Returns the seed of rank `rank` for slice `slice` in this step.
  uint64_t seed(const weft_bucket& bucket, uint64_t rank, uint64_t slice) {
    const uint64_t step = mix(settings_.seed ^ mix(state_.iteration(bucket)));
    return mix(mix(step ^ rank << 32 ^ slice), bucket.params[0].name);
  }

  const CompressedSettings settings_;
  const std::unique_ptr<Codec> codec_;
  const DeviceOps& host_;
};

}  // namespace

std::shared_ptr<Hook> make_compressed(CompressedSettings settings, std::unique_ptr<Codec> codec,
                                      const HookArgs& args) {
  return std::make_shared<Compressed>(std::move(settings), std::move(codec), args);
}

}  // namespace weft
