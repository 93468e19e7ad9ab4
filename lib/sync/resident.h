// Buckets that travel from device to device. Where the communicator's backend executes a bucket's collective
// on the device of its gradients (Collectives::takes), the bucket lies there while it travels, and nothing of
// it comes to the host. Its place in host memory (Buckets) keeps what local steps have added up, and zeros.
// Those of the default hook, and of one that narrows for it (Hook::narrows), whose rounding the copies do:
// others compute in host memory. Made with the plan.
//
// Threads: immutable after make; what lies in the memory belongs to Step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "core/accelerator.h"
#include "core/device_kernels.h"
#include "sync/survey.h"

namespace weft {

struct ReducerState;

class ResidentBuckets {
 public:
  // For a state that has all but what points at buckets: null if there is none, and marks those that there
  // are in the schedule. Takes the memory of `old` (null: none) if that is of this communicator and has room.
  static Status make(ReducerState* state, const ResidentBuckets* old,
                     std::shared_ptr<ResidentBuckets>* resident);
  ResidentBuckets(const ResidentBuckets&) = delete;
  ResidentBuckets& operator=(const ResidentBuckets&) = delete;

  bool has(uint32_t bucket) const { return buckets_[bucket] != nullptr; }
  std::byte* memory(uint32_t bucket) const { return buckets_[bucket]; }
  // For its collectives: its buffer is theirs once the copy into it has ended.
  const DeviceCall* call(uint32_t bucket) const { return &calls_[bucket]; }
  uint64_t bytes() const { return bytes_ + measured_bytes_; }
  // All of its memory, between steps.
  SurveyPlace survey_place() const { return {memory_.get(), bytes_, &calls_[first_]}; }
  // For the norms of one bucket at a time: the sums of its pieces, in pinned memory, and what they are made
  // of.
  Squares* squares() const { return squares_; }
  SquaresPart* squares_parts() const { return reinterpret_cast<SquaresPart*>(parts_.get()); }
  ~ResidentBuckets();

 private:
  ResidentBuckets() = default;
  Status make_norms(const ReducerState& state, const std::vector<uint32_t>& staying);

  std::shared_ptr<std::byte> memory_;  // of all of them
  uint64_t bytes_ = 0;
  const void* owner_ = nullptr;  // whose memory it is: compared alone
  std::vector<std::byte*> buckets_;
  std::vector<DeviceCall> calls_;
  uint32_t first_ = 0;  // bucket that is here
  // With norms alone.
  std::shared_ptr<Accelerator> accelerator_;
  std::shared_ptr<std::byte> parts_;
  Squares* squares_ = nullptr;
  uint64_t measured_bytes_ = 0;
};

}  // namespace weft
