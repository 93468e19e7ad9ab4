// powersgd: sends each gradient matrix M as two thin factors (Vogels et al. 2019, "PowerSGD"). P = M Q is
// averaged and orthonormalised, Q = M^T P is averaged, and every rank computes P Q^T. batched_powersgd treats
// a whole bucket as one square matrix. Listed in the registry; calls never overlap (hook/hook.h).
//
// Until step `start` buckets are sent uncompressed. Then there are two dependent collectives a bucket,
// instead of DistributedDataParallel's three, because uncompressed parameters are sent with the Ps. With
// alternate=1 there is one. A step averages P = M Q for the orthonormal Q of the last step, and computes P
// Q^T. The next step averages Q = M^T P.
//
// Error feedback is local: a rank keeps M - P Q^T with its own last factor, before that is averaged. It keeps
// nothing of what is sent uncompressed. DistributedDataParallel keeps the difference from the average, which
// grows without bound if ranks see different data; feedback=ddp does that.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "common/bucket.h"
#include "common/feedback_hook.h"
#include "common/options.h"
#include "layout.h"
#include "orthogonal.h"

namespace weft::hook_powersgd {
namespace {

class PowerSgd final : public FeedbackHook {
 public:
  PowerSgd(Settings settings, const HookArgs& args)
      : FeedbackHook(args, settings.feedback != Feedback::kOff, settings.rescue),
        settings_(std::move(settings)),
        host_(args.host),
        log_(args.log),
        layout_(settings_) {}

  std::string name() const override { return settings_.name; }
  // With alternate=1 the tag contains the iteration. Ranks whose iterations differ then get an error: each
  // multiplies the average by its stored factor of the step before.
  uint64_t step_of(const weft_bucket& bucket) const override {
    return settings_.alternate ? iteration_ : bucket.step;
  }

  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    WEFT_TRY(check_floats(settings_.name.c_str(), bucket));
    state_.set_rank(bucket.rank, bucket.size);
    layout_.lay_out(bucket);
    plan_state(bucket);
    plan->scratch_bytes = layout_.scratch_bytes;
    if (feedback_) watch_.plan(bucket);
    plan->collective_count = 3;
    const auto declare = [&](uint32_t k, int32_t dtype, uint64_t count, int32_t space, uint64_t offset) {
      weft_hook_collective& c = plan->collectives[k];
      c.coll = WEFT_COLL_ALL_REDUCE;
      c.op = WEFT_OP_AVG;
      c.dtype = dtype;
      c.count = count;
      c.src_space = c.dst_space = space;
      c.src_offset_bytes = c.dst_offset_bytes = offset;
      c.flags = WEFT_HOOK_COLLECTIVE_OPTIONAL;
    };
    declare(kP, WEFT_DTYPE_F32, layout_.p_sent(), WEFT_SPACE_SCRATCH, layout_.p_bytes);
    declare(kQ, WEFT_DTYPE_F32, layout_.q_sent(), WEFT_SPACE_SCRATCH, layout_.q_bytes);
    declare(kPlain, bucket.dtype, bucket.count, WEFT_SPACE_BUCKET, 0);
    if (!watch_.rescues() || layout_.matrices.empty()) return {};
    ErrorWatch::declare_vote(plan, vote_bytes());
    plan->scratch_bytes = vote_bytes() + ErrorWatch::kVoteBytes;
    return {};
  }

  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    layout_.lay_out(bucket);
    iteration_ = state_.iteration(bucket);
    const bool before = layout_.matrices.empty() || iteration_ < settings_.start;
    const bool rescued = !before && watch_.uncompressed(bucket);
    const bool plain = before || rescued;
    if (watch_.rescues() && !before) {
      watch_.stage(bucket, iteration_, kPlain, at(bucket, vote_bytes(), 0), stage);
    }
    if (stage->index < kEnd) stage->dynamic_count = sends(stage->index, plain) ? 1 : 0;
    if (stage->index == kEnd && iteration_ >= settings_.start) count(bucket, plain);
    if (rescued) rescue(bucket, *stage);
    if (plain) return {};
    switch (stage->index) {
      case kP:
        if (feedback_) watch_.measure_gradient(bucket);
        load_contributions(bucket);
        if (settings_.alternate) {
          make_factor(bucket);
        } else {
          make_p(bucket);
        }
        break;
      case kQ:
        if (!settings_.alternate) make_q(bucket);
        break;
      case kPlain:
        decompress(bucket);
        if (feedback_) watch_.measure_memory(bucket);
        break;
      default:
        break;
    }
    return {};
  }

  Status save(Bytes* state) override {
    state_.save(state, [this](const std::string& param) {
      const auto it = open_.find(param);
      return it != open_.end() && it->second;
    });
    return {};
  }

  Status load(ByteView state) override {
    WEFT_TRY(FeedbackHook::load(state));
    for (auto& [name, open] : open_) open = false;
    return {};
  }

  // Drops a bucket's factors, which are of no use to other buckets. Errors belong to parameters and stay.
  Status replan(uint64_t buckets) override {
    WEFT_TRY(FeedbackHook::replan(buckets));
    if (!settings_.batched) return {};
    state_.drop(kLeft);
    state_.drop(kRight);
    return {};
  }

 private:
  static constexpr uint32_t kP = 0, kQ = 1, kPlain = 2, kEnd = 3;  // indices of collectives and stages
  static constexpr std::string_view kLeft = "p", kRight = "q";

  // Returns the vote's offset in scratch, with rescue=1.
  uint64_t vote_bytes() const { return round_up(layout_.scratch_bytes, 64); }
  // True if an alternating step averages P, and not Q.
  bool makes_p() const { return iteration_ % 2 == 0; }
  // True if the collective that follows a stage takes place in this step.
  bool sends(uint32_t collective, bool plain) const {
    if (plain || collective == kPlain) return plain && collective == kPlain;
    return !settings_.alternate || (collective == kP) == makes_p();
  }

  void plan_state(const weft_bucket& bucket) {
    if (layout_.matrices.empty()) return;
    for (const weft_bucket_param& p : params_of(bucket)) {
      if (keeps_error(p)) state_.array(HookState::kError, p.name, p.count);
    }
    for (const Matrix& m : layout_.matrices) {
      if (errors_of_matrices()) open_.try_emplace(m.name, false);
      if (settings_.warm_start) state_.array(kRight, m.name, m.q_count());
      if (settings_.alternate) state_.array(kLeft, m.name, m.p_count());
    }
  }
  bool keeps_error(const weft_bucket_param& param) const {
    if (!feedback_) return false;
    uint64_t rows = 0;
    uint64_t columns = 0;
    return settings_.batched || settings_.feedback == Feedback::kDdp ||
           layout_.compresses(param, &rows, &columns);
  }

  float* values(const weft_bucket& bucket) const {
    return settings_.batched ? static_cast<float*>(bucket.scratch) : values_of(bucket);
  }
  static float* at(const weft_bucket& bucket, uint64_t bytes, uint64_t index) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(bucket.scratch) + bytes) + index;
  }
  float* p_of(const weft_bucket& bucket, const Matrix& m) const { return at(bucket, layout_.p_bytes, m.p); }
  float* q_of(const weft_bucket& bucket, const Matrix& m) const { return at(bucket, layout_.q_bytes, m.q); }
  // Returns the address of a piece: after the factors that it is sent with.
  float* sent_piece(const weft_bucket& bucket, const Piece& piece) const {
    const bool behind_p = !settings_.alternate || makes_p();
    return behind_p ? at(bucket, layout_.p_bytes, layout_.p_count + piece.at)
                    : at(bucket, layout_.q_bytes, layout_.q_count + piece.at);
  }

  LowRankArgs factors(LowRank product, const weft_bucket& bucket, const Matrix& m) const {
    LowRankArgs args;
    args.product = product;
    args.rows = m.rows;
    args.columns = m.columns;
    args.rank = m.rank;
    args.left = p_of(bucket, m);
    args.right = q_of(bucket, m);
    return args;
  }
  // Multiplies a group of matrices in the bucket.
  void multiply(LowRank product, const weft_bucket& bucket, const Group& group) const {
    LowRankArgs args = factors(product, bucket, layout_.matrices[group.first]);
    args.matrix = values(bucket);
    args.offsets = layout_.offsets.data() + group.first;
    args.batch = group.count;
    args.streaming = bucket.count * sizeof(float) >= kStreamingBytes;
    host_.low_rank(args);
  }

  // True if each matrix has its own error memory. The memory then holds the matrix itself: values not sent
  // before plus the contribution, until the sent part is subtracted. Otherwise errors belong to parameters.
  bool errors_of_matrices() const { return settings_.feedback == Feedback::kLocal && !settings_.batched; }
  template <class Work>
  void with_matrices(Work&& work) {
    for (const Matrix& m : layout_.matrices) {
      work(m, state_.array(HookState::kError, m.name, m.rows * m.columns).data());
    }
  }
  bool& is_open(const Matrix& m) { return open_.find(m.name)->second; }
  void keep_residual(const weft_bucket& bucket, const Matrix& m, float* error) {
    LowRankArgs args = factors(LowRank::kResidual, bucket, m);
    args.matrix = error;
    host_.low_rank(args);
    is_open(m) = false;
  }
  // Computes the first product of a step: the left factor, or the right one.
  void multiply_first(LowRank product, const weft_bucket& bucket) {
    if (!errors_of_matrices()) return multiply_all(product, bucket);
    with_matrices([&](const Matrix& m, float* error) {
      // Left over from a step that failed: it is unknown what the other ranks received.
      if (std::exchange(is_open(m), true)) std::fill_n(error, m.rows * m.columns, 0.0f);
      LowRankArgs args = factors(product, bucket, m);
      args.matrix = error;
      const float* const contribution = values(bucket) + m.offset;
      if (product == LowRank::kLeft) {
        args.addend = contribution;
      } else {
        add(host_, contribution, error, m.rows * m.columns);
      }
      host_.low_rank(args);
    });
  }
  void multiply_all(LowRank product, const weft_bucket& bucket) {
    for (const Group& group : layout_.groups) multiply(product, bucket, group);
  }
  // Calls work(error, values) for each parameter with an error memory.
  template <class Work>
  void with_errors(const weft_bucket& bucket, Work&& work) {
    for (const weft_bucket_param& p : params_of(bucket)) {
      if (!keeps_error(p)) continue;
      work(state_.array(HookState::kError, p.name, p.count), values(bucket) + p.offset);
    }
  }

  // ---- stages
  // Runs a stage of a bucket that is not compressed because its error memory keeps growing.
  void rescue(const weft_bucket& bucket, const weft_stage& stage) {
    if (stage.index == kPlain) watch_.measure_memory(bucket);
    if (stage.index != kP) return;
    watch_.measure_gradient(bucket);
    if (errors_of_matrices()) {
      with_matrices([&](const Matrix& m, float* error) {
        if (std::exchange(is_open(m), false)) std::fill_n(error, m.rows * m.columns, 0.0f);
      });
    }
    watch_.release(bucket);
  }

  // Converts the contributions to f32, and adds the values not sent before, except with errors_of_matrices().
  void load_contributions(const weft_bucket& bucket) {
    if (settings_.batched) {
      const Matrix& square = layout_.matrices.front();
      copy(host_, dtype_of(bucket), bucket.buffer, Dtype::kF32, values(bucket), bucket.count);
      std::fill(values(bucket) + bucket.count, values(bucket) + square.rows * square.columns, 0.0f);
    } else {
      load_values(host_, bucket);
    }
    if (!errors_of_matrices()) {
      with_errors(bucket, [&](std::vector<float>& error, float* v) {
        add(host_, error.data(), v, error.size());
        if (settings_.feedback == Feedback::kDdp) std::copy_n(v, error.size(), error.data());
      });
    }
    for (const Piece& piece : layout_.pieces) {
      std::copy_n(values(bucket) + piece.offset, piece.count, sent_piece(bucket, piece));
    }
  }

  void make_p(const weft_bucket& bucket) {
    for (const Matrix& m : layout_.matrices) {
      start(kRight, settings_.warm_start, m.columns, m, q_of(bucket, m));
    }
    multiply_first(LowRank::kLeft, bucket);
  }

  void make_q(const weft_bucket& bucket) {
    for (const Matrix& m : layout_.matrices) {
      // Epsilon is relative to the norm of the ranks' sum, not of their mean.
      orthonormalize(p_of(bucket, m), m.rows, m.rank, settings_.epsilon / bucket.divisor);
    }
    if (!errors_of_matrices()) {
      multiply_all(LowRank::kRight, bucket);
      return keep_residual(bucket);
    }
    with_matrices([&](const Matrix& m, float* error) {
      LowRankArgs args = factors(LowRank::kRight, bucket, m);
      args.matrix = error;
      host_.low_rank(args);
      keep_residual(bucket, m, error);
    });
  }

  // Alternating: takes one factor from the last step and computes the other one.
  void make_factor(const weft_bucket& bucket) {
    for (const Matrix& m : layout_.matrices) {
      if (makes_p()) {
        start(kRight, true, m.columns, m, q_of(bucket, m));
      } else {
        start(kLeft, true, m.rows, m, p_of(bucket, m));
      }
    }
    multiply_first(makes_p() ? LowRank::kLeft : LowRank::kRight, bucket);
    if (!errors_of_matrices()) return keep_residual(bucket);
    with_matrices([&](const Matrix& m, float* error) { keep_residual(bucket, m, error); });
  }

  // Sets a factor to the last step's (warm) or to zero, orthonormalises it, and replaces columns that become
  // zero by random ones.
  void start(std::string_view kind, bool warm, uint64_t rows, const Matrix& m, float* factor) {
    const uint64_t count = rows * m.rank;
    const uint64_t seed = mix(mix(settings_.seed ^ mix(iteration_)), m.name);
    if (warm) {
      std::copy_n(state_.array(kind, m.name, count).data(), count, factor);
    } else {
      std::fill(factor, factor + count, 0.0f);
    }
    orthonormalize_or_refill(factor, rows, m.rank, settings_.epsilon, seed);
  }

  // Keeps the errors of a batched bucket: the part of its square matrix that belongs to parameters.
  void keep_residual(const weft_bucket& bucket) {
    if (!settings_.batched || settings_.feedback != Feedback::kLocal) return;
    multiply_all(LowRank::kResidual, bucket);
    with_errors(bucket, [](std::vector<float>& error, const float* v) {
      std::copy_n(v, error.size(), error.data());
    });
  }

  void decompress(const weft_bucket& bucket) {
    multiply_all(LowRank::kMatrix, bucket);
    for (const Matrix& m : layout_.matrices) {
      if (settings_.alternate && makes_p()) {
        keep_factor(kLeft, m, p_of(bucket, m), m.p_count());
      } else if (settings_.warm_start) {
        keep_factor(kRight, m, q_of(bucket, m), m.q_count());
      }
    }
    for (const Piece& piece : layout_.pieces) {
      std::copy_n(sent_piece(bucket, piece), piece.count, values(bucket) + piece.offset);
    }
    if (settings_.feedback == Feedback::kDdp) {
      // The mean of the contributions; inside a cast these are divided already.
      const double of_mean = bucket.divisor / bucket.size;
      with_errors(bucket, [&](std::vector<float>& error, const float* v) {
        add(host_, v, error.data(), error.size(), -of_mean);
        copy_finite(error.data(), error.size(), error.data());  // infinities and NaNs have been sent
      });
    }
    if (settings_.batched) {
      copy(host_, Dtype::kF32, values(bucket), dtype_of(bucket), bucket.buffer, bucket.count);
    } else {
      store_values(host_, bucket);
    }
  }

  void keep_factor(std::string_view kind, const Matrix& m, const float* factor, uint64_t count) {
    std::vector<float>& kept = state_.array(kind, m.name, count);
    if (all_finite(factor, count)) {
      std::copy_n(factor, count, kept.data());
    } else {
      std::fill(kept.begin(), kept.end(), 0.0f);  // the next step starts from a random factor
    }
  }

  // Counts the values that compression saves, for the log.
  void count(const weft_bucket& bucket, bool plain) {
    const bool p = !settings_.alternate || makes_p(), q = !settings_.alternate || !makes_p();
    values_before_ += bucket.count;
    values_after_ += plain ? bucket.count : (p ? layout_.p_sent() : 0) + (q ? layout_.q_sent() : 0);
    if (bucket.is_last == 0 || settings_.statistics == 0 || ++steps_ % settings_.statistics != 0) return;
    if (log_ == nullptr || !log_->enabled(LogLevel::kInfo)) return;
    log_->info(cat("hook '", settings_.name, "', iteration ", iteration_, ": ", steps_,
                   " compressed steps had ", values_before_, " values and reduced ", values_after_));
  }

  const Settings settings_;
  const DeviceOps& host_;
  const std::shared_ptr<Log> log_;
  Layout layout_;  // of the current bucket
  // True for a matrix whose error memory holds contributions of a step in progress, or of a step that failed.
  // The plan adds all names.
  std::map<std::string, bool, std::less<>> open_;
  uint64_t iteration_ = 0;
  // In steps from `start` on, since the hook was made.
  uint64_t steps_ = 0, values_before_ = 0, values_after_ = 0;
};

// With fewer columns the error memory of a whole bucket keeps growing, and models are ruined.
constexpr uint64_t kBatchedRank = 4;

Status make(bool batched, const HookArgs& args, std::shared_ptr<Hook>* hook) {
  Settings s;
  s.batched = batched;
  if (batched) s.rank = kBatchedRank;
  auto rank = static_cast<int64_t>(s.rank), start = static_cast<int64_t>(s.start);
  int64_t seed = 0, statistics = static_cast<int64_t>(s.statistics);
  int feedback = 0;
  Options options(batched ? "batched_powersgd" : "powersgd", args.options);
  options.integer("rank", &rank, 1, 65536).integer("start", &start, 1, INT64_MAX);
  if (!batched) options.real("min_rate", &s.min_rate, 1e-9, 1e9).flag("batch", &s.batch);
  options.flag("rescue", &s.rescue);
  WEFT_TRY(options.choice("feedback", &feedback, {"local", "off", "ddp"})
               .flag("warm_start", &s.warm_start)
               .flag("alternate", &s.alternate)
               .real("epsilon", &s.epsilon, 0, 1)
               .integer("seed", &seed, 0, INT64_MAX)
               .integer("statistics", &statistics, 0, INT64_MAX)
               .done(&s.name));
  s.feedback = static_cast<Feedback>(feedback);
  WEFT_TRY(check_rescue(s.name, s.rescue, s.feedback != Feedback::kOff));
  if (start < 2 && (s.feedback != Feedback::kOff || s.warm_start)) {
    return Status::error(Code::kArg, cat("hook '", s.name, "': start is ", start,
                                         ", must be at least 2, unless feedback=off and warm_start=0"));
  }
  if (s.alternate && !s.warm_start) {
    return Status::error(Code::kArg, cat("hook '", s.name,
                                         "': alternate=1 continues from the last step's factor and "
                                         "needs warm_start=1"));
  }
  s.rank = static_cast<uint64_t>(rank);
  s.start = static_cast<uint64_t>(start);
  s.seed = static_cast<uint64_t>(seed);
  s.statistics = static_cast<uint64_t>(statistics);
  *hook = std::make_shared<PowerSgd>(std::move(s), args);
  return {};
}

Status make_powersgd(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  return make(false, args, hook);
}
Status make_batched(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  return make(true, args, hook);
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"powersgd", "matrices of gradients as two thin factors", false,
                                           make_powersgd};
  return kFactory;
}
const HookFactory& batched_factory();
const HookFactory& batched_factory() {
  static constexpr HookFactory kFactory = {"batched_powersgd", "a bucket as one matrix of two thin factors",
                                           false, make_batched};
  return kFactory;
}

}  // namespace weft::hook_powersgd

namespace weft::hook_batched_powersgd {
const HookFactory& factory();
const HookFactory& factory() {
  return hook_powersgd::batched_factory();
}
}  // namespace weft::hook_batched_powersgd
