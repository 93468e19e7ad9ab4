// The CUDA module's kernels for hooks and norms, compared bit by bit with their host counterparts: on the
// fake CUDA here, and on a real GPU in tests/gpu.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/text.h"
#include "device_rig.h"
#include "kernels/host_ops.h"
#include "powersgd/orthogonal.h"

using namespace weft;
using namespace weft::test;

namespace {

// Normally distributed values of different magnitudes, with zeros of both signs and denormals.
std::vector<float> some_values(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) {
    v = normal(random);
    const uint32_t dice = random() % 16;
    if (dice == 0) v *= 1e-4f;
    if (dice == 1) v = random() % 2 == 0 ? -0.0f : 0.0f;
    if (dice == 2) v *= 1e-39f;
  }
  return values;
}

struct Codes {
  BlockCode code = BlockCode::kInt8;
  uint32_t block = 256;
  bool stochastic = false;
  bool residual = false;
};

void check_codes(Device& device, const Codes& what, const std::vector<float>& values) {
  const uint64_t count = values.size();
  const uint64_t blocks = (count + what.block - 1) / what.block;
  QuantizeArgs args;
  args.code = what.code;
  args.block = what.block;
  args.count = count;
  args.residual = what.residual;
  args.stochastic = what.stochastic;
  args.seed = 4711;
  DequantizeArgs back;
  back.code = what.code;
  back.block = what.block;
  back.count = count;

  std::vector<float> kept = values, scales(blocks, -1.0f), plain(count, 0.25f), added(count, 0.25f);
  std::vector<std::byte> codes(count, std::byte{0});
  args.values = kept.data();
  args.scales = scales.data();
  args.codes = codes.data();
  host_ops().quantize(args);
  back.scales = scales.data();
  back.codes = codes.data();
  back.values = plain.data();
  host_ops().dequantize(back);
  back.add = true;
  back.values = added.data();
  host_ops().dequantize(back);

  Values<float> device_values(values), device_scales(std::vector<float>(blocks, -1.0f)),
      device_plain(std::vector<float>(count, 0.25f)), device_added(std::vector<float>(count, 0.25f));
  Values<std::byte> device_codes(count);
  args.values = device_values.get();
  args.scales = device_scales.get();
  args.codes = device_codes.get();
  back.scales = device_scales.get();
  back.codes = device_codes.get();
  INFO(cat("code ", static_cast<int>(what.code), ", blocks of ", what.block, ", ", count, " values",
           what.stochastic ? ", stochastic" : "", what.residual ? ", residual" : ""));
  REQUIRE(device.runtime().quantize(0, device.stream(), args).ok());
  back.add = false;
  back.values = device_plain.get();
  REQUIRE(device.runtime().dequantize(0, device.stream(), back).ok());
  back.add = true;
  back.values = device_added.get();
  REQUIRE(device.runtime().dequantize(0, device.stream(), back).ok());
  device.synchronize();
  CHECK(same_bits(device_scales.read(), scales));
  CHECK(same_bits(device_codes.read(), codes));
  CHECK(same_bits(device_values.read(), kept));
  CHECK(same_bits(device_plain.read(), plain));
  CHECK(same_bits(device_added.read(), added));
}

void check_squares(Device& device, const std::vector<float>& values, Dtype dtype) {
  const uint64_t count = values.size();
  std::vector<std::byte> stored(count * dtype_size(dtype));
  host_ops().copy(
      {reinterpret_cast<const std::byte*>(values.data()), stored.data(), count, Dtype::kF32, dtype, 1.0});
  const Squares expected = host_ops().squares({stored.data(), count, dtype});
  Values<std::byte> src(stored);
  Values<SquaresPart> parts((count + kSquaresRange - 1) / kSquaresRange);
  Values<Squares> result(1);
  const SquaresKernelArgs args{src.get(), count, static_cast<uint8_t>(dtype), parts.get(), result.get()};
  INFO(cat(name(dtype), " x ", count));
  REQUIRE(device.runtime().squares(0, device.stream(), args).ok());
  device.synchronize();
  const Squares got = result.read()[0];
  CHECK(got.finite == expected.finite);
  CHECK((got.sum == expected.sum || (std::isnan(got.sum) && std::isnan(expected.sum))));
}

void check_low_rank(Device& device, LowRank product, uint64_t rows, uint64_t columns, uint64_t rank,
                    uint64_t batch) {
  // The matrices lie apart, in reverse order.
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < batch; i++) offsets.push_back((batch - 1 - i) * (rows * columns + 5));
  std::vector<float> matrix = some_values(batch * (rows * columns + 5), 1);
  std::vector<float> left = some_values(batch * rows * rank, 2),
                     right = some_values(batch * columns * rank, 3);
  Values<float> device_matrix(matrix), device_left(left), device_right(right);
  Values<uint64_t> device_offsets(offsets);
  LowRankArgs args{product,     rows,         columns, rank,          matrix.data(),
                   left.data(), right.data(), batch,   offsets.data()};
  host_ops().low_rank(args);
  args.matrix = device_matrix.get();
  args.left = device_left.get();
  args.right = device_right.get();
  args.offsets = device_offsets.get();
  INFO(
      cat("product ", static_cast<int>(product), ", ", batch, " of ", rows, " x ", columns, ", rank ", rank));
  REQUIRE(device.runtime().low_rank(0, device.stream(), args).ok());
  device.synchronize();
  CHECK(same_bits(device_matrix.read(), matrix));
  CHECK(same_bits(device_left.read(), left));
  CHECK(same_bits(device_right.read(), right));
}

void check_orthonormal(Device& device, uint64_t rows, uint64_t rank, bool refill) {
  constexpr uint64_t kBatch = 3;
  std::vector<float> columns = some_values(kBatch * rows * rank, static_cast<uint32_t>(rows + rank));
  // The second matrix has a column of zeros, the third one two equal columns.
  std::fill_n(columns.begin() + static_cast<ptrdiff_t>(rows * rank), rows, 0.0f);
  if (rank > 1) {
    const auto third = columns.begin() + static_cast<ptrdiff_t>(2 * rows * rank);
    std::copy_n(third, rows, third + static_cast<ptrdiff_t>(rows));
  }
  Values<float> device_columns(columns);
  OrthonormalArgs args;
  args.columns = device_columns.get();
  args.rows = rows;
  args.rank = rank;
  args.batch = kBatch;
  args.epsilon = 1e-8;
  args.refill = refill;
  args.seed = 99;
  for (uint64_t i = 0; i < kBatch; i++) {
    float* const own = columns.data() + i * rows * rank;
    if (refill) {
      hook_powersgd::orthonormalize_or_refill(own, rows, rank, args.epsilon, args.seed);
    } else {
      hook_powersgd::orthonormalize(own, rows, rank, args.epsilon);
    }
  }
  INFO(cat(rows, " rows, rank ", rank, refill ? ", refilled" : ""));
  REQUIRE(device.runtime().orthonormalize(0, device.stream(), args).ok());
  device.synchronize();
  CHECK(same_bits(device_columns.read(), columns));
}

void check_select(Device& device, const std::vector<float>& values, uint64_t take, uint64_t room,
                  bool residual) {
  std::vector<float> kept = values;
  std::vector<Selected> selected(room);
  std::vector<uint32_t> scratch(select_scratch(values.size()));
  SelectArgs args{kept.data(), values.size(), take, room, selected.data(), residual, scratch.data()};
  host_ops().select(args);
  Values<float> device_values(values);
  Values<Selected> device_selected(room);
  Values<uint32_t> device_scratch(std::vector<uint32_t>(scratch.size(), 0xABABABAB));
  args.values = device_values.get();
  args.selected = device_selected.get();
  args.scratch = device_scratch.get();
  INFO(cat(take, " of ", values.size(), ", room for ", room, residual ? ", residual" : ""));
  REQUIRE(device.runtime().select(0, device.stream(), args).ok());
  device.synchronize();
  CHECK(same_bits(device_selected.read(), selected));
  CHECK(same_bits(device_values.read(), kept));
}

}  // namespace

TEST_CASE(
    "codes, scales, residuals and decoded values are the host's, bit by bit, also with stochastic rounding") {
  Device device;
  for (const BlockCode code : {BlockCode::kInt8, BlockCode::kE4m3, BlockCode::kE5m2, BlockCode::kSign}) {
    for (const uint64_t count : {0, 1, 7, 16, 255, 256, 257, 1000, 5001}) {
      std::vector<float> values = some_values(count, static_cast<uint32_t>(count));
      if (count > 600) {
        values[300] = std::numeric_limits<float>::infinity();
        values[40] = 3e38f;
        std::fill_n(values.begin() + 512, 256, 1e-35f);
      }
      if (count > 4000) values[4000] = std::nanf("");
      for (const bool stochastic : {false, true}) {
        for (const bool residual : {false, true})
          check_codes(device, {code, 256, stochastic, residual}, values);
      }
      check_codes(device, {code, 16, false, true}, values);
      check_codes(device, {code, 1024, true, true}, values);
    }
  }
}

TEST_CASE("sums of squares are the host's, bit by bit, and detect values that are not finite") {
  Device device;
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64}) {
    for (const uint64_t count : {0, 1, 31, 33, 1024, 1025, 9000, 300'000}) {
      std::vector<float> values = some_values(count, 8);
      check_squares(device, values, dtype);
      if (count < 1000) continue;
      values[count - 1] = -std::numeric_limits<float>::infinity();
      check_squares(device, values, dtype);
      values[3] = std::nanf("");
      check_squares(device, values, dtype);
    }
  }
  // Finite values whose squares overflow.
  std::vector<double> large(2000, 1e200);
  Values<double> src(large);
  Values<SquaresPart> parts(2);
  Values<Squares> result(1);
  const SquaresKernelArgs args{reinterpret_cast<const std::byte*>(src.get()), large.size(),
                               static_cast<uint8_t>(Dtype::kF64), parts.get(), result.get()};
  REQUIRE(device.runtime().squares(0, device.stream(), args).ok());
  device.synchronize();
  CHECK(std::isinf(result.read()[0].sum));
  CHECK(result.read()[0].finite);
}

TEST_CASE("products with thin factors are the host's, bit by bit, for any number of matrices") {
  Device device;
  for (const LowRank product : {LowRank::kLeft, LowRank::kRight, LowRank::kMatrix, LowRank::kResidual}) {
    for (const uint64_t rows : {1, 15, 17, 40}) {
      for (const uint64_t columns : {1, 16, 37, 300}) {
        for (const uint64_t rank : {1, 2, 5})
          check_low_rank(device, product, rows, columns, rank, 1 + rows % 3);
      }
    }
  }
}

TEST_CASE("products by cuBLAS, or without it, are the host's to within rounding") {
  Device device;
  for (const LowRank product : {LowRank::kLeft, LowRank::kRight, LowRank::kResidual}) {
    for (const uint64_t rows : {1, 17, 100}) {
      constexpr uint64_t kColumns = 60, kRank = 3, kBatch = 2;
      std::vector<float> matrix = some_values(kBatch * rows * kColumns, 4);
      std::vector<float> left = some_values(kBatch * rows * kRank, 5),
                         right = some_values(kBatch * kColumns * kRank, 6);
      const uint64_t offsets[kBatch] = {rows * kColumns, 0};
      Values<float> device_matrix(matrix), device_left(left), device_right(right);
      std::byte* pinned = nullptr;
      REQUIRE(device.runtime().allocate_pinned(0, sizeof offsets, &pinned).ok());
      std::memcpy(pinned, offsets, sizeof offsets);
      LowRankArgs args{product,     rows,         kColumns, kRank,  matrix.data(),
                       left.data(), right.data(), kBatch,   offsets};
      host_ops().low_rank(args);
      args.matrix = device_matrix.get();
      args.left = device_left.get();
      args.right = device_right.get();
      args.offsets = reinterpret_cast<const uint64_t*>(pinned);
      const Status done = device.runtime().low_rank_fast(0, device.stream(), args);
      INFO(done.text());
      REQUIRE(done.ok());
      device.synchronize();
      const auto close = [](const std::vector<float>& a, const std::vector<float>& b) {
        float most = 0;
        for (size_t i = 0; i < a.size(); i++) most = std::max(most, std::fabs(a[i] - b[i]));
        return most < 1e-4f;
      };
      CHECK(close(device_matrix.read(), matrix));
      CHECK(close(device_left.read(), left));
      CHECK(close(device_right.read(), right));
      device.runtime().free_pinned(pinned);
    }
  }
}

TEST_CASE(
    "columns become orthonormal as on the host, bit by bit, and what depends on others zero or random") {
  Device device;
  for (const uint64_t rows : {1, 5, 256, 1000}) {
    for (const uint64_t rank : {1, 2, 4}) {
      for (const bool refill : {false, true}) check_orthonormal(device, rows, std::min(rows, rank), refill);
    }
  }
}

TEST_CASE("the largest values are selected as on the host: of equal ones the first, in index order") {
  Device device;
  for (const uint64_t count : {0, 1, 10, 4096, 4097, 20'000}) {
    std::vector<float> values = some_values(count, static_cast<uint32_t>(count) + 1);
    for (uint64_t i = 0; i < count; i += 3) values[i] = i % 2 == 0 ? 0.5f : -0.5f;
    for (int odd = 0; odd < 2; odd++) {
      for (const uint64_t take : {count / 100, count / 3, count / 2, count}) {
        for (const bool residual : {false, true}) check_select(device, values, take, take + 3, residual);
      }
      check_select(device, values, 0, 0, true);
      if (count < 10) break;
      for (uint64_t i = 1; i < count; i += 7) values[i] = std::numeric_limits<float>::infinity();
      values[count / 2] = std::nanf("");
      values[count - 1] = -std::numeric_limits<float>::infinity();
    }
  }
}
