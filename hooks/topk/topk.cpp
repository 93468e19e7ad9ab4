// topk: the largest values of every slice and their places; the rest is fed back (Lin et al. 2017, "Deep
// gradient compression", without its tricks for momentum). The owner sends on the largest of the sums. Listed
// in the registry.
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "common/bucket.h"
#include "common/compressed.h"
#include "common/options.h"

namespace weft::hook_topk {
namespace {

uint32_t magnitude_of(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
}

// The k-th largest magnitude as bits (a NaN is larger than all), and how many values of just that magnitude
// are among the k largest. By its upper 16 bits first, then by the lower.
struct Threshold {
  uint32_t bits = 0;
  uint64_t equal = 0;

  Threshold(const float* values, uint64_t count, uint64_t k, std::vector<uint32_t>* histogram) {
    const uint32_t upper = find(values, count, &k, histogram, 0, 16) << 16;
    bits = upper | find(values, count, &k, histogram, upper, 0);
    equal = k;
  }

 private:
  // The digit (16 bits at `shift`) of the *k-th largest of those that have the digits `above`; *k becomes its
  // place among those with that digit.
  static uint32_t find(const float* values, uint64_t count, uint64_t* k, std::vector<uint32_t>* histogram,
                       uint32_t above, int shift) {
    histogram->assign(65536, 0);
    for (uint64_t i = 0; i < count; i++) {
      const uint32_t bits = magnitude_of(values[i]);
      if (shift == 0 && (bits ^ above) >> 16 != 0) continue;
      (*histogram)[bits >> shift & 0xFFFF]++;
    }
    uint32_t digit = 65535;
    while (digit > 0 && (*histogram)[digit] < *k) *k -= (*histogram)[digit--];
    return digit;
  }
};

// Pairs of place and value, in order of place; places that are not used say kNone.
class TopK final : public Codec {
 public:
  explicit TopK(double ratio) : ratio_(ratio) {}

  uint64_t bytes(uint64_t slice) const override { return most(slice) * sizeof(Pair); }
  void encode(float* values, uint64_t /*first*/, uint64_t count, uint64_t slice, bool residual,
              uint64_t /*seed*/, std::byte* to) const override {
    auto* const pairs = reinterpret_cast<Pair*>(to);
    const uint64_t k = std::min(most(count), most(slice));
    uint64_t used = 0;
    if (k > 0) {
      Threshold threshold(values, count, k, &histogram_);
      for (uint64_t i = 0; i < count && used < k; i++) {
        const uint32_t magnitude = magnitude_of(values[i]);
        if (magnitude < threshold.bits || (magnitude == threshold.bits && threshold.equal == 0)) continue;
        if (magnitude == threshold.bits) threshold.equal--;
        pairs[used++] = {static_cast<uint32_t>(i), values[i]};
        if (residual) values[i] = 0;
      }
    }
    for (; used < most(slice); used++) pairs[used] = {kNone, 0};
    if (!residual) return;
    // More infinities than fit have been told of; they are not kept.
    for (uint64_t i = 0; i < count; i++) values[i] = std::isfinite(values[i]) ? values[i] : 0;
  }
  void decode(const std::byte* from, uint64_t /*first*/, uint64_t count, uint64_t slice, bool add,
              float* values) const override {
    const auto* const pairs = reinterpret_cast<const Pair*>(from);
    if (!add) std::fill(values, values + count, 0.0f);
    for (uint64_t i = 0; i < most(slice); i++) {
      if (pairs[i].place < count) values[pairs[i].place] += pairs[i].value;
    }
  }

 private:
  struct Pair {
    uint32_t place;
    float value;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  uint64_t most(uint64_t count) const {
    const auto wanted = static_cast<uint64_t>(std::ceil(ratio_ * static_cast<double>(count)));
    return std::min(std::max<uint64_t>(wanted, 1), count);
  }

  const double ratio_;
  mutable std::vector<uint32_t> histogram_;
};

Status make(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  CompressedSettings settings;
  double ratio = 0.01;
  WEFT_TRY(Options("topk", args.options)
               .real("ratio", &ratio, 1e-6, 1)
               .flag("feedback", &settings.feedback)
               .done(&settings.name));
  *hook = make_compressed(std::move(settings), std::make_unique<TopK>(ratio), args);
  return {};
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"topk", "the largest gradients and their places", false, make};
  return kFactory;
}

}  // namespace weft::hook_topk
