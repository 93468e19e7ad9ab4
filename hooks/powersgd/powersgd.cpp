// powersgd: each matrix of gradients M travels as two thin factors (Vogels et al. 2019, "PowerSGD"): P = M Q
// is averaged and made orthonormal, Q = M^T P is averaged, and everybody has P Q^T. batched_powersgd takes a
// whole bucket for one square matrix. Listed in the registry; calls are serialised by the engine's drive
// lock.
//
// Until step `start` buckets travel plain. Then there are two dependent collectives a bucket, not three as in
// DistributedDataParallel: what is not compressed travels with the Ps.
//
// Error feedback is local: a rank keeps M - P Q^T of its own Q, before Qs are averaged, and nothing of what
// is sent as it is. DistributedDataParallel keeps the difference from the average, which grows without bound
// where ranks see different data; feedback=ddp does that.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/bucket.h"
#include "common/options.h"
#include "common/state.h"
#include "core/hook.h"
#include "orthogonal.h"

namespace weft::hook_powersgd {
namespace {

enum class Feedback { kOff, kLocal, kDdp };

struct Settings {
  std::string name;
  bool batched = false;
  uint64_t rank = 1;
  uint64_t start = 1000;
  double min_rate = 2;
  Feedback feedback = Feedback::kLocal;
  bool warm_start = true;
  double epsilon = 0;
  uint64_t seed = 0;
};

// A matrix among a bucket's values, and its factors.
struct Matrix {
  const char* name;  // of the parameter; of the bucket's first one if batched
  uint64_t offset, rows, columns, rank;
  uint64_t p, q;  // where P and Q begin, in values of P's and Q's collective
};

// What is sent as it is: a piece of the bucket's values, and where it lies behind the Ps.
struct Piece {
  uint64_t offset, count, p;
};

class PowerSgd final : public Hook {
 public:
  PowerSgd(Settings settings, const DeviceOps& host) : settings_(std::move(settings)), host_(host) {}

  std::string name() const override { return settings_.name; }

  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    WEFT_TRY(check_floats(settings_.name.c_str(), bucket));
    state_.set_rank(bucket.rank);
    lay_out(bucket);
    plan_state(bucket);
    plan->scratch_bytes = q_bytes_ + q_count_ * sizeof(float);
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
    declare(kP, WEFT_DTYPE_F32, p_count_, WEFT_SPACE_SCRATCH, p_bytes_);
    declare(kQ, WEFT_DTYPE_F32, q_count_, WEFT_SPACE_SCRATCH, q_bytes_);
    declare(kPlain, bucket.dtype, bucket.count, WEFT_SPACE_BUCKET, 0);
    return {};
  }

  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    lay_out(bucket);
    iteration_ = state_.iteration(bucket);
    const bool plain = matrices_.empty() || iteration_ < settings_.start;
    // The collective that follows runs, or not.
    stage->dynamic_count = stage->index < 3 && (stage->index == kPlain) == plain ? 1 : 0;
    if (plain) return {};
    switch (stage->index) {
      case kP:
        make_p(bucket);
        break;
      case kQ:
        make_q(bucket);
        break;
      case kPlain:
        decompress(bucket);
        break;
      default:
        break;
    }
    return {};
  }

  Status replan(uint64_t /*buckets*/) override { return {}; }
  Status rebind(int rank, int /*size*/) override {
    state_.set_rank(rank);
    state_.clear(HookState::kError);
    return {};
  }
  Status save(Bytes* state) override {
    state_.save(state);
    return {};
  }
  Status load(ByteView state) override { return state_.load(state); }
  uint64_t memory_bytes() const override { return state_.memory_bytes(); }

 private:
  static constexpr uint32_t kP = 0, kQ = 1, kPlain = 2;  // collectives, and the stages before them
  static constexpr std::string_view kWarm = "q";

  // ---- where things lie
  void add_matrix(const char* name, uint64_t offset, uint64_t rows, uint64_t columns) {
    const uint64_t rank = std::min({rows, columns, settings_.rank});
    matrices_.push_back({name, offset, rows, columns, rank, p_count_, q_count_});
    p_count_ += rows * rank;
    q_count_ += columns * rank;
  }

  // The matrix that a parameter is in memory: its outermost dimension by all the others.
  bool worthwhile(const weft_bucket_param& param, uint64_t* rows, uint64_t* columns) const {
    if (param.ndim < 2 || param.count == 0) return false;
    int outer = 0;
    for (int d = 1; d < param.ndim; d++) {
      if (param.strides[d] > param.strides[outer]) outer = d;
    }
    *rows = static_cast<uint64_t>(param.shape[outer]);
    *columns = param.count / *rows;
    const auto rank = static_cast<double>(std::min({*rows, *columns, settings_.rank}));
    return static_cast<double>(*rows + *columns) * rank * settings_.min_rate <
           static_cast<double>(param.count);
  }

  void lay_out(const weft_bucket& bucket) {
    matrices_.clear();
    pieces_.clear();
    p_count_ = q_count_ = 0;
    p_bytes_ = settings_.batched ? lay_out_square(bucket) : lay_out_params(bucket);
    q_bytes_ = p_bytes_ + round_up(p_count_ * sizeof(float), 64);
  }

  // Returns where the factors begin in scratch, behind the values.
  uint64_t lay_out_params(const weft_bucket& bucket) {
    uint64_t rows = 0;
    uint64_t columns = 0;
    for (const weft_bucket_param& p : params_of(bucket)) {
      if (worthwhile(p, &rows, &columns)) add_matrix(p.name, p.offset, rows, columns);
    }
    if (matrices_.empty()) return 0;
    for (const weft_bucket_param& p : params_of(bucket)) {
      if (p.count == 0 || worthwhile(p, &rows, &columns)) continue;
      pieces_.push_back({p.offset, p.count, p_count_});
      p_count_ += p.count;
    }
    return values_bytes(bucket);
  }
  uint64_t lay_out_square(const weft_bucket& bucket) {
    auto side = static_cast<uint64_t>(std::sqrt(static_cast<double>(bucket.count)));
    while (side * side < bucket.count) side++;
    if (2 * side * settings_.rank >= bucket.count) return 0;  // nothing is gained
    add_matrix(bucket.params[0].name, 0, side, side);
    return round_up(side * side * sizeof(float), 64);
  }

  void plan_state(const weft_bucket& bucket) {
    if (matrices_.empty()) return;
    for (const weft_bucket_param& p : params_of(bucket)) {
      if (keeps_error(p)) state_.array(HookState::kError, p.name, p.count);
    }
    if (!settings_.warm_start) return;
    for (const Matrix& m : matrices_) state_.array(kWarm, m.name, m.columns * m.rank);
  }
  bool keeps_error(const weft_bucket_param& param) const {
    if (settings_.feedback == Feedback::kOff) return false;
    uint64_t rows = 0;
    uint64_t columns = 0;
    return settings_.batched || settings_.feedback == Feedback::kDdp || worthwhile(param, &rows, &columns);
  }

  float* values(const weft_bucket& bucket) const {
    return settings_.batched ? static_cast<float*>(bucket.scratch) : values_of(bucket);
  }
  float* at(const weft_bucket& bucket, uint64_t bytes, uint64_t index = 0) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(bucket.scratch) + bytes) + index;
  }
  void multiply(LowRank product, const weft_bucket& bucket, const Matrix& m) const {
    LowRankArgs args;
    args.product = product;
    args.rows = m.rows;
    args.columns = m.columns;
    args.rank = m.rank;
    args.matrix = values(bucket) + m.offset;
    args.left = at(bucket, p_bytes_, m.p);
    args.right = at(bucket, q_bytes_, m.q);
    host_.low_rank(args);
  }
  // Do something with each parameter's error and its values.
  template <class Work>
  void with_errors(const weft_bucket& bucket, Work&& work) {
    for (const weft_bucket_param& p : params_of(bucket)) {
      if (!keeps_error(p)) continue;
      work(state_.array(HookState::kError, p.name, p.count), values(bucket) + p.offset);
    }
  }

  // ---- stages
  void make_p(const weft_bucket& bucket) {
    load(bucket);
    with_errors(bucket, [&](std::vector<float>& error, float* v) {
      add(host_, error.data(), v, error.size());
      if (settings_.feedback == Feedback::kDdp) std::copy_n(v, error.size(), error.data());
    });
    for (const Matrix& m : matrices_) {
      start_q(m, at(bucket, q_bytes_, m.q));
      multiply(LowRank::kLeft, bucket, m);
    }
    for (const Piece& piece : pieces_) {
      std::copy_n(values(bucket) + piece.offset, piece.count, at(bucket, p_bytes_, piece.p));
    }
  }

  void load(const weft_bucket& bucket) {
    if (!settings_.batched) {
      load_values(host_, bucket);
      return;
    }
    const Matrix& square = matrices_.front();
    copy(host_, dtype_of(bucket), bucket.buffer, Dtype::kF32, values(bucket), bucket.count);
    std::fill(values(bucket) + bucket.count, values(bucket) + square.rows * square.columns, 0.0f);
  }

  // The Q of the last step, what is zero there or all of it random; orthonormal.
  void start_q(const Matrix& m, float* q) {
    const uint64_t count = m.columns * m.rank;
    const uint64_t seed = mix(mix(settings_.seed ^ mix(iteration_)), m.name);
    if (settings_.warm_start) {
      std::copy_n(state_.array(kWarm, m.name, count).data(), count, q);
    } else {
      std::fill(q, q + count, 0.0f);
    }
    orthonormalize_or_refill(q, m.columns, m.rank, settings_.epsilon, seed);
  }

  void make_q(const weft_bucket& bucket) {
    for (const Matrix& m : matrices_) {
      orthonormalize(at(bucket, p_bytes_, m.p), m.rows, m.rank, settings_.epsilon);
      multiply(LowRank::kRight, bucket, m);
      if (settings_.feedback == Feedback::kLocal) multiply(LowRank::kResidual, bucket, m);
    }
    if (settings_.feedback != Feedback::kLocal) return;
    with_errors(bucket, [&](std::vector<float>& error, const float* v) { keep(v, &error); });
  }

  void decompress(const weft_bucket& bucket) {
    for (const Matrix& m : matrices_) {
      multiply(LowRank::kMatrix, bucket, m);
      if (settings_.warm_start) keep_q(m, at(bucket, q_bytes_, m.q));
    }
    for (const Piece& piece : pieces_) {
      std::copy_n(at(bucket, p_bytes_, piece.p), piece.count, values(bucket) + piece.offset);
    }
    if (settings_.feedback == Feedback::kDdp) {
      with_errors(bucket, [&](std::vector<float>& error, const float* v) {
        add(host_, v, error.data(), error.size(), -1.0);
        keep(error.data(), &error);
      });
    }
    if (settings_.batched) {
      copy(host_, Dtype::kF32, values(bucket), dtype_of(bucket), bucket.buffer, bucket.count);
    } else {
      store_values(host_, bucket);
    }
  }

  // The error of a step with infinities or NaNs is none: they have arrived.
  static void keep(const float* residual, std::vector<float>* error) {
    for (size_t i = 0; i < error->size(); i++) (*error)[i] = std::isfinite(residual[i]) ? residual[i] : 0.0f;
  }
  void keep_q(const Matrix& m, const float* q) {
    const uint64_t count = m.columns * m.rank;
    std::vector<float>& kept = state_.array(kWarm, m.name, count);
    bool finite = true;
    for (uint64_t i = 0; i < count; i++) finite &= std::isfinite(q[i]);
    if (finite) {
      std::copy_n(q, count, kept.data());
    } else {
      std::fill(kept.begin(), kept.end(), 0.0f);  // the next step starts from a random one
    }
  }

  const Settings settings_;
  const DeviceOps& host_;
  HookState state_;
  uint64_t iteration_ = 0;

  // Of the bucket that is being looked at: offsets in scratch, and counts of values.
  std::vector<Matrix> matrices_;
  std::vector<Piece> pieces_;
  uint64_t p_bytes_ = 0, q_bytes_ = 0;
  uint64_t p_count_ = 0, q_count_ = 0;
};

Status make(bool batched, const HookArgs& args, std::shared_ptr<Hook>* hook) {
  Settings s;
  s.batched = batched;
  auto rank = static_cast<int64_t>(s.rank), start = static_cast<int64_t>(s.start);
  int64_t seed = 0;
  int feedback = 0;
  Options options(batched ? "batched_powersgd" : "powersgd", args.options);
  options.integer("rank", &rank, 1, 65536).integer("start", &start, 1, INT64_MAX);
  if (!batched) options.real("min_rate", &s.min_rate, 1e-9, 1e9);
  WEFT_TRY(options.choice("feedback", &feedback, {"local", "off", "ddp"})
               .flag("warm_start", &s.warm_start)
               .real("epsilon", &s.epsilon, 0, 1)
               .integer("seed", &seed, 0, INT64_MAX)
               .done(&s.name));
  s.feedback = feedback == 0 ? Feedback::kLocal : feedback == 1 ? Feedback::kOff : Feedback::kDdp;
  if (start < 2 && (s.feedback != Feedback::kOff || s.warm_start)) {
    return Status::error(
        Code::kArg,
        cat("hook '", s.name, "': start must be at least 2, unless feedback=off and warm_start=0"));
  }
  s.rank = static_cast<uint64_t>(rank);
  s.start = static_cast<uint64_t>(start);
  s.seed = static_cast<uint64_t>(seed);
  *hook = std::make_shared<PowerSgd>(std::move(s), args.host);
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
