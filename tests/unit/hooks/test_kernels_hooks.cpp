// lib/kernels for hooks and norms: codes with scales, products with thin factors, sums of squares, and
// selection of the largest values. Results are compared with plain loops, and have the same bits on every
// instruction set that this machine has.
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/splitmix.h"
#include "hook/select_scratch.h"
#include "kernels/host_ops.h"
#include "support/catch.h"

namespace unit_kernels_hooks {

using namespace weft;

namespace {

constexpr uint64_t kCounts[] = {0, 1, 7, 8, 15, 16, 17, 255, 256, 257, 1000, 2049};
constexpr BlockCode kCodes[] = {BlockCode::kInt8, BlockCode::kE4m3, BlockCode::kE5m2, BlockCode::kSign};
constexpr uint32_t kBlock = 256;

std::vector<const DeviceOps*> all_ops() {
  std::vector<const DeviceOps*> found;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    const DeviceOps* ops = &host_ops();
    if (std::find(found.begin(), found.end(), ops) == found.end()) found.push_back(ops);
  }
  hwy::SetSupportedTargetsForTest(0);
  return found;
}

std::vector<float> normal_values(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

struct Coded {
  std::vector<float> scales, residual, decoded;
  std::vector<std::byte> codes;
  bool operator==(const Coded& other) const {
    return same_bytes(scales, other.scales) && same_bytes(residual, other.residual) &&
           same_bytes(decoded, other.decoded) && same_bytes(codes, other.codes);
  }
};

Coded coded(const DeviceOps& ops, BlockCode code, const std::vector<float>& values, bool stochastic,
            uint32_t seed = 1) {
  Coded out;
  out.scales.assign((values.size() + kBlock - 1) / kBlock, -1.0f);
  out.codes.assign(values.size(), std::byte{0});
  out.residual = values;
  out.decoded.assign(values.size(), 0.25f);
  QuantizeArgs args;
  args.code = code;
  args.block = kBlock;
  args.values = out.residual.data();
  args.scales = out.scales.data();
  args.codes = out.codes.data();
  args.count = values.size();
  args.residual = true;
  args.stochastic = stochastic;
  args.seed = seed;
  ops.quantize(args);
  DequantizeArgs back;
  back.code = code;
  back.block = kBlock;
  back.scales = out.scales.data();
  back.codes = out.codes.data();
  back.values = out.decoded.data();
  back.count = values.size();
  ops.dequantize(back);
  return out;
}

// Returns the value of an 8-bit code.
double fp8_value(unsigned code, int mantissa, int bias) {
  const int exponent = static_cast<int>(code & 0x7F) >> mantissa;
  const double fraction = static_cast<double>(code & ((1u << mantissa) - 1)) / (1 << mantissa);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return code & 0x80 ? -magnitude : magnitude;
}

double code_value(BlockCode code, std::byte byte) {
  const auto bits = std::to_integer<unsigned>(byte);
  if (code == BlockCode::kInt8) return static_cast<int8_t>(bits);
  return code == BlockCode::kE4m3 ? fp8_value(bits, 3, 7) : fp8_value(bits, 2, 15);
}

double largest_code(BlockCode code) {
  return code == BlockCode::kInt8 ? 127 : code == BlockCode::kE4m3 ? 448 : 57344;
}

}  // namespace

TEST_CASE("codes represent the nearest values, and residuals are exact") {
  for (const BlockCode code : {BlockCode::kInt8, BlockCode::kE4m3, BlockCode::kE5m2}) {
    for (const uint64_t count : kCounts) {
      const std::vector<float> values = normal_values(count, 3);
      const Coded got = coded(host_ops(), code, values, false);
      std::vector<double> all;  // every value that a code can represent
      for (unsigned c = 0; c < 256; c++) {
        const double v = code_value(code, std::byte(c));
        if (std::fabs(v) <= largest_code(code)) all.push_back(v);
      }
      for (uint64_t i = 0; i < count; i++) {
        const uint64_t block = i / kBlock;
        float largest = 0;
        for (uint64_t j = block * kBlock; j < std::min(count, (block + 1) * kBlock); j++) {
          largest = std::max(largest, std::fabs(values[j]));
        }
        const float scale = got.scales[block];
        REQUIRE(scale == largest / static_cast<float>(largest_code(code)));
        const double mine = code_value(code, got.codes[i]);
        REQUIRE(got.decoded[i] == static_cast<float>(mine) * scale);
        REQUIRE(got.residual[i] == values[i] - static_cast<float>(mine) * scale);
        const double wanted = double{values[i]} / double{scale};
        double best = 1e9;
        for (const double v : all) best = std::min(best, std::fabs(v - wanted));
        REQUIRE(std::fabs(mine - wanted) <= best * (1 + 1e-5) + 1e-5);
      }
    }
  }
}

TEST_CASE("signs carry the mean magnitude") {
  const std::vector<float> values = normal_values(1000, 5);
  const Coded got = coded(host_ops(), BlockCode::kSign, values, false);
  for (uint64_t i = 0; i < values.size(); i++) {
    double mean = 0;
    const uint64_t begin = i / kBlock * kBlock, end = std::min<uint64_t>(begin + kBlock, values.size());
    for (uint64_t j = begin; j < end; j++) mean += std::fabs(double{values[j]});
    mean /= static_cast<double>(end - begin);
    REQUIRE(double{got.decoded[i]} == Approx(values[i] < 0 ? -mean : mean).epsilon(1e-5));
    REQUIRE(got.residual[i] == values[i] - got.decoded[i]);
  }
}

TEST_CASE("stochastic rounding is right on average, nearest is not") {
  for (const BlockCode code : {BlockCode::kInt8, BlockCode::kE4m3, BlockCode::kE5m2}) {
    std::vector<float> values(kBlock, 0.3f);
    values[0] = 100.0f;  // makes the steps coarse
    double sum = 0;
    constexpr int kRepeats = 400;
    for (uint32_t seed = 0; seed < kRepeats; seed++) {
      const Coded got = coded(host_ops(), code, values, true, seed * 7919);
      for (uint64_t i = 1; i < kBlock; i++) sum += double{got.decoded[i]};
    }
    const double mean = sum / (kRepeats * (kBlock - 1));
    CHECK(mean == Approx(double{0.3f}).epsilon(0.02));
  }
}

TEST_CASE("blocks with infinities or NaN become NaN, blocks of zeros stay zeros") {
  for (const BlockCode code : kCodes) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::vector<float> values(600, 0.5f);
      values[300] = bad;
      std::fill(values.begin() + 512, values.end(), 0.0f);
      const Coded got = coded(host_ops(), code, values, false);
      for (uint64_t i = 0; i < 600; i++) {
        if (i < 256) REQUIRE(got.decoded[i] == Approx(0.5f));
        if (i >= 256 && i < 512) REQUIRE((std::isnan(got.decoded[i]) && got.residual[i] == 0.0f));
        if (i >= 512) REQUIRE((got.decoded[i] == 0.0f && got.residual[i] == 0.0f));
      }
    }
  }
}

TEST_CASE("every instruction set gives the same codes, residuals and values") {
  const auto tables = all_ops();
  for (const BlockCode code : kCodes) {
    for (const bool stochastic : {false, true}) {
      for (const uint64_t count : kCounts) {
        std::vector<float> values = normal_values(count, 11);
        for (uint64_t i = 0; i < count; i += 97) values[i] *= 1e-3f;
        if (count > 300) values[299] = std::numeric_limits<float>::infinity();
        const Coded first = coded(*tables[0], code, values, stochastic);
        for (const DeviceOps* ops : tables) {
          INFO(ops->name << ", code " << static_cast<int>(code) << ", " << count);
          REQUIRE(coded(*ops, code, values, stochastic) == first);
        }
      }
    }
  }
}

TEST_CASE("addends and an error give the bits of separate additions, on every instruction set") {
  for (const DeviceOps* ops : all_ops()) {
    for (const BlockCode code : kCodes) {
      for (const uint64_t count : kCounts) {
        INFO(ops->name << ", code " << static_cast<int>(code) << ", " << count);
        const std::vector<float> values = normal_values(count, 1), addend = normal_values(count, 2);
        std::vector<float> sums = values, error = normal_values(count, 3), expected_error = error;
        for (uint64_t i = 0; i < count; i++) sums[i] += addend[i];
        const Coded expected = coded(*ops, code, sums, false);
        for (uint64_t i = 0; i < count; i++) expected_error[i] += expected.residual[i] * 3.0f;

        Coded got = expected;
        std::fill(got.codes.begin(), got.codes.end(), std::byte{0});
        got.residual = values;
        QuantizeArgs args;
        args.code = code;
        args.block = kBlock;
        args.values = got.residual.data();
        args.scales = got.scales.data();
        args.codes = got.codes.data();
        args.count = count;
        args.addend = addend.data();
        args.residual = true;
        ops->quantize(args);
        REQUIRE(got == expected);

        args.values = sums.data();
        args.addend = nullptr;
        args.error = error.data();
        args.error_scale = 3;
        ops->quantize(args);
        REQUIRE(same_bytes(error, expected_error));
        REQUIRE(same_bytes(got.codes, expected.codes));
      }
    }
  }
}

TEST_CASE("several inputs decode to their sum in order, scaled, on every instruction set") {
  for (const DeviceOps* ops : all_ops()) {
    for (const BlockCode code : kCodes) {
      for (const uint64_t count : {1, 17, 255, 2049}) {
        INFO(ops->name << ", code " << static_cast<int>(code) << ", " << count);
        constexpr uint64_t kInputs = 3;
        const uint64_t scales = (count + kBlock - 1) / kBlock, stride = (scales + 3000) * sizeof(float);
        std::vector<std::byte> inputs(kInputs * stride);
        std::vector<float> expected(count), got(count, -1.0f);
        for (uint64_t k = 0; k < kInputs; k++) {
          const Coded one = coded(*ops, code, normal_values(count, static_cast<uint32_t>(k)), false);
          std::memcpy(inputs.data() + k * stride, one.scales.data(), scales * sizeof(float));
          std::memcpy(inputs.data() + k * stride + scales * sizeof(float), one.codes.data(), count);
          for (uint64_t i = 0; i < count; i++)
            expected[i] = k > 0 ? expected[i] + one.decoded[i] : one.decoded[i];
        }
        for (float& value : expected) value *= 0.3f;
        DequantizeArgs args;
        args.code = code;
        args.block = kBlock;
        args.scales = reinterpret_cast<const float*>(inputs.data());
        args.codes = inputs.data() + scales * sizeof(float);
        args.inputs = kInputs;
        args.stride_bytes = stride;
        args.values = got.data();
        args.count = count;
        args.postscale = 0.3f;
        ops->dequantize(args);
        REQUIRE(same_bytes(got, expected));
      }
    }
  }
}

TEST_CASE("products with thin factors are those of plain loops, the same on every instruction set") {
  const auto tables = all_ops();
  for (const uint64_t rows : {1, 3, 4, 9}) {
    for (const uint64_t columns : {1, 15, 16, 37, 2100}) {
      for (const uint64_t rank : {1, 2, 3, 4, 7}) {
        const std::vector<float> matrix = normal_values(rows * columns, 1);
        const std::vector<float> left = normal_values(rows * rank, 2),
                                 right = normal_values(columns * rank, 3);
        for (const LowRank product :
             {LowRank::kLeft, LowRank::kRight, LowRank::kMatrix, LowRank::kResidual}) {
          std::vector<float> first;
          for (const DeviceOps* ops : tables) {
            std::vector<float> m = matrix, p = left, q = right;
            LowRankArgs args{product, rows, columns, rank, m.data(), p.data(), q.data()};
            ops->low_rank(args);
            const std::vector<float>& out = product == LowRank::kLeft    ? p
                                            : product == LowRank::kRight ? q
                                                                         : m;
            if (first.empty()) first = out;
            REQUIRE(std::memcmp(out.data(), first.data(), out.size() * sizeof(float)) == 0);
          }
          for (uint64_t e = 0; e < first.size(); e++) {
            double expected = product == LowRank::kResidual ? double{matrix[e]} : 0;
            if (product == LowRank::kLeft) {
              for (uint64_t j = 0; j < columns; j++) {
                expected += double{matrix[e % rows * columns + j]} * double{right[e / rows * columns + j]};
              }
            } else if (product == LowRank::kRight) {
              for (uint64_t i = 0; i < rows; i++) {
                expected += double{matrix[i * columns + e % columns]} * double{left[e / columns * rows + i]};
              }
            } else {
              for (uint64_t k = 0; k < rank; k++) {
                const double term =
                    double{left[k * rows + e / columns]} * double{right[k * columns + e % columns]};
                expected += product == LowRank::kResidual ? -term : term;
              }
            }
            REQUIRE(std::fabs(double{first[e]} - expected) < 1e-3);
          }
        }
      }
    }
  }
}

TEST_CASE("a residual in separate memory equals the in-place one, and is zero where it is not finite") {
  constexpr uint64_t kRows = 5, kColumns = 37, kRank = 2;
  std::vector<float> matrix = normal_values(kRows * kColumns, 1);
  std::vector<float> left = normal_values(kRows * kRank, 2), right = normal_values(kColumns * kRank, 3);
  matrix[3] = std::numeric_limits<float>::infinity();
  matrix[kColumns + 36] = std::numeric_limits<float>::quiet_NaN();
  for (const DeviceOps* ops : all_ops()) {
    std::vector<float> in_place = matrix, kept = matrix, beside(matrix.size(), -1);
    LowRankArgs args{LowRank::kResidual, kRows, kColumns, kRank, in_place.data(), left.data(), right.data()};
    ops->low_rank(args);
    args.matrix = kept.data();
    args.residual = beside.data();
    ops->low_rank(args);
    CHECK(beside == in_place);
    CHECK(std::memcmp(kept.data(), matrix.data(), kept.size() * sizeof(float)) == 0);
    CHECK(beside[3] == 0);
    CHECK(beside[kColumns + 36] == 0);
    CHECK(beside[4] == in_place[4]);
    CHECK(beside[4] != 0);
  }
}

TEST_CASE("the left factor of a sum equals that of the summed matrix") {
  for (const uint64_t rows : {1, 4, 7}) {
    for (const uint64_t columns : {5, 16, 37}) {
      for (const uint64_t rank : {1, 3, 4, 6}) {
        const std::vector<float> matrix = normal_values(rows * columns, 1);
        const std::vector<float> addend = normal_values(rows * columns, 2);
        std::vector<float> right = normal_values(columns * rank, 3);
        for (const DeviceOps* ops : all_ops()) {
          std::vector<float> sum = matrix, expected_sum = matrix, left(rows * rank), expected(rows * rank);
          for (uint64_t i = 0; i < sum.size(); i++) expected_sum[i] += addend[i];
          LowRankArgs args{LowRank::kLeft,  rows,        columns, rank, expected_sum.data(),
                           expected.data(), right.data()};
          ops->low_rank(args);
          args.matrix = sum.data();
          args.left = left.data();
          args.addend = addend.data();
          ops->low_rank(args);
          CHECK(sum == expected_sum);
          CHECK(left == expected);
        }
      }
    }
  }
}

TEST_CASE("a product with streaming stores equals one without, wherever its rows begin") {
  constexpr uint64_t kRows = 5;
  for (const uint64_t columns : {3, 16, 37, 100}) {
    for (const uint64_t rank : {1, 2, 3, 4, 5}) {
      std::vector<float> left = normal_values(kRows * rank, 2), right = normal_values(columns * rank, 3);
      for (const uint64_t skipped : {0, 1, 8}) {
        for (const DeviceOps* ops : all_ops()) {
          std::vector<float> through(skipped + kRows * columns, -1), past = through;
          LowRankArgs args{LowRank::kMatrix,         kRows,       columns,     rank,
                           through.data() + skipped, left.data(), right.data()};
          ops->low_rank(args);
          args.matrix = past.data() + skipped;
          args.streaming = true;
          ops->low_rank(args);
          CHECK(past == through);
        }
      }
    }
  }
}

TEST_CASE("sums of squares are those of a plain loop, and equal on every instruction set") {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64}) {
    for (const uint64_t count : kCounts) {
      const std::vector<float> values = normal_values(count, 11);
      std::vector<std::byte> stored(count * dtype_size(dtype) + 1);
      std::byte* const at = stored.data();
      host_ops().copy(
          {reinterpret_cast<const std::byte*>(values.data()), at, count, Dtype::kF32, dtype, 1.0});
      std::vector<double> wide(count);
      host_ops().copy({at, reinterpret_cast<std::byte*>(wide.data()), count, dtype, Dtype::kF64, 1.0});
      double plain = 0;
      for (const double value : wide) plain += value * value;
      const Squares first = host_ops().squares({at, count, dtype});
      CHECK(std::abs(first.sum - plain) <= 1e-13 * plain);
      CHECK(first.finite);
      for (const DeviceOps* ops : all_ops()) {
        INFO(ops->name << ", " << weft::name(dtype) << " x " << count);
        CHECK(ops->squares({at, count, dtype}).sum == first.sum);
      }
    }
  }
}

TEST_CASE("sums of squares report whether all values are finite, also if the sum overflows") {
  for (const DeviceOps* ops : all_ops()) {
    std::vector<double> values(21, 1e200);
    const SquaresArgs args = {reinterpret_cast<const std::byte*>(values.data()), values.size(), Dtype::kF64};
    CHECK(std::isinf(ops->squares(args).sum));
    CHECK(ops->squares(args).finite);
    for (const double bad :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      values[20] = bad;
      CHECK_FALSE(ops->squares(args).finite);
    }
    std::vector<float> narrow(9, std::numeric_limits<float>::max());
    const SquaresArgs floats = {reinterpret_cast<const std::byte*>(narrow.data()), narrow.size(),
                                Dtype::kF32};
    CHECK(ops->squares(floats).finite);
    narrow[3] = -std::numeric_limits<float>::infinity();
    CHECK_FALSE(ops->squares(floats).finite);
  }
}

namespace {

struct Chosen {
  std::vector<Selected> selected;
  std::vector<float> left;
  bool operator==(const Chosen& other) const {
    return same_bytes(selected, other.selected) && same_bytes(left, other.left);
  }
};

Chosen chosen(const DeviceOps& ops, const std::vector<float>& values, uint64_t take, bool residual) {
  Chosen out{std::vector<Selected>(take + 3), values};
  std::vector<uint32_t> scratch(select_host_scratch(values.size(), take));
  ops.select({out.left.data(), values.size(), take, take + 3, out.selected.data(), residual, scratch.data()});
  return out;
}

// Computes the same by sorting all values.
Chosen chosen_by_sorting(const std::vector<float>& values, uint64_t take, bool residual) {
  const auto magnitude = [&](uint32_t place) { return std::bit_cast<uint32_t>(std::fabs(values[place])); };
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return magnitude(a) > magnitude(b); });
  order.resize(take);
  std::sort(order.begin(), order.end());
  Chosen out{{}, values};
  for (const uint32_t place : order) out.selected.push_back({place, values[place]});
  out.selected.resize(take + 3, {kNoPlace, 0.0f});
  if (!residual) return out;
  for (const uint32_t place : order) out.left[place] = 0;
  for (float& value : out.left) value = std::isfinite(value) ? value : 0;
  return out;
}

// Returns vectors in which many values are equal, or none, or infinite, or in order.
std::vector<std::vector<float>> values_to_choose_from(uint64_t count) {
  std::vector<std::vector<float>> all(7, normal_values(count, 21));
  for (uint64_t i = 0; i < count; i++) {
    all[1][i] = i % 3 == 0 ? 0.5f : -0.5f;
    all[2][i] = i % 200 == 7 ? all[2][i] : 0.0f;  // fewer than are selected
    if (i % 7 == 3) all[3][i] = std::numeric_limits<float>::infinity();
    if (i % 5000 == 17) all[4][i] = i % 2 == 0 ? std::nanf("") : -std::numeric_limits<float>::infinity();
    all[5][i] = static_cast<float>(i) * 0x1p-140f;  // ascending, from 0 over denormal ones
  }
  // Some of the places that the selection samples first have large values, and no other places do.
  const uint64_t looks = std::min<uint64_t>(count / 16, kSelectSampled);
  SplitMix64 random(count);
  for (uint64_t i = 0; i < std::min<uint64_t>(looks, 60); i++) {
    const uint64_t begin = i * count / looks, end = (i + 1) * count / looks;
    all[6][begin + ((random.next() >> 32) * (end - begin) >> 32)] = 100.0f;
  }
  return all;
}

}  // namespace

TEST_CASE("the largest values are those of sorting, of equal ones the first, on every instruction set") {
  const auto tables = all_ops();
  for (const uint64_t count : {0, 1, 10, 4099, 8191, 8192, 20'011}) {
    const auto lists = values_to_choose_from(count);
    for (size_t kind = 0; kind < lists.size(); kind++) {
      for (const uint64_t take :
           {uint64_t{0}, count / 1000, count / 300, count / 100, count / 10, count / 2, count}) {
        for (const bool residual : {false, true}) {
          const Chosen expected = chosen_by_sorting(lists[kind], take, residual);
          for (const DeviceOps* ops : tables) {
            INFO(ops->name << ": " << take << " of " << count << ", list " << kind);
            REQUIRE(chosen(*ops, lists[kind], take, residual) == expected);
          }
        }
      }
    }
  }
}

TEST_CASE("the largest of very many values are those of sorting") {
  const uint64_t count = kSelectMany + 3;
  auto lists = values_to_choose_from(count);
  for (const size_t kind : {0u, 2u, 3u}) {
    const std::vector<float>& values = lists[kind];
    for (const uint64_t take : {count / 100, count / 9}) {
      const Chosen expected = chosen_by_sorting(values, take, true);
      for (const DeviceOps* ops : all_ops()) {
        INFO(ops->name << ": " << take << ", list " << kind);
        REQUIRE(chosen(*ops, values, take, true) == expected);
      }
    }
  }
}

}  // namespace unit_kernels_hooks
