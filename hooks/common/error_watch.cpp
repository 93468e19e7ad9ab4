#include "common/error_watch.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/bucket.h"

namespace weft {
namespace {

// Large parameters are measured by a sample: this many blocks of this many values, evenly spread.
constexpr uint64_t kBlock = 1024;
constexpr uint64_t kBlocks = 16;

// A memory keeps growing when its mean norm over a window of steps has risen by a fifth three times in a row
// and exceeds 6 gradients. If it exceeds 24 gradients, two rises suffice. Memories that converge have stopped
// rising by then.
constexpr float kWindow = 32;
constexpr float kRise = 1.2f;
constexpr float kLarge = 6;
constexpr float kHuge = 24;
constexpr uint64_t kStepsBetweenVotes = 8;
// An uncompressed bucket has recovered when its memory is at most this many gradients.
constexpr float kRecovered = 1;

double sum_of_squares(const DeviceOps& host, Dtype dtype, const void* values, uint64_t count) {
  const auto* const bytes = static_cast<const std::byte*>(values);
  const auto part = [&](uint64_t begin, uint64_t length) {
    return host.squares({bytes + begin * dtype_size(dtype), length, dtype}).sum;
  };
  if (count <= kBlock * kBlocks) return count > 0 ? part(0, count) : 0;
  double sum = 0;
  for (uint64_t b = 0; b < kBlocks; b++) sum += part((count - kBlock) / (kBlocks - 1) * b, kBlock);
  return sum * static_cast<double>(count) / (kBlock * kBlocks);
}

}  // namespace

void ErrorWatch::declare_plain(const weft_bucket& bucket, weft_hook_plan* plan) {
  weft_hook_collective& c = plan->collectives[plan->collective_count++];
  c.coll = WEFT_COLL_ALL_REDUCE;
  c.op = WEFT_OP_AVG;
  c.dtype = bucket.dtype;
  c.count = bucket.count;
  c.flags = WEFT_HOOK_COLLECTIVE_OPTIONAL;
}

void ErrorWatch::declare_vote(weft_hook_plan* plan, uint64_t offset_bytes) {
  weft_hook_collective& c = plan->collectives[plan->collective_count++];
  c.coll = WEFT_COLL_ALL_REDUCE;
  c.op = WEFT_OP_MAX;
  c.dtype = WEFT_DTYPE_F32;
  c.count = 1;
  c.src_space = c.dst_space = WEFT_SPACE_SCRATCH;
  c.src_offset_bytes = c.dst_offset_bytes = offset_bytes;
  c.flags = WEFT_HOOK_COLLECTIVE_OPTIONAL;
}

void ErrorWatch::measure_gradient(const weft_bucket& bucket) {
  const Dtype dtype = dtype_of(bucket);
  const auto* const gradient = static_cast<const std::byte*>(bucket.buffer);
  double sum = 0;
  for (const weft_bucket_param& p : params_of(bucket)) {
    sum += sum_of_squares(host_, dtype, gradient + p.offset * dtype_size(dtype), p.count);
  }
  const auto norm = static_cast<float>(std::sqrt(sum));
  fields(bucket)[kGradient] = std::isfinite(norm) ? norm : 0;
}

void ErrorWatch::release(const weft_bucket& bucket) {
  const std::vector<float>& f = fields(bucket);
  const float part = f[kMemory] > f[kGradient] ? f[kGradient] / f[kMemory] : 1;
  const Dtype dtype = dtype_of(bucket);
  std::array<float, kBlock> values;
  for (const weft_bucket_param& p : params_of(bucket)) {
    if (errors_.find(HookState::kError, p.name) == nullptr) continue;
    std::vector<float>& error = errors_.array(HookState::kError, p.name, p.count);
    for (uint64_t begin = 0; begin < p.count; begin += kBlock) {
      const uint64_t some = std::min(kBlock, p.count - begin);
      std::byte* const gradient =
          static_cast<std::byte*>(bucket.buffer) + (p.offset + begin) * dtype_size(dtype);
      copy(host_, dtype, gradient, Dtype::kF32, values.data(), some);
      for (uint64_t k = 0; k < some; k++) {
        const float released = part * error[begin + k];
        values[k] += released;
        error[begin + k] -= released;
      }
      copy(host_, Dtype::kF32, values.data(), dtype, gradient, some);
    }
  }
}

void ErrorWatch::measure_memory(const weft_bucket& bucket) {
  double sum = 0;
  for (const weft_bucket_param& p : params_of(bucket)) {
    const std::vector<float>* const error = errors_.find(HookState::kError, p.name);
    if (error != nullptr) sum += sum_of_squares(host_, Dtype::kF32, error->data(), error->size());
  }
  std::vector<float>& f = fields(bucket);
  f[kMemory] = static_cast<float>(std::sqrt(sum));
  if (f[kGradient] == 0) return;
  f[kRatio] = f[kMemory] / f[kGradient];
  if (f[kUncompressed] != 0) return;
  f[kMemorySum] += f[kMemory];
  f[kGradientSum] += f[kGradient];
  if (++f[kSteps] == kWindow) end_window(f);
}

void ErrorWatch::end_window(std::vector<float>& f) {
  const float before = f[kMean];
  const float gradient = f[kGradientSum] / kWindow;
  f[kMean] = f[kMemorySum] / kWindow;
  f[kMemorySum] = f[kGradientSum] = f[kSteps] = 0;
  f[kRises] = before > 0 && f[kMean] > kRise * before ? f[kRises] + 1 : 0;
  const bool grows =
      (f[kRises] >= 3 && f[kMean] > kLarge * gradient) || (f[kRises] >= 2 && f[kMean] > kHuge * gradient);
  f[kGrowing] = grows ? 1 : 0;
}

ErrorMemory ErrorWatch::of(const weft_bucket& bucket) {
  const std::vector<float>& f = fields(bucket);
  return {double{f[kRatio]}, f[kGrowing] != 0};
}

void ErrorWatch::stage(const weft_bucket& bucket, uint64_t iteration, uint32_t plain, void* vote,
                       weft_stage* stage) {
  const bool votes = iteration % kStepsBetweenVotes == 0;
  auto* const value = static_cast<float*>(vote);
  if (stage->index < plain) {
    stage->dynamic_count = uncompressed(bucket) ? 0 : 1;
  } else if (stage->index == plain) {
    stage->dynamic_count = uncompressed(bucket) ? 1 : 0;
  } else if (stage->index == plain + 1) {
    stage->dynamic_count = votes ? 1 : 0;
    if (votes) *value = wants_rescue(bucket) ? 1 : 0;
  } else if (votes) {
    decide(bucket, *value > 0);
  }
}

bool ErrorWatch::wants_rescue(const weft_bucket& bucket) {
  const std::vector<float>& f = fields(bucket);
  if (f[kUncompressed] == 0) return f[kGrowing] != 0;
  return f[kGradient] != 0 && f[kMemory] > kRecovered * f[kGradient];
}

// Sets the ranks' decision, which is equal on all ranks.
void ErrorWatch::decide(const weft_bucket& bucket, bool uncompressed) {
  std::vector<float>& f = fields(bucket);
  if ((f[kUncompressed] != 0) == uncompressed) return;
  f[kUncompressed] = uncompressed ? 1 : 0;
  f[kMemorySum] = f[kGradientSum] = f[kSteps] = f[kMean] = f[kRises] = f[kGrowing] = 0;  // new window
}

}  // namespace weft
