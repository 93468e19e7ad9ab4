// Two ranks of a built-in hook without communicators. This class runs their collectives, which makes very
// many steps affordable.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hooks_rig.h"

namespace weft::test {

// Returns the arrays of one kind that a built-in hook has saved, by parameter; empty if there are none.
// docs/dev/hooks.md has the format.
inline std::map<std::string, std::vector<float>> arrays_in(ByteView state, const std::string& kind) {
  std::map<std::string, std::vector<float>> found;
  ByteReader reader(state);
  reader.get_raw(sizeof(uint32_t) + sizeof(uint64_t) + 2 * sizeof(int32_t));
  for (auto kinds = reader.get<uint32_t>(); kinds > 0 && reader.ok(); kinds--) {
    const bool wanted = reader.get_string(4096) == kind;
    for (auto arrays = reader.get<uint64_t>(); arrays > 0 && reader.ok(); arrays--) {
      const std::string param = reader.get_string(4096);
      const ByteView raw = reader.get_raw(reader.get<uint64_t>() * sizeof(float));
      if (!wanted) continue;
      std::vector<float>& values = found[param];
      values.resize(raw.size() / sizeof(float));
      if (!raw.empty()) std::memcpy(values.data(), raw.data(), raw.size());
    }
  }
  REQUIRE(reader.done());
  return found;
}

class SimulatedHook {
 public:
  static constexpr int kRanks = 2;

  SimulatedHook(const std::string& name, const std::string& options, std::vector<int64_t> shape)
      : shape_(std::move(shape)), strides_(row_major(shape_)) {
    uint64_t count = 1;
    for (const int64_t extent : shape_) count *= static_cast<uint64_t>(extent);
    param_ = {sizeof param_,   0, "fc",  WEFT_DTYPE_F32, static_cast<int32_t>(shape_.size()), shape_.data(),
              strides_.data(), 0, count, nullptr};
    for (int32_t r = 0; r < kRanks; r++) {
      REQUIRE(built_in(name, options, &hooks_[r]).ok());
      weft_bucket& bucket = buckets_[r];
      bucket.dtype = WEFT_DTYPE_F32;
      bucket.count = count;
      bucket.divisor = bucket.size = kRanks;
      bucket.rank = r;
      bucket.params = &param_;
      bucket.param_count = 1;
      plans_[r] = {};
      REQUIRE(hooks_[r]->plan(bucket, &plans_[r]).ok());
      values_[r].resize(count);
      scratch_[r].resize(plans_[r].scratch_bytes / sizeof(float) + 16);
      bucket.buffer = values_[r].data();
      bucket.scratch = scratch_[r].data();
    }
  }
  std::vector<float>& values(int r) { return values_[r]; }
  Hook& hook(int r) { return *hooks_[r]; }
  // Called after a step.
  std::optional<ErrorMemory> memory(int r) { return hooks_[r]->error_memory(buckets_[r]); }
  uint64_t moved_bytes() const { return moved_bytes_; }  // of the last step's collectives, from one rank

  // Runs a step. Returns the number of its sequential collectives.
  uint64_t step() {
    uint64_t took_place = 0;
    moved_bytes_ = 0;
    for (uint32_t k = 0; k <= plans_[0].collective_count; k++) {
      weft_stage stages[kRanks] = {};
      for (int r = 0; r < kRanks; r++) {
        stages[r].index = k;
        ok_ &= hooks_[r]->stage(buckets_[r], &stages[r]).ok();
      }
      if (k == plans_[0].collective_count) continue;
      const bool optional = (plans_[0].collectives[k].flags & WEFT_HOOK_COLLECTIVE_OPTIONAL) != 0;
      if (optional) ok_ &= (stages[0].dynamic_count == 0) == (stages[1].dynamic_count == 0);
      if (optional && stages[0].dynamic_count == 0) continue;
      exchange(k);
      took_place++;
    }
    for (weft_bucket& bucket : buckets_) bucket.step++;
    return took_place;
  }

  // Runs the first stage of a step that then fails.
  void fail_step() {
    for (int r = 0; r < kRanks; r++) {
      weft_stage stage{};
      ok_ &= hooks_[r]->stage(buckets_[r], &stage).ok();
    }
  }

  // Returns the error memory of a rank: the part of its gradients that it has not sent.
  std::vector<float> errors(int r) {
    REQUIRE(ok_);
    Bytes state;
    REQUIRE(hooks_[r]->save(&state).ok());
    const auto errors = arrays_in(state, "error");
    REQUIRE(errors.count("fc") == 1);
    return errors.at("fc");
  }
  // Returns the norm of rank 0's error memory.
  double error_norm() {
    double norm = 0;
    for (const float e : errors(0)) norm += double{e} * double{e};
    return std::sqrt(norm);
  }

 private:
  std::byte* at(int r, uint32_t k, bool source) const {
    const weft_hook_collective& c = plans_[r].collectives[k];
    const int32_t space = source ? c.src_space : c.dst_space;
    auto* const base = space == WEFT_SPACE_BUCKET ? buckets_[r].buffer : buckets_[r].scratch;
    return static_cast<std::byte*>(base) + (source ? c.src_offset_bytes : c.dst_offset_bytes);
  }
  void exchange(uint32_t k) {
    const weft_hook_collective& c = plans_[0].collectives[k];
    const uint64_t bytes = c.count * dtype_size(static_cast<Dtype>(c.dtype));
    moved_bytes_ += bytes;
    Bytes sent[kRanks];  // a copy, because collectives may be in place
    for (int r = 0; r < kRanks; r++) {
      const std::byte* const from = at(r, k, true);
      sent[r].assign(from, from + (c.coll == WEFT_COLL_ALL_TO_ALL ? kRanks : 1) * bytes);
    }
    for (int r = 0; r < kRanks; r++) {
      std::byte* const to = at(r, k, false);
      if (c.coll == WEFT_COLL_ALL_REDUCE) {
        const bool most = c.op == WEFT_OP_MAX;
        ok_ &= c.dtype == WEFT_DTYPE_F32 && (most || c.op == WEFT_OP_AVG);
        for (uint64_t i = 0; i < c.count; i++) {
          float one = 0, two = 0;
          std::memcpy(&one, sent[0].data() + i * sizeof one, sizeof one);
          std::memcpy(&two, sent[1].data() + i * sizeof two, sizeof two);
          const float result = most ? std::max(one, two) : (one + two) / kRanks;
          std::memcpy(to + i * sizeof result, &result, sizeof result);
        }
        continue;
      }
      for (int from = 0; from < kRanks; from++) {
        const uint64_t block = c.coll == WEFT_COLL_ALL_TO_ALL ? static_cast<uint64_t>(r) * bytes : 0;
        std::memcpy(to + static_cast<uint64_t>(from) * bytes, sent[from].data() + block, bytes);
      }
    }
  }

  std::vector<int64_t> shape_, strides_;
  weft_bucket_param param_{};
  std::shared_ptr<Hook> hooks_[kRanks];
  weft_bucket buckets_[kRanks] = {};
  weft_hook_plan plans_[kRanks] = {};
  uint64_t moved_bytes_ = 0;
  bool ok_ = true;  // all calls succeeded so far; an assertion for each would be too slow
  std::vector<float> values_[kRanks], scratch_[kRanks];
};

}  // namespace weft::test
