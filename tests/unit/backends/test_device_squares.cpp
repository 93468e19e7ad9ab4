// The CUDA module's sums of squares, compared bit by bit with those of the host: on the
// fake CUDA here, and on a real GPU in tests/gpu.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/text.h"
#include "device_rig.h"
#include "kernels/host_ops.h"

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

}  // namespace

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
