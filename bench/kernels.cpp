// Times the host's kernels on one core, after comparing each with the scalar reference. Not a test.
//
// - fold2 inplace: d = d + a, the work of a slice's owner with two ranks
// - fold2 malloc: the same in memory that is aligned like malloc's, to 16 bytes
// - fold2 both: the result goes to both inputs
// - fold4, fold8, fold16: more inputs, one output (all: as many outputs as inputs)
// - copy, scale: f32 to f32; the first is memcpy
// - f32>bf16 and the like: conversions with a scale
// - add bf16>f32: accumulation
// - int8 encode, decode and the like: converts values to one-byte codes with a scale for each 256 values, and
//   back; sign: one-bit codes, with a scale for each 64 values
// - left, right, product, residual of rank 4: products of a matrix and two thin factors, as in PowerSGD
// - select 1 %: selects the largest of normally distributed values
//
// An operand has 16 KiB (in L1), 256 KiB (in L2) or 64 MiB. GB/s counts the bytes of one operand (the f32
// side of a conversion), best of 15 measurements.
//
// Usage: kernels [--all]
// --all measures every instruction set instead of the best one.
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "hook/select_scratch.h"
#include "kernels/host_ops.h"
#include "support/kernels_reference.h"

using namespace weft;

namespace {

// A buffer that begins `offset` bytes behind the beginning of a page.
struct Buffer {
  explicit Buffer(uint64_t bytes, uint64_t offset = 0)
      : size(bytes),
        memory(new(std::align_val_t{4096}) std::byte[bytes + offset]),
        data(memory.get() + offset) {}
  struct Delete {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{4096}); }
  };
  uint64_t size;
  std::unique_ptr<std::byte[], Delete> memory;
  std::byte* data;
};

struct Work {
  std::string name;
  Dtype dtype;      // of the operands; of the destination, for conversions
  int inputs = 0;   // of a fold; 0: a copy or an accumulation
  int outputs = 1;  // the last inputs
  Dtype src = Dtype::kF32;
  double scale = 1.0;
  bool add = false;
  uint64_t offset = 0;  // bytes of all operands behind a page's beginning
};

const std::vector<Work>& works() {
  static const auto* list = new std::vector<Work>{
      {.name = "fold2 inplace f32", .dtype = Dtype::kF32, .inputs = 2},
      {.name = "fold2 malloc f32", .dtype = Dtype::kF32, .inputs = 2, .offset = 16},
      {.name = "fold2 inplace bf16", .dtype = Dtype::kBf16, .inputs = 2},
      {.name = "fold2 inplace f16", .dtype = Dtype::kF16, .inputs = 2},
      {.name = "fold2 inplace f64", .dtype = Dtype::kF64, .inputs = 2},
      {.name = "fold2 inplace i32", .dtype = Dtype::kI32, .inputs = 2},
      {.name = "fold2 scaled f32", .dtype = Dtype::kF32, .inputs = 2, .scale = 0.5},
      {.name = "fold2 scaled bf16", .dtype = Dtype::kBf16, .inputs = 2, .scale = 0.5},
      {.name = "fold2 both f32", .dtype = Dtype::kF32, .inputs = 2, .outputs = 2},
      {.name = "fold2 both bf16", .dtype = Dtype::kBf16, .inputs = 2, .outputs = 2},
      {.name = "fold4 f32", .dtype = Dtype::kF32, .inputs = 4},
      {.name = "fold4 all f32", .dtype = Dtype::kF32, .inputs = 4, .outputs = 4},
      {.name = "fold8 f32", .dtype = Dtype::kF32, .inputs = 8},
      {.name = "fold8 bf16", .dtype = Dtype::kBf16, .inputs = 8},
      {.name = "fold16 f32", .dtype = Dtype::kF32, .inputs = 16},
      {.name = "copy f32", .dtype = Dtype::kF32},
      {.name = "scale f32", .dtype = Dtype::kF32, .scale = 0.5},
      {.name = "f32>bf16", .dtype = Dtype::kBf16, .scale = 0.5},
      {.name = "f32>f16", .dtype = Dtype::kF16, .scale = 0.5},
      {.name = "bf16>f32", .dtype = Dtype::kF32, .src = Dtype::kBf16, .scale = 0.5},
      {.name = "f16>f32", .dtype = Dtype::kF32, .src = Dtype::kF16, .scale = 0.5},
      {.name = "add bf16>f32", .dtype = Dtype::kF32, .src = Dtype::kBf16, .add = true},
  };
  return *list;
}

Buffer fractions(Dtype dtype, uint64_t count, uint64_t offset) {
  Buffer buffer(count * dtype_size(dtype), offset);
  const uint32_t size = dtype_size(dtype);
  for (uint64_t i = 0; i < std::min<uint64_t>(count, 251); i++) {
    const int32_t whole = static_cast<int32_t>(i);
    if (is_float(dtype)) {
      reference::store(dtype, 1.0 / (1.0 + static_cast<double>(i)), buffer.data + i * size);
    } else {
      std::memcpy(buffer.data + i * size, &whole, size);
    }
  }
  for (uint64_t at = 251 * size; at < buffer.size; at++) buffer.data[at] = buffer.data[at - 251 * size];
  return buffer;
}

// One piece of work with its buffers; once() executes it.
class Run {
 public:
  Run(const Work& work, uint64_t count) : work_(work), count_(count) {
    for (int j = 0; j < std::max(1, work.inputs); j++) {
      buffers_.push_back(fractions(work.inputs > 0 ? work.dtype : work.src, count, work.offset));
    }
    if (work.inputs == 0) buffers_.push_back(fractions(work.dtype, count, work.offset));
    for (Buffer& buffer : buffers_) data_.push_back(buffer.data);
  }

  FoldArgs fold() {
    return {.dtype = work_.dtype,
            .op = ReduceOp::kSum,
            .inputs = data_.data(),
            .input_count = work_.inputs,
            .outputs = data_.data() + work_.inputs - work_.outputs,
            .output_count = work_.outputs,
            .count = count_,
            .postscale = work_.scale};
  }
  CopyArgs copy() {
    return {.src = data_[0],
            .dst = data_[1],
            .count = count_,
            .src_dtype = work_.src,
            .dst_dtype = work_.dtype,
            .scale = work_.scale};
  }
  void once(const DeviceOps& ops) {
    if (work_.inputs > 0) return ops.fold(fold());
    if (work_.add) return ops.accumulate(copy());
    ops.copy(copy());
  }
  bool correct(const DeviceOps& ops) {
    const std::vector<std::byte> expected =
        work_.inputs > 0 ? reference::fold(fold()) : reference::convert(copy(), work_.add);
    once(ops);
    return std::memcmp(buffers_.back().data, expected.data(), expected.size()) == 0;
  }

 private:
  const Work work_;
  const uint64_t count_;
  std::vector<Buffer> buffers_;
  std::vector<std::byte*> data_;
};

// Times `once`, which processes `bytes` bytes.
template <class Once>
double gigabytes_per_second(uint64_t bytes, Once&& once) {
  SystemClock clock;
  const uint64_t repeats = std::max<uint64_t>(1, (uint64_t{16} << 20) / bytes);
  std::vector<double> speeds;
  once();
  for (int i = 0; i < 15; i++) {
    const uint64_t start = clock.now_ns();
    for (uint64_t r = 0; r < repeats; r++) once();
    const uint64_t time = std::max<uint64_t>(1, clock.now_ns() - start);
    speeds.push_back(static_cast<double>(bytes * repeats) / static_cast<double>(time));
  }
  return *std::max_element(speeds.begin(), speeds.end());
}

double gigabytes_per_second(const DeviceOps& ops, const Work& work, uint64_t bytes) {
  const uint32_t size =
      work.inputs > 0 ? dtype_size(work.dtype) : std::max(dtype_size(work.dtype), dtype_size(work.src));
  Run run(work, bytes / size);
  return gigabytes_per_second(bytes, [&] { run.once(ops); });
}

struct CodeWork {
  const char* name;
  BlockCode code = BlockCode::kInt8;
  bool decode = false;
  bool stochastic = false;
  uint32_t block = 256;
};

constexpr CodeWork kCodeWorks[] = {
    {.name = "int8 encode"},
    {.name = "int8 encode random", .stochastic = true},
    {.name = "int8 decode", .decode = true},
    {.name = "e4m3 encode", .code = BlockCode::kE4m3},
    {.name = "e4m3 decode", .code = BlockCode::kE4m3, .decode = true},
    {.name = "sign encode", .code = BlockCode::kSign, .block = 64},
    {.name = "sign decode", .code = BlockCode::kSign, .decode = true, .block = 64},
};

// Values between 1/251 and 1, their codes and scales.
class CodeRun {
 public:
  CodeRun(const CodeWork& work, uint64_t count)
      : values_(fractions(Dtype::kF32, count, 0)),
        codes_(count),
        scales_((count + work.block - 1) / work.block * sizeof(float)) {
    to_.code = from_.code = work.code;
    to_.values = from_.values = reinterpret_cast<float*>(values_.data);
    to_.scales = reinterpret_cast<float*>(scales_.data);
    from_.scales = to_.scales;
    from_.codes = to_.codes = codes_.data;
    to_.count = from_.count = count;
    to_.block = from_.block = work.block;
    to_.stochastic = work.stochastic;
  }
  void encode(const DeviceOps& ops) const { ops.quantize(to_); }
  void decode(const DeviceOps& ops) const { ops.dequantize(from_); }
  // The error of a decoded value is at most 1/14 of its block's largest magnitude; signs are preserved.
  bool correct(const DeviceOps& ops) {
    const std::vector<float> before(to_.values, to_.values + to_.count);
    encode(ops);
    decode(ops);
    for (uint64_t i = 0; i < to_.count; i++) {
      const float value = to_.values[i];
      const bool good =
          to_.code == BlockCode::kSign ? value > 0 && value <= 1 : std::fabs(value - before[i]) <= 1.0f / 14;
      if (!good) return false;
    }
    return true;
  }

 private:
  Buffer values_, codes_, scales_;
  QuantizeArgs to_;
  DequantizeArgs from_;
};

double gigabytes_per_second(const DeviceOps& ops, const CodeWork& work, uint64_t bytes) {
  CodeRun run(work, bytes / sizeof(float));
  run.encode(ops);
  return gigabytes_per_second(bytes, [&] { work.decode ? run.decode(ops) : run.encode(ops); });
}

struct ProductWork {
  const char* name;
  LowRank product;
  bool add = false;
  bool streaming = false;
};

constexpr ProductWork kProductWorks[] = {
    {"left of rank 4", LowRank::kLeft},
    {"left of a sum", LowRank::kLeft, true},
    {"right of rank 4", LowRank::kRight},
    {"product of rank 4", LowRank::kMatrix},
    {"product, streamed", LowRank::kMatrix, false, true},
    {"residual of rank 4", LowRank::kResidual},
};

// A matrix with 4 to 16 times as many rows as columns, at most 4096 columns, and two factors of rank 4.
class ProductRun {
 public:
  ProductRun(const ProductWork& work, uint64_t count)
      : matrix_(fractions(Dtype::kF32, count, 0)), addend_(fractions(Dtype::kF32, count, 1)) {
    args_.product = work.product;
    args_.rank = 4;
    args_.columns = 16;
    while (args_.columns < 4096 && 16 * args_.columns * args_.columns <= count) args_.columns *= 2;
    args_.rows = count / args_.columns;
    left_.assign(args_.rows * args_.rank, 0.25f);
    right_.assign(args_.columns * args_.rank, 0.25f);
    args_.left = left_.data();
    args_.right = right_.data();
    args_.matrix = reinterpret_cast<float*>(matrix_.data);
    if (work.add) args_.addend = reinterpret_cast<const float*>(addend_.data);
    args_.streaming = work.streaming;
  }
  void once(const DeviceOps& ops) const { ops.low_rank(args_); }
  // Checks the first element of the result.
  bool correct(const DeviceOps& ops) const {
    double expected = args_.product == LowRank::kResidual ? double{args_.matrix[0]} - 0.25 : 0.25;
    if (args_.product == LowRank::kLeft || args_.product == LowRank::kRight) expected = 0;
    for (uint64_t j = 0; args_.product == LowRank::kLeft && j < args_.columns; j++) {
      expected += 0.25 * (double{args_.matrix[j]} + (args_.addend != nullptr ? args_.addend[j] : 0.0f));
    }
    for (uint64_t i = 0; args_.product == LowRank::kRight && i < args_.rows; i++) {
      expected += 0.25 * double{args_.matrix[i * args_.columns]};
    }
    once(ops);
    const float* const out = args_.product == LowRank::kLeft    ? args_.left
                             : args_.product == LowRank::kRight ? args_.right
                                                                : args_.matrix;
    return std::fabs(double{*out} - expected) < 1e-3;
  }

 private:
  Buffer matrix_, addend_;
  std::vector<float> left_, right_;
  LowRankArgs args_;
};

double gigabytes_per_second(const DeviceOps& ops, const ProductWork& work, uint64_t bytes) {
  const ProductRun run(work, bytes / sizeof(float));
  return gigabytes_per_second(bytes, [&] { run.once(ops); });
}

struct SelectWork {
  const char* name;
  uint64_t one_in;
};

constexpr SelectWork kSelectWorks[] = {{"select 0.1 %", 1000}, {"select 1 %", 100}, {"select 10 %", 10}};

class SelectRun {
 public:
  SelectRun(const SelectWork& work, uint64_t count)
      : values_(count),
        selected_(count / work.one_in),
        scratch_(select_host_scratch(count, count / work.one_in)) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& value : values_) value = normal(random);
  }
  void once(const DeviceOps& ops) {
    ops.select({values_.data(), values_.size(), selected_.size(), selected_.size(), selected_.data(), false,
                scratch_.data()});
  }
  // The number of values that reach the smallest selected one must equal the number of selected values.
  bool correct(const DeviceOps& ops) {
    once(ops);
    float least = INFINITY;
    for (const Selected& one : selected_) least = std::min(least, std::fabs(one.value));
    const auto reaches = [&](float value) { return std::fabs(value) >= least; };
    return static_cast<size_t>(std::count_if(values_.begin(), values_.end(), reaches)) == selected_.size();
  }

 private:
  std::vector<float> values_;
  std::vector<Selected> selected_;
  std::vector<uint32_t> scratch_;
};

double gigabytes_per_second(const DeviceOps& ops, const SelectWork& work, uint64_t bytes) {
  SelectRun run(work, bytes / sizeof(float));
  return gigabytes_per_second(bytes, [&] { run.once(ops); });
}

// Prints a line of the table; returns false if results are wrong.
template <class Work>
bool measure(const DeviceOps& ops, const Work& work, const std::string& name, bool correct) {
  std::printf("%-20s", name.c_str());
  for (const uint64_t bytes : {uint64_t{16} << 10, uint64_t{256} << 10, uint64_t{64} << 20}) {
    if (correct) std::printf(" %10.1f", gigabytes_per_second(ops, work, bytes));
  }
  std::printf(correct ? "\n" : " WRONG\n");
  return correct;
}

bool measure(const DeviceOps& ops) {
  std::printf("%s, GB/s of one operand\n%-20s %10s %10s %10s\n", ops.name, "", "16 KiB", "256 KiB", "64 MiB");
  for (const Work& work : works()) {
    if (!measure(ops, work, work.name, Run(work, 4099).correct(ops))) return false;
  }
  for (const CodeWork& work : kCodeWorks) {
    if (!measure(ops, work, work.name, CodeRun(work, 4099).correct(ops))) return false;
  }
  for (const ProductWork& work : kProductWorks) {
    if (!measure(ops, work, work.name, ProductRun(work, 4096).correct(ops))) return false;
  }
  for (const SelectWork& work : kSelectWorks) {
    if (!measure(ops, work, work.name, SelectRun(work, 40'099).correct(ops))) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "--all") != 0) return measure(host_ops()) ? 0 : 1;
  std::vector<const DeviceOps*> done;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    const DeviceOps* ops = &host_ops();
    if (std::find(done.begin(), done.end(), ops) != done.end()) continue;
    done.push_back(ops);
    if (!measure(*ops)) return 1;
  }
  return 0;
}
