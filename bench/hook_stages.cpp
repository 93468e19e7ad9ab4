// Times the stages of hooks that send codes on one core: encode (with error feedback), sum (the owner of a
// slice decodes all ranks' codes, adds them and encodes the mean) and decode. Not a test.
//
// The gradients are 100 MB of f32 values in four buckets. Two ranks are assumed, and no messages are sent:
// this rank's own codes stand in for the other rank's. A round runs every hook once, and copies the gradients
// once, which is the lower bound of each pass over them. Times are this thread's CPU time, so other programs
// disturb them little.
//
// Usage: hook_stages [--rounds N] [HOOK[:OPTIONS]]...    default: 15 rounds of int8, fp8 and fp8:format=e5m2
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.h"
#include "kernels/host_ops.h"
#include "registry.h"

using namespace weft;

namespace {

constexpr uint64_t kBuckets = 4;
constexpr uint64_t kCount = 6'250'000;  // values of a bucket: 25 MB
constexpr uint64_t kStages = 3;
constexpr int kRanks = 2;

using Times = std::array<double, kStages>;  // milliseconds of all buckets

double now_ms() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

// One bucket with its own parameter, as rank 0 of two sees it.
class Bucket {
 public:
  Bucket(Hook& hook, uint64_t index) : hook_(hook), name_(cat("layer", index)), values_(kCount) {
    param_.struct_size = sizeof param_;
    param_.name = name_.c_str();
    param_.dtype = WEFT_DTYPE_F32;
    param_.count = kCount;
    bucket_.struct_size = sizeof bucket_;
    bucket_.index = static_cast<uint32_t>(index);
    bucket_.bucket_count = kBuckets;
    bucket_.dtype = WEFT_DTYPE_F32;
    bucket_.count = kCount;
    bucket_.divisor = kRanks;
    bucket_.size = kRanks;
    bucket_.param_count = 1;
    bucket_.param_size = sizeof param_;
    bucket_.params = &param_;
    plan_.struct_size = sizeof plan_;
    check(hook.plan(bucket_, &plan_));
    scratch_.resize(plan_.scratch_bytes);
    bucket_.buffer = values_.data();
    bucket_.scratch = scratch_.data();
    bucket_.scratch_bytes = scratch_.size();
  }

  // Runs all stages with these gradients and adds their times.
  void step(uint64_t step, const std::vector<float>& gradients, Times* times) {
    std::copy(gradients.begin(), gradients.end(), values_.begin());
    bucket_.step = step;
    for (uint32_t k = 0; k < kStages; k++) {
      weft_stage stage{};
      stage.struct_size = sizeof stage;
      stage.index = k;
      const double start = now_ms();
      check(hook_.stage(bucket_, &stage));
      (*times)[k] += now_ms() - start;
      if (k + 1 < kStages) exchange(plan_.collectives[k]);
    }
  }
  // The mean of two ranks with equal gradients equals them, except for what codes lose.
  void compare(const std::vector<float>& gradients) const {
    for (uint64_t i = 0; i < kCount; i++) {
      if (!(std::abs(values_[i] - gradients[i]) < 0.5f)) throw std::runtime_error("a mean is wrong");
    }
  }

 private:
  static void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.text());
  }
  // Both ranks have the same codes: slice 0 comes from this rank and the other one. In the result, slice 1 is
  // encoded as the other rank would do it.
  void exchange(const weft_hook_collective& c) {
    std::byte* const from = scratch_.data() + c.src_offset_bytes;
    std::byte* const to = scratch_.data() + c.dst_offset_bytes;
    if (c.coll == WEFT_COLL_ALL_TO_ALL) other_.assign(from + c.count, from + 2 * c.count);
    if (c.coll == WEFT_COLL_ALL_TO_ALL) std::memcpy(to, from, c.count);
    std::memcpy(to + c.count, c.coll == WEFT_COLL_ALL_TO_ALL ? from : other_.data(), c.count);
  }

  Hook& hook_;
  const std::string name_;
  weft_bucket_param param_{};
  weft_bucket bucket_{};
  weft_hook_plan plan_{};
  std::vector<float> values_;
  std::vector<std::byte> scratch_, other_;
};

struct Measured {
  explicit Measured(std::string name_and_options) : name(std::move(name_and_options)) {
    const size_t colon = name.find(':');
    const std::string options = colon == std::string::npos ? "" : name.substr(colon + 1);
    const Status made =
        Registry::make_hook(name.substr(0, colon), {options, nullptr, host_ops(), nullptr, nullptr}, &hook);
    if (!made.ok()) throw std::runtime_error(made.text());
    for (uint64_t i = 0; i < kBuckets; i++) buckets.push_back(std::make_unique<Bucket>(*hook, i));
  }
  std::string name;
  std::shared_ptr<Hook> hook;
  std::vector<std::unique_ptr<Bucket>> buckets;
  std::vector<Times> rounds;
};

// Prints the minimum and the median of these times.
void print(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  std::printf("  %6.1f %6.1f", times.front(), times[times.size() / 2]);
}

void report(const Measured& measured) {
  std::printf("%-18s", measured.name.c_str());
  std::vector<double> total(measured.rounds.size());
  for (uint64_t k = 0; k < kStages; k++) {
    std::vector<double> times;
    for (size_t i = 0; i < total.size(); i++) {
      times.push_back(measured.rounds[i][k]);
      total[i] += times.back();
    }
    print(times);
  }
  print(total);
  std::printf("\n");
}

int run(int argc, char** argv) {
  uint64_t rounds = 15;
  std::vector<std::unique_ptr<Measured>> hooks;
  for (int i = 1; i < argc; i++) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max<uint64_t>(1, std::strtoull(argv[++i], nullptr, 10));
    } else {
      hooks.push_back(std::make_unique<Measured>(argv[i]));
    }
  }
  if (hooks.empty()) {
    for (const char* name : {"int8", "fp8", "fp8:format=e5m2"})
      hooks.push_back(std::make_unique<Measured>(name));
  }
  std::vector<float> gradients(kCount);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (float& value : gradients) value = normal(random);
  std::vector<std::vector<float>> from(kBuckets, gradients), to(kBuckets, gradients);
  std::vector<double> copies;
  for (uint64_t round = 0; round <= rounds; round++) {
    const double start = now_ms();
    for (uint64_t b = 0; b < kBuckets; b++) std::memcpy(to[b].data(), from[b].data(), kCount * sizeof(float));
    if (round > 0) copies.push_back(now_ms() - start);
    for (const auto& measured : hooks) {
      Times times{};
      for (const auto& bucket : measured->buckets) bucket->step(round, gradients, &times);
      if (round > 0) measured->rounds.push_back(times);
      if (round == 0) measured->buckets[0]->compare(gradients);
    }
  }
  std::printf("%s, ms of CPU for 100 MB of f32 on one core, minimum and median of %llu rounds\n",
              host_ops().name, static_cast<unsigned long long>(rounds));
  std::printf("%-18s  %13s  %13s  %13s  %13s\n", "", "encode", "sum", "decode", "together");
  for (const auto& measured : hooks) report(*measured);
  std::printf("%-18s", "copy");
  print(copies);
  std::printf("\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hook_stages: %s\n", error.what());
    return 1;
  }
}
