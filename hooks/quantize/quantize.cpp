// quantize: DistributedDataParallel's quantisation hooks, for comparison: a byte a value between the least
// and the largest one of the bucket (per tensor) or of every 512 values (per channel), gathered from all
// ranks and averaged. Each rank sends its bucket to all others, so int8 moves less from three ranks on; there
// is no error feedback. Listed in the registry; calls never overlap (core/hook.h).
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "common/bucket.h"
#include "common/options.h"
#include "core/hook.h"

namespace weft::hook_quantize {
namespace {

constexpr uint64_t kChannel = 512;

// What a code c of a channel stands for: scale * (c - zero).
struct Scale {
  float scale;
  int32_t zero;
};

Scale scale_of(const float* values, uint64_t count) {
  float low = 0;
  float high = 0;
  bool finite = true;
  for (uint64_t i = 0; i < count; i++) {
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
    finite &= std::isfinite(values[i]);
  }
  const float scale = (high - low) / 255;
  if (!finite || !std::isfinite(scale)) return {std::bit_cast<float>(0x7FC00000u), 0};
  if (scale == 0) return {0, 0};
  return {scale, static_cast<int32_t>(std::clamp(std::nearbyint(-low / scale), 0.0f, 255.0f))};
}

uint8_t encode(float value, const Scale& by) {
  if (!(by.scale > 0)) return 0;
  const float code = std::nearbyint(value / by.scale) + static_cast<float>(by.zero);
  return static_cast<uint8_t>(std::clamp(code, 0.0f, 255.0f));
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
  // A rank's: the scale of every channel, then codes.
  uint64_t record_bytes(const weft_bucket& bucket) const {
    return round_up(channels(bucket) * sizeof(Scale) + bucket.count, sizeof(Scale));
  }
  std::byte* record(const weft_bucket& bucket, int rank) const {
    return static_cast<std::byte*>(bucket.scratch) + values_bytes(bucket) +
           record_bytes(bucket) * static_cast<uint64_t>(rank);
  }

  void write(const weft_bucket& bucket, const float* values) const {
    auto* const scales = reinterpret_cast<Scale*>(record(bucket, bucket.rank));
    auto* const codes = reinterpret_cast<uint8_t*>(scales + channels(bucket));
    for (uint64_t c = 0; c < channels(bucket); c++) {
      const uint64_t begin = c * channel(bucket), end = std::min(begin + channel(bucket), bucket.count);
      scales[c] = scale_of(values + begin, end - begin);
      for (uint64_t i = begin; i < end; i++) codes[i] = encode(values[i], scales[c]);
    }
  }

  void average(const weft_bucket& bucket, float* values) const {
    const auto factor = static_cast<float>(1.0 / bucket.divisor);
    std::fill(values, values + bucket.count, 0.0f);
    for (int r = 0; r < bucket.size; r++) {
      const auto* const scales = reinterpret_cast<const Scale*>(record(bucket, r));
      const auto* const codes = reinterpret_cast<const uint8_t*>(scales + channels(bucket));
      for (uint64_t i = 0; i < bucket.count; i++) {
        const Scale& by = scales[i / channel(bucket)];
        values[i] += by.scale * (static_cast<float>(codes[i]) - static_cast<float>(by.zero));
      }
    }
    for (uint64_t i = 0; i < bucket.count; i++) values[i] *= factor;
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
