// The CUDA module's kernels, compared bit by bit with their host counterparts: on the fake CUDA here, and on
// a real GPU in tests/gpu (WEFT_TEST_REAL_CUDA).
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/text.h"
#include "device_rig.h"
#include "kernels/host_ops.h"
#include "support/kernels_reference.h"

using namespace weft;
using weft::test::Device;
using weft::test::Memory;

namespace {

// Returns random bits, with many special numbers: NaNs, Inf, zeros, denormals, and midpoints between two
// values.
std::vector<std::byte> wild(Dtype dtype, uint64_t count, uint32_t seed) {
  std::vector<std::byte> bytes(count * dtype_size(dtype));
  std::mt19937_64 random(seed);
  constexpr double kSpecial[] = {0.0,     -0.0,    INFINITY,   -INFINITY, 65504,        65519.996, 65520,
                                 0x1p-24, 0x1p-25, 0x1p-126,   0x1p-133,  0x1p-149,     3.4e38,    -3.38e38,
                                 1.7e308, 5e-324,  1.00390625, NAN,       1.00048828125};
  for (uint64_t at = 0; at < bytes.size(); at += dtype_size(dtype)) {
    const uint64_t bits = random();
    if (is_float(dtype) && random() % 2 == 0) {
      reference::store(dtype, kSpecial[bits % std::size(kSpecial)], bytes.data() + at);
    } else {
      std::memcpy(bytes.data() + at, &bits, dtype_size(dtype));
    }
  }
  return bytes;
}

constexpr Dtype kFloats[] = {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64};
constexpr Dtype kAll[] = {Dtype::kU8,  Dtype::kI8,  Dtype::kU16, Dtype::kI16,  Dtype::kU32, Dtype::kI32,
                          Dtype::kU64, Dtype::kI64, Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64};

// Flattens tensors of many sizes into one bucket, on the device and on the host, and compares.
void check_flatten(Device& device, Dtype src_dtype, Dtype dst_dtype, double scale, size_t offset) {
  constexpr uint64_t kCounts[] = {1, 3, 16, 1000, 1023, 2 * kCopyPieceElements + 5};
  const uint64_t src_size = dtype_size(src_dtype);
  const uint64_t dst_size = dtype_size(dst_dtype);
  uint64_t total = 0;
  for (const uint64_t count : kCounts) total += count;
  const std::vector<std::byte> tensors = wild(src_dtype, total, static_cast<uint32_t>(total + offset));
  std::vector<std::byte> expected(total * dst_size);
  host_ops().copy({tensors.data(), expected.data(), total, src_dtype, dst_dtype, scale});

  Memory src(tensors.size(), offset * src_size), bucket(expected.size(), offset * dst_size);
  src.write(tensors);
  std::byte* table = nullptr;
  REQUIRE(device.runtime().allocate_pinned(0, 4096, &table).ok());
  auto* const pieces = reinterpret_cast<CopyPiece*>(table);
  uint32_t number = 0;
  uint64_t at = 0;
  for (const uint64_t count : kCounts) {
    for (uint64_t done = 0; done < count; done += kCopyPieceElements, number++) {
      pieces[number] = {src.get() + (at + done) * src_size, bucket.get() + (at + done) * dst_size,
                        std::min(count - done, kCopyPieceElements)};
    }
    at += count;
  }
  CopyPiecesArgs args{pieces, number, static_cast<uint8_t>(src_dtype), static_cast<uint8_t>(dst_dtype),
                      scale};
  const Status launched = device.runtime().copy_pieces(0, device.stream(), args);
  INFO(cat(name(src_dtype), " to ", name(dst_dtype), " scaled by ", scale, " at ", offset, ": ",
           launched.text()));
  REQUIRE(launched.ok());
  device.synchronize();
  CHECK(bucket.read() == expected);
  device.runtime().free_pinned(table);
}

void check_accumulate(Device& device, Dtype src_dtype, Dtype dst_dtype, double scale, uint64_t count) {
  const std::vector<std::byte> given = wild(src_dtype, count, 5), before = wild(dst_dtype, count, 6);
  std::vector<std::byte> expected = before;
  host_ops().accumulate({given.data(), expected.data(), count, src_dtype, dst_dtype, scale});
  Memory src(given.size(), 0), dst(before.size(), 0), table(sizeof(CopyPiece), 0);
  src.write(given);
  dst.write(before);
  const CopyPiece piece{src.get(), dst.get(), count};
  std::vector<std::byte> bytes(sizeof piece);
  std::memcpy(bytes.data(), &piece, sizeof piece);
  table.write(bytes);
  const CopyPiecesArgs args{reinterpret_cast<const CopyPiece*>(table.get()), 1,
                            static_cast<uint8_t>(src_dtype), static_cast<uint8_t>(dst_dtype), scale};
  INFO(cat(name(src_dtype), " added to ", name(dst_dtype), " scaled by ", scale));
  REQUIRE(device.runtime().accumulate_pieces(0, device.stream(), args).ok());
  device.synchronize();
  CHECK(dst.read() == expected);
}

void check_fold(Device& device, Dtype dtype, ReduceOp op, int inputs, uint64_t count, double pre,
                double post) {
  const uint64_t size = count * dtype_size(dtype);
  std::vector<std::vector<std::byte>> given;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<const std::byte*> host_inputs;
  FoldKernelArgs args{};
  for (int k = 0; k < inputs; k++) {
    given.push_back(wild(dtype, count, static_cast<uint32_t>(count) + static_cast<uint32_t>(k)));
    memory.push_back(std::make_unique<Memory>(size, 0));
    memory.back()->write(given.back());
    args.inputs[k] = memory.back()->get();
  }
  for (const auto& bytes : given) host_inputs.push_back(bytes.data());
  std::vector<std::byte> expected(size);
  std::byte* const output = expected.data();
  host_ops().fold({dtype, op, host_inputs.data(), inputs, &output, 1, count, pre, post});

  Memory other(size, 0);
  args.outputs[0] = other.get();
  args.outputs[1] = memory[0]->get();  // in place
  args.input_count = inputs;
  args.output_count = 2;
  args.dtype = static_cast<uint8_t>(dtype);
  args.op = static_cast<uint8_t>(op);
  args.count = count;
  args.prescale = pre;
  args.postscale = post;
  const Status launched = device.runtime().fold(0, device.stream(), args);
  INFO(cat(name(op), " of ", inputs, " ", name(dtype), " x ", count, ": ", launched.text()));
  REQUIRE(launched.ok());
  device.synchronize();
  CHECK(other.read() == expected);
  CHECK(memory[0]->read() == expected);
}

}  // namespace

TEST_CASE("one launch flattens any number of tensors, scaled and cast as on the host") {
  Device device;
  for (const Dtype src : kFloats) {
    for (const Dtype dst : kFloats) {
      for (const double scale : {1.0, 0.5, 1.0 / 3}) {
        for (const size_t offset : {size_t{0}, size_t{1}}) check_flatten(device, src, dst, scale, offset);
      }
    }
  }
  for (const Dtype dtype : kAll) check_flatten(device, dtype, dtype, 1.0, 1);
}

TEST_CASE("values that are added to a buffer are scaled and rounded as on the host") {
  Device device;
  for (const Dtype src : kFloats) {
    for (const Dtype dst : kFloats) {
      if (src != dst && (src == Dtype::kF64 || dst == Dtype::kF64)) continue;
      for (const double scale : {1.0, 1.0 / 3}) check_accumulate(device, src, dst, scale, 1000);
    }
  }
  for (const Dtype dtype : kAll) {
    if (!is_float(dtype)) check_accumulate(device, dtype, dtype, 1.0, 777);
  }
}

TEST_CASE("folds are the host's, bit by bit") {
  Device device;
  for (const Dtype dtype : kAll) {
    for (int op = 1; op <= kReduceOpCount; op++) {
      if (!check_reduction(static_cast<ReduceOp>(op), dtype).ok()) continue;
      for (const int inputs : {1, 2, 5}) {
        check_fold(device, dtype, static_cast<ReduceOp>(op), inputs, 4097, 1.0, 1.0);
        if (is_float(dtype)) check_fold(device, dtype, static_cast<ReduceOp>(op), inputs, 33, 0.25, 1.0 / 3);
      }
    }
  }
}

TEST_CASE("invalid launches are refused") {
  Device device;
  CopyPiecesArgs copy{nullptr, 1, static_cast<uint8_t>(Dtype::kI32), static_cast<uint8_t>(Dtype::kF32), 1.0};
  CHECK(device.runtime().copy_pieces(0, device.stream(), copy).code() == Code::kArg);
  copy = {nullptr, 0, static_cast<uint8_t>(Dtype::kF32), static_cast<uint8_t>(Dtype::kF16), 1.0};
  CHECK(device.runtime().copy_pieces(0, device.stream(), copy).ok());  // an empty list
  FoldKernelArgs fold{};
  fold.dtype = static_cast<uint8_t>(Dtype::kF32);
  fold.op = static_cast<uint8_t>(ReduceOp::kSum);
  CHECK(device.runtime().fold(0, device.stream(), fold).code() == Code::kArg);
  fold.input_count = FoldKernelArgs::kMost + 1;
  fold.output_count = 1;
  CHECK(device.runtime().fold(0, device.stream(), fold).code() == Code::kArg);
  fold.input_count = 1;
  fold.op = static_cast<uint8_t>(ReduceOp::kBand);
  CHECK(device.runtime().fold(0, device.stream(), fold).code() == Code::kUnsupported);
  copy = {nullptr, 1, static_cast<uint8_t>(Dtype::kF64), static_cast<uint8_t>(Dtype::kF32), 1.0};
  CHECK(device.runtime().accumulate_pieces(0, device.stream(), copy).code() == Code::kArg);
  SquaresKernelArgs squares{};
  squares.dtype = static_cast<uint8_t>(Dtype::kI32);
  CHECK(device.runtime().squares(0, device.stream(), squares).code() == Code::kArg);
}

TEST_CASE("Weft's own streams have the highest priority, so the program's streams do not delay them") {
  Device device;
  int lowest = 0, highest = 0, priority = 1;
  REQUIRE(cudaDeviceGetStreamPriorityRange(&lowest, &highest) == cudaSuccess);
  DeviceStream stream = nullptr;
  REQUIRE(device.runtime().create_stream(0, &stream).ok());
  REQUIRE(cudaStreamGetPriority(static_cast<cudaStream_t>(stream), &priority) == cudaSuccess);
  CHECK(priority == highest);
  device.runtime().destroy_stream(0, stream);
}
