// lib/kernels: every operation on every type, compared bit by bit with a scalar reference, on every
// instruction set that this machine has.
#include <hwy/targets.h>

#include <algorithm>
#include <cfenv>
#include <random>
#include <string>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/text.h"
#include "kernels/host_ops.h"
#include "support/catch.h"
#include "support/kernels_reference.h"

namespace unit_kernels {

using namespace weft;

namespace {

constexpr uint64_t kCounts[] = {0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 1000, 4097};
constexpr int kInputCounts[] = {1, 2, 3, 4, 5, 8};
constexpr Dtype kFloats[] = {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64};

// The tables of all instruction sets, without duplicates.
const std::vector<const DeviceOps*>& all_ops() {
  static const auto* tables = [] {
    auto* found = new std::vector<const DeviceOps*>;
    for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
      hwy::SetSupportedTargetsForTest(left & -left);
      const DeviceOps* ops = &host_ops();
      if (std::find(found->begin(), found->end(), ops) == found->end()) found->push_back(ops);
    }
    hwy::SetSupportedTargetsForTest(0);
    return found;
  }();
  return *tables;
}

// Elements between guard bytes, `offset` elements after an aligned address.
class Elements {
 public:
  Elements(Dtype dtype, uint64_t count, size_t offset)
      : size_(count * dtype_size(dtype)),
        begin_(kGuard + offset * dtype_size(dtype)),
        bytes_(begin_ + size_ + kGuard, kMark) {}

  std::byte* data() { return bytes_.data() + begin_; }
  const std::byte* data() const { return bytes_.data() + begin_; }
  uint64_t size() const { return size_; }
  bool guards_intact() const {
    const auto marked = [](std::byte b) { return b == kMark; };
    return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(begin_), marked) &&
           std::all_of(bytes_.end() - kGuard, bytes_.end(), marked);
  }
  bool operator==(const Elements&) const = default;

 private:
  static constexpr size_t kGuard = 128;
  static constexpr std::byte kMark{0xA5};
  uint64_t size_, begin_;
  std::vector<std::byte> bytes_;
};

// memcmp does not allow null, even for 0 bytes.
bool equal(const std::vector<std::byte>& expected, const void* actual) {
  return expected.empty() || std::memcmp(actual, expected.data(), expected.size()) == 0;
}

// Numbers around 1 with both signs, so that sums and products stay finite and need rounding.
Elements ordinary(Dtype dtype, uint64_t count, size_t offset, uint32_t seed) {
  Elements elements(dtype, count, offset);
  std::mt19937_64 random(seed);
  for (uint64_t at = 0; at < elements.size(); at += dtype_size(dtype)) {
    if (is_float(dtype)) {
      const double value = std::ldexp(static_cast<double>(random() >> 11), -53);
      reference::store(dtype, (value + 0.25) * (random() & 1 ? 1 : -1), elements.data() + at);
    } else {
      const uint64_t bits = random();
      std::memcpy(elements.data() + at, &bits, dtype_size(dtype));
    }
  }
  return elements;
}

// Returns random bits, with many special numbers: NaNs of all kinds, Inf, zeros, denormals, the largest
// numbers.
Elements wild(Dtype dtype, uint64_t count, size_t offset, uint32_t seed) {
  Elements elements(dtype, count, offset);
  std::mt19937_64 random(seed);
  constexpr double kSpecial[] = {0.0,       -0.0,          INFINITY,   -INFINITY, 65504,     -65504,
                                 65519.996, 65520,         0x1p-24,    0x1p-25,   0x1.8p-25, 0x1p-126,
                                 0x1p-133,  0x1p-149,      -0x1p-134,  3.4e38,    -3.38e38,  1.7e308,
                                 5e-324,    1.00048828125, 1.00390625, NAN};
  for (uint64_t at = 0; at < elements.size(); at += dtype_size(dtype)) {
    const uint64_t bits = random();
    if (random() % 2) {
      reference::store(dtype, kSpecial[bits % std::size(kSpecial)], elements.data() + at);
    } else {
      std::memcpy(elements.data() + at, &bits, dtype_size(dtype));
    }
  }
  return elements;
}

struct Scales {
  double pre, post;
};

// Runs one fold on all instruction sets, with its result in `outputs` separate buffers. Returns the first
// difference.
std::string fold_difference(Dtype dtype, ReduceOp op, const std::vector<Elements>& inputs, int outputs,
                            uint64_t count, size_t offset, Scales scales, bool streaming = false) {
  std::vector<const std::byte*> sources;
  for (const Elements& input : inputs) sources.push_back(input.data());
  FoldArgs args{.dtype = dtype,
                .op = op,
                .inputs = sources.data(),
                .input_count = static_cast<int>(sources.size()),
                .count = count,
                .prescale = scales.pre,
                .postscale = scales.post,
                .streaming = streaming};
  const std::vector<std::byte> expected = reference::fold(args);
  for (const DeviceOps* ops : all_ops()) {
    std::vector<Elements> results(static_cast<size_t>(outputs), Elements(dtype, count, offset));
    std::vector<std::byte*> targets;
    for (Elements& result : results) targets.push_back(result.data());
    args.outputs = targets.data();
    args.output_count = outputs;
    ops->fold(args);
    for (const Elements& result : results) {
      const bool same = equal(expected, result.data());
      if (same && result.guards_intact()) continue;
      uint64_t at = 0;
      while (at < expected.size() && result.data()[at] == expected[at]) at++;
      return cat(ops->name, ": ", name(op), " of ", name(dtype), ", ", inputs.size(), " inputs, ", outputs,
                 " outputs, count ", count, ", offset ", offset, ", scales ", scales.pre, " and ",
                 scales.post,
                 same ? ": wrote beyond the end" : cat(": differs at element ", at / dtype_size(dtype)));
    }
  }
  return {};
}

template <class Fill>
void check_all_folds(Dtype dtype, Fill fill) {
  for (int o = 1; o <= kReduceOpCount; o++) {
    const auto op = static_cast<ReduceOp>(o);
    if (!check_reduction(op, dtype).ok()) continue;
    for (const uint64_t count : kCounts) {
      for (const size_t offset : {0, 1, 5}) {
        std::vector<Elements> inputs;
        for (const int n : kInputCounts) {
          while (static_cast<int>(inputs.size()) < n) {
            inputs.push_back(
                fill(dtype, count, (offset + inputs.size()) % 7, static_cast<uint32_t>(inputs.size())));
          }
          const Scales choices[] = {{1, 1}, {0.3, 1}, {1, 1.0 / 3}, {0.7, 3}};
          const Scales scales = choices[is_float(dtype) ? (count + static_cast<uint64_t>(n)) % 4 : 0];
          const int outputs = 1 + static_cast<int>((count + offset) % 3);
          const std::string wrong = fold_difference(dtype, op, inputs, outputs, count, offset, scales);
          if (!wrong.empty()) FAIL_CHECK(wrong);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("host_ops names its instruction set and is among those that are tested") {
  CHECK(std::string(host_ops().name).rfind("host ", 0) == 0);
  CHECK(std::find(all_ops().begin(), all_ops().end(), &host_ops()) != all_ops().end());
  std::string names;
  for (const DeviceOps* ops : all_ops()) names += cat("'", ops->name, "' ");
  INFO(names);
#if defined(__x86_64__)
  CHECK(all_ops().size() >= (__builtin_cpu_supports("avx2") ? 2u : 1u));
#endif
}

TEST_CASE("folds equal the scalar reference bit by bit") {
  for (int d = 1; d <= kDtypeCount; d++) check_all_folds(static_cast<Dtype>(d), ordinary);
}

TEST_CASE("folds of NaN, Inf, denormals and arbitrary bits equal the scalar reference") {
  for (const Dtype dtype : kFloats) check_all_folds(dtype, wild);
}

TEST_CASE("sums with streaming stores have the same bits, wherever they begin and end") {
  for (const Dtype dtype : kFloats) {
    for (const uint64_t count : {uint64_t{100}, uint64_t{4096}, uint64_t{9'001}}) {
      for (const size_t offset : {0, 1, 5}) {
        std::vector<Elements> inputs;
        for (uint32_t n = 0; n < 3; n++) {
          inputs.push_back(wild(dtype, count, (offset + n) % 7, n));
          for (const int outputs : {1, 2, 3}) {
            const std::string wrong =
                fold_difference(dtype, ReduceOp::kSum, inputs, outputs, count, offset, {1, 1.0 / 3}, true);
            if (!wrong.empty()) FAIL_CHECK(wrong);
          }
        }
      }
    }
  }
}

TEST_CASE("16-bit sums beyond the largest f16 do not overflow before they are scaled") {
  const uint16_t largest = reference::Half16::narrow(65504);
  const std::vector<uint16_t> input(40, largest);
  std::vector<uint16_t> output(40);
  const auto* in = reinterpret_cast<const std::byte*>(input.data());
  auto* out = reinterpret_cast<std::byte*>(output.data());
  const std::byte* const inputs[] = {in, in, in, in, in, in, in, in};
  for (const DeviceOps* ops : all_ops()) {
    FoldArgs args{.dtype = Dtype::kF16, .op = ReduceOp::kAvg, .inputs = inputs, .input_count = 8};
    args.outputs = &out;
    args.output_count = 1;
    args.count = output.size();
    args.postscale = 1.0 / 8;
    ops->fold(args);
    CHECK(output == input);
    args.postscale = 1.0;
    ops->fold(args);
    CHECK(output == std::vector<uint16_t>(40, 0x7C00));
  }
}

TEST_CASE(
    "every 16-bit value is converted to f32 and back without change, and every rounding boundary is exact") {
  std::vector<float> near;
  std::vector<uint16_t> all;
  for (uint32_t half = 0; half < 0x10000; half++) all.push_back(static_cast<uint16_t>(half));
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    const auto* bits = reinterpret_cast<const std::byte*>(all.data());
    near.clear();
    for (uint32_t half = 0; half < 0x7FFF; half++) {
      const auto low = static_cast<float>(reference::load(dtype, bits + 2 * half));
      const auto high = static_cast<float>(reference::load(dtype, bits + 2 * half + 2));
      const auto middle = static_cast<float>((double{low} + high) / 2);
      for (const float f : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
        near.push_back(f);
        near.push_back(-f);
      }
    }
    for (const DeviceOps* ops : all_ops()) {
      INFO(ops->name << " " << name(dtype));
      std::vector<float> wide(all.size());
      CopyArgs widen{.src = bits,
                     .dst = reinterpret_cast<std::byte*>(wide.data()),
                     .count = all.size(),
                     .src_dtype = dtype,
                     .dst_dtype = Dtype::kF32};
      const auto expected_wide = reference::convert(widen, false);
      ops->copy(widen);
      CHECK(equal(expected_wide, wide.data()));

      std::vector<uint16_t> narrow(near.size());
      CopyArgs shrink{.src = reinterpret_cast<const std::byte*>(near.data()),
                      .dst = reinterpret_cast<std::byte*>(narrow.data()),
                      .count = near.size(),
                      .src_dtype = Dtype::kF32,
                      .dst_dtype = dtype};
      const auto expected_narrow = reference::convert(shrink, false);
      ops->copy(shrink);
      CHECK(equal(expected_narrow, narrow.data()));
    }
  }
}

TEST_CASE("outputs may be inputs") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16, Dtype::kF64, Dtype::kI32, Dtype::kU8}) {
    for (const uint64_t count : kCounts) {
      for (const int n : kInputCounts) {
        std::vector<Elements> inputs;
        std::vector<const std::byte*> sources;
        for (int j = 0; j < n; j++) inputs.push_back(ordinary(dtype, count, 1, static_cast<uint32_t>(j)));
        for (const Elements& input : inputs) sources.push_back(input.data());
        FoldArgs args{.dtype = dtype, .inputs = sources.data(), .input_count = n, .count = count};
        const std::vector<std::byte> expected = reference::fold(args);
        for (const DeviceOps* ops : all_ops()) {
          for (int outputs = 1; outputs <= n; outputs++) {  // the last `outputs` inputs
            std::vector<Elements> buffers = inputs;
            std::vector<std::byte*> data;
            for (Elements& buffer : buffers) data.push_back(buffer.data());
            args.inputs = data.data();
            args.outputs = data.data() + (n - outputs);
            args.output_count = outputs;
            ops->fold(args);
            for (int j = 0; j < n; j++) {
              const auto at = static_cast<size_t>(j);
              INFO(ops->name << " " << name(dtype) << " count " << count << " inputs " << n << " outputs "
                             << outputs);
              if (j < n - outputs) {
                CHECK(buffers[at] == inputs[at]);
              } else {
                CHECK(equal(expected, buffers[at].data()));
                CHECK(buffers[at].guards_intact());
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("copies between all float types round once") {
  for (const Dtype src : kFloats) {
    for (const Dtype dst : kFloats) {
      for (const uint64_t count : kCounts) {
        for (const double scale : {1.0, 0.3, 1e-5}) {
          if (src == dst && scale == 1.0) continue;  // moves bits, below
          for (const bool special : {false, true}) {
            const Elements input = special ? wild(src, count, 3, 1) : ordinary(src, count, 3, 1);
            CopyArgs args{
                .src = input.data(), .count = count, .src_dtype = src, .dst_dtype = dst, .scale = scale};
            const auto expected = reference::convert(args, false);
            for (const DeviceOps* ops : all_ops()) {
              INFO(ops->name << " " << name(src) << " to " << name(dst) << " count " << count << " scale "
                             << scale);
              Elements output(dst, count, 1);
              args.dst = output.data();
              ops->copy(args);
              CHECK(equal(expected, output.data()));
              CHECK(output.guards_intact());
            }
          }
        }
      }
    }
  }
}

TEST_CASE("f64 reaches 16 bits in one rounding") {
  // Values just above halfway between 1 and the next f16 and bf16: rounded by way of f32 they would become
  // ties, and then 1.
  const double values[] = {1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 - 0x1p-40, 1e300,
                           -0x1p-25 - 0x1p-70};
  for (const Dtype dst : {Dtype::kF16, Dtype::kBf16}) {
    uint16_t halves[std::size(values)];
    CopyArgs args{.src = reinterpret_cast<const std::byte*>(values),
                  .dst = reinterpret_cast<std::byte*>(halves),
                  .count = std::size(values),
                  .src_dtype = Dtype::kF64,
                  .dst_dtype = dst};
    const auto expected = reference::convert(args, false);
    host_ops().copy(args);
    CHECK(equal(expected, halves));
    CHECK(halves[dst == Dtype::kF16 ? 0 : 1] == (dst == Dtype::kF16 ? 0x3C01 : 0x3F81));
  }
}

TEST_CASE("copies of equal types move bits, in place or not") {
  for (int d = 1; d <= kDtypeCount; d++) {
    const auto dtype = static_cast<Dtype>(d);
    const Elements input = wild(is_float(dtype) ? dtype : Dtype::kF64, 1000, 1, 3);
    for (const DeviceOps* ops : all_ops()) {
      Elements output(dtype, 999, 1);
      CopyArgs args{
          .src = input.data(), .dst = output.data(), .count = 999, .src_dtype = dtype, .dst_dtype = dtype};
      args.scale = is_float(dtype) ? 1.0 : 0.5;  // integers have no scale
      ops->copy(args);
      CHECK(std::memcmp(output.data(), input.data(), output.size()) == 0);
      CHECK(output.guards_intact());
      args.src = output.data();
      ops->copy(args);
      CHECK(std::memcmp(output.data(), input.data(), output.size()) == 0);
      args.scale = 0.5;
      if (!is_float(dtype)) continue;
      const auto expected = reference::convert(args, false);
      ops->copy(args);
      CHECK(equal(expected, output.data()));
    }
  }
}

TEST_CASE("copies with streaming stores move bits, wherever they begin and end") {
  constexpr uint64_t kMost = (uint64_t{64} << 10) + 700;
  const Elements input = wild(Dtype::kF64, kMost / 8 + 16, 1, 3);
  for (const DeviceOps* ops : all_ops()) {
    for (const uint64_t from : {0, 1, 63}) {
      for (const uint64_t to : {0, 1, 8, 33, 63}) {
        for (const uint64_t count : {uint64_t{0}, uint64_t{5}, kMost - 637, kMost}) {
          Elements output(Dtype::kU8, count, to);
          ops->copy({.src = input.data() + from,
                     .dst = output.data(),
                     .count = count,
                     .src_dtype = Dtype::kU8,
                     .dst_dtype = Dtype::kU8,
                     .streaming = true});
          CHECK(std::memcmp(output.data(), input.data() + from, count) == 0);
          CHECK(output.guards_intact());
        }
      }
    }
  }
}

TEST_CASE("accumulating rounds in the accumulator's type") {
  const std::pair<Dtype, Dtype> pairs[] = {{Dtype::kF32, Dtype::kF32}, {Dtype::kF64, Dtype::kF64},
                                           {Dtype::kF16, Dtype::kF16}, {Dtype::kBf16, Dtype::kBf16},
                                           {Dtype::kF16, Dtype::kF32}, {Dtype::kBf16, Dtype::kF32}};
  for (const auto& [src, dst] : pairs) {
    for (const uint64_t count : kCounts) {
      for (const bool special : {false, true}) {
        for (const double scale : {1.0, 0.3}) {
          const Elements input = special ? wild(src, count, 3, 1) : ordinary(src, count, 3, 1);
          const Elements before = special ? wild(dst, count, 1, 2) : ordinary(dst, count, 1, 2);
          for (const DeviceOps* ops : all_ops()) {
            INFO(ops->name << " " << name(src) << " to " << name(dst) << " count " << count << " scale "
                           << scale);
            Elements sum = before;
            const CopyArgs args{.src = input.data(),
                                .dst = sum.data(),
                                .count = count,
                                .src_dtype = src,
                                .dst_dtype = dst,
                                .scale = scale};
            const auto expected = reference::convert(args, true);
            ops->accumulate(args);
            CHECK(equal(expected, sum.data()));
            CHECK(sum.guards_intact());
          }
        }
      }
    }
  }
  std::vector<int32_t> sum(100, INT32_MAX);
  const std::vector<int32_t> one(100, 1);
  host_ops().accumulate({.src = reinterpret_cast<const std::byte*>(one.data()),
                         .dst = reinterpret_cast<std::byte*>(sum.data()),
                         .count = 100,
                         .src_dtype = Dtype::kI32,
                         .dst_dtype = Dtype::kI32});
  CHECK(sum == std::vector<int32_t>(100, INT32_MIN));
}

TEST_CASE("the caller's floating-point modes do not affect results, and are kept") {
  for (const Dtype dtype : kFloats) {
    const Elements a = wild(dtype, 1000, 0, 1), b = wild(dtype, 1000, 0, 2);
    const std::byte* const inputs[] = {a.data(), b.data()};
    FoldArgs args{.dtype = dtype, .inputs = inputs, .input_count = 2, .count = 1000, .prescale = 0.3};
    const auto expected = reference::fold(args);
    for (const DeviceOps* ops : all_ops()) {
      Elements output(dtype, 1000, 0);
      std::byte* out = output.data();
      args.outputs = &out;
      args.output_count = 1;
      std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
      _mm_setcsr(_mm_getcsr() | 0x8040);  // flush denormals to zero, as sources and as results
#endif
      ops->fold(args);
      const int mode = std::fegetround();
#if defined(__x86_64__)
      const bool flushes = (_mm_getcsr() & 0x8040) == 0x8040;
      _mm_setcsr(0x1F80);
      CHECK(flushes);
#endif
      std::fesetround(FE_TONEAREST);
      CHECK(mode == FE_UPWARD);
      CHECK(equal(expected, output.data()));
    }
  }
}

}  // namespace unit_kernels
