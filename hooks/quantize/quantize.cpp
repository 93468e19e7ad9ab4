// quantize: DistributedDataParallel's quantisation hooks, for comparison. A byte per value encodes its
// position between the smallest and largest value of the bucket (per tensor) or of every 512 values (per
// channel). The bytes are gathered from all ranks and averaged. Each rank sends its bucket to all others, so
// the hook int8 sends less from three ranks on. There is no error feedback. Listed in the registry; calls
// never overlap (hook/hook.h).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "common/bucket.h"
#include "common/options.h"
#include "hook/hook.h"

namespace weft::hook_quantize {
namespace {

constexpr uint64_t kChannel = 512;

// A channel's scale: code c stands for scale * (c - zero).
struct Scale {
  float scale;
  int32_t zero;
};

// Values per iteration of loops with a fixed length, so that the compiler vectorises them.
constexpr uint64_t kTogether = 16;

// Returns the nearest integer, ties to even, of a value between -2^22 and 2^22. It equals std::nearbyint,
// which is a function call on instruction sets without rounding.
inline float nearest(float value) {
  constexpr float kShift = 0x1.8p23f;
  return (value + kShift) - kShift;
}

Scale scale_of(const float* values, uint64_t count) {
  std::array<float, kTogether> low{}, high{};
  uint64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    for (uint64_t k = 0; k < kTogether; k++) {
      low[k] = values[i + k] < low[k] ? values[i + k] : low[k];
      high[k] = values[i + k] > high[k] ? values[i + k] : high[k];
    }
  }
  float least = std::min(*std::min_element(low.begin(), low.end()), 0.0f);
  float most = *std::max_element(high.begin(), high.end());
  for (; i < count; i++) {
    least = std::min(least, values[i]);
    most = std::max(most, values[i]);
  }
  const float scale = (most - least) / 255;
  if (!all_finite(values, count) || !std::isfinite(scale)) return {std::bit_cast<float>(0x7FC00000u), 0};
  if (scale == 0) return {0, 0};
  return {scale, static_cast<int32_t>(std::clamp(nearest(-least / scale), 0.0f, 255.0f))};
}

// Encodes `count` values.
void encode(const float* values, const Scale& by, uint64_t count, uint8_t* codes) {
  if (!(by.scale > 0)) {
    std::fill_n(codes, count, uint8_t{0});
    return;
  }
  const auto zero = static_cast<float>(by.zero);
  const auto code = [&](float value) {
    const float c = nearest(value / by.scale) + zero;
    return static_cast<int32_t>(c < 0 ? 0 : c > 255 ? 255 : c);
  };
  uint64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    std::array<int32_t, kTogether> some;
    for (uint64_t k = 0; k < kTogether; k++) some[k] = code(values[i + k]);
    for (uint64_t k = 0; k < kTogether; k++) codes[i + k] = static_cast<uint8_t>(some[k]);
  }
  for (; i < count; i++) codes[i] = static_cast<uint8_t>(code(values[i]));
}

// Adds the decoded values to `values`.
void add_decoded(const uint8_t* codes, const Scale& by, uint64_t count, float* values) {
  const auto zero = static_cast<float>(by.zero);
  uint64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    std::array<float, kTogether> some;
    for (uint64_t k = 0; k < kTogether; k++) some[k] = static_cast<float>(codes[i + k]);
    for (uint64_t k = 0; k < kTogether; k++) values[i + k] += by.scale * (some[k] - zero);
  }
  for (; i < count; i++) values[i] += by.scale * (static_cast<float>(codes[i]) - zero);
}

class Quantize final : public Hook {
 public:
  Quantize(std::string name, bool per_channel, const DeviceOps& host)
      : name_(std::move(name)), per_channel_(per_channel), host_(host) {}

  std::string name() const override { return name_; }

  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    WEFT_TRY(check_floats(name_.c_str(), bucket));
    plan->scratch_bytes = values_bytes(bucket) + record_bytes(bucket) * static_cast<uint64_t>(bucket.size);
    plan->collective_count = 1;
    weft_hook_collective& c = plan->collectives[0];
    c.coll = WEFT_COLL_ALL_GATHER;
    c.dtype = WEFT_DTYPE_U8;
    c.count = record_bytes(bucket);
    c.src_space = c.dst_space = WEFT_SPACE_SCRATCH;
    c.dst_offset_bytes = values_bytes(bucket);
    c.src_offset_bytes = c.dst_offset_bytes + record_bytes(bucket) * static_cast<uint64_t>(bucket.rank);
    return {};
  }

  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    if (stage->index == 0) {
      write(bucket, load_values(host_, bucket));
    } else {
      average(bucket, values_of(bucket));
      store_values(host_, bucket);
    }
    return {};
  }

 private:
  uint64_t channel(const weft_bucket& bucket) const {
    return per_channel_ ? kChannel : std::max<uint64_t>(bucket.count, 1);
  }
  uint64_t channels(const weft_bucket& bucket) const {
    return (bucket.count + channel(bucket) - 1) / channel(bucket);
  }
  // Returns the bytes of a rank's record: the scale of every channel, then the codes.
  uint64_t record_bytes(const weft_bucket& bucket) const {
    return round_up(channels(bucket) * sizeof(Scale) + bucket.count, sizeof(Scale));
  }
  std::byte* record(const weft_bucket& bucket, int rank) const {
    return static_cast<std::byte*>(bucket.scratch) + values_bytes(bucket) +
           record_bytes(bucket) * static_cast<uint64_t>(rank);
  }

  // Calls work(scale, codes, begin, count) for each channel of a rank's record.
  template <class Work>
  void each_channel(const weft_bucket& bucket, int rank, Work&& work) const {
    auto* const scales = reinterpret_cast<Scale*>(record(bucket, rank));
    auto* const codes = reinterpret_cast<uint8_t*>(scales + channels(bucket));
    Scale* scale = scales;
    for (uint64_t begin = 0; begin < bucket.count; begin += channel(bucket)) {
      work(*scale++, codes + begin, begin, std::min(channel(bucket), bucket.count - begin));
    }
  }

  void write(const weft_bucket& bucket, const float* values) const {
    each_channel(bucket, bucket.rank, [&](Scale& scale, uint8_t* codes, uint64_t begin, uint64_t count) {
      scale = scale_of(values + begin, count);
      encode(values + begin, scale, count, codes);
    });
  }

  void average(const weft_bucket& bucket, float* values) const {
    std::fill(values, values + bucket.count, 0.0f);
    for (int r = 0; r < bucket.size; r++) {
      each_channel(bucket, r, [&](const Scale& scale, const uint8_t* codes, uint64_t begin, uint64_t count) {
        add_decoded(codes, scale, count, values + begin);
      });
    }
    copy(host_, Dtype::kF32, values, Dtype::kF32, values, bucket.count, 1.0 / bucket.divisor);
  }

  const std::string name_;
  const bool per_channel_;
  const DeviceOps& host_;
};

Status make(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  int per = 0;
  std::string name;
  WEFT_TRY(Options("quantize", args.options).choice("per", &per, {"tensor", "channel"}).done(&name));
  *hook = std::make_shared<Quantize>(std::move(name), per == 1, args.host);
  return {};
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"quantize", "DistributedDataParallel's quantisation", false, make};
  return kFactory;
}

}  // namespace weft::hook_quantize
