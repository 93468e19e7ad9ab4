// Device buckets: buckets that are communicated directly from device memory. They need a backend that runs a
// bucket's collective on the device of its gradients (Collectives::takes). During communication the bucket is
// on that device, and no data comes to the host. Its place in host memory (Buckets) holds what local steps
// have accumulated, and zeros. This applies to buckets of the default hook, and of a hook with a fused cast
// (Hook::cast_dtype), whose cast the copies do. Other hooks compute in host memory. Made with the plan.
//
// Threads: immutable after make; the contents belong to Step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/accelerator.h"
#include "device/device_kernels.h"
#include "reducer/plan/timing_exchange.h"

namespace weft {

struct ReducerState;

class DeviceBuckets {
 public:
  // Makes the device buckets of a state that is complete except for pointers to buckets, and marks them in
  // the schedule. *device_bucket is null if there are none. Takes over the memory of `old` (null: none) if it
  // belongs to this communicator and has room.
  static Status make(ReducerState* state, const DeviceBuckets* old,
                     std::shared_ptr<DeviceBuckets>* device_bucket);
  DeviceBuckets(const DeviceBuckets&) = delete;
  DeviceBuckets& operator=(const DeviceBuckets&) = delete;

  bool has(uint32_t bucket) const { return buckets_[bucket] != nullptr; }
  std::byte* memory(uint32_t bucket) const { return buckets_[bucket]; }
  // Returns the device call of the bucket's collectives: they may use the bucket once the copy into it has
  // ended.
  const DeviceCall* call(uint32_t bucket) const { return &calls_[bucket]; }
  uint64_t bytes() const { return bytes_ + measured_bytes_; }
  // Returns all of its memory, for measurements between steps.
  TimingMemory timing_memory() const { return {memory_.get(), bytes_, &calls_[first_]}; }
  // Return the memory for the norms of one bucket at a time: the sums of its pieces, in pinned memory, and
  // the kernels' intermediate sums.
  Squares* squares() const { return squares_; }
  SquaresPart* squares_parts() const { return reinterpret_cast<SquaresPart*>(parts_.get()); }
  ~DeviceBuckets();

 private:
  DeviceBuckets() = default;
  Status make_norms(const ReducerState& state, const std::vector<uint32_t>& staying);

  std::shared_ptr<std::byte> memory_;  // of all device buckets
  uint64_t bytes_ = 0;
  const void* owner_ = nullptr;  // the collectives that own the memory; only compared
  std::vector<std::byte*> buckets_;
  std::vector<DeviceCall> calls_;
  uint32_t first_ = 0;  // the first device bucket
  // Used with norms only.
  std::shared_ptr<Accelerator> accelerator_;
  std::shared_ptr<std::byte> parts_;
  Squares* squares_ = nullptr;
  uint64_t measured_bytes_ = 0;
};

}  // namespace weft
