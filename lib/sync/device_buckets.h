// Buckets whose gradients lie on devices. The bucket itself lies in pinned host memory, where hooks and
// collectives work on it as on any other; kernels copy the gradients there and the results back, in one
// launch each. Here is what a bucket needs for that: which of the program's streams have made its gradients,
// streams and events of its own, the tables of what is copied. Made with the plan. Used by Reducer and Step
// (ready_devices.cpp, step_devices.cpp).
//
// Threads: said of each call. Nothing but make and the destructor waits for a device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "core/accelerator.h"
#include "sync/buckets.h"
#include "sync/manifest.h"
#include "sync/plan.h"

namespace weft {

class Context;
class DeviceBuckets;

// Consecutive elements as pieces of a kernel that copies; how many.
uint32_t cut_run(CopyPiece* pieces, const std::byte* src, std::byte* dst, uint64_t count, uint64_t src_bytes,
                 uint64_t dst_bytes);

// How gradients on devices are reached; kUnavailable and why, kArg for a device that does not exist.
Status find_devices(Context& context, const Manifest& manifest, DeviceReach* reach);

// Where gradients on devices live in view mode: for as long as the reducer does.
class DeviceViews {
 public:
  static Status make(const DeviceReach& reach, const Manifest& manifest, std::shared_ptr<DeviceViews>* views);
  ~DeviceViews();
  DeviceViews(const DeviceViews&) = delete;
  DeviceViews& operator=(const DeviceViews&) = delete;
  std::byte* of(uint64_t param) const { return places_[param]; }
  // Zeros, as fresh buckets have. Waits for the devices.
  Status clear(Context& context, const Buckets& buckets, DeviceBuckets* devices, Deadline deadline) const;
  uint64_t bytes() const;

 private:
  struct Block {
    int device = 0;
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
  };
  explicit DeviceViews(std::shared_ptr<Accelerator> accelerator) : accelerator_(std::move(accelerator)) {}

  const std::shared_ptr<Accelerator> accelerator_;
  std::vector<Block> blocks_;  // by Param::device
  std::vector<std::byte*> places_;
};

class DeviceBuckets {
 public:
  // kUnsupported for gradients that would be copied in very many pieces.
  static Status make(const DeviceReach& reach, const Manifest& manifest, const Plan& plan,
                     std::shared_ptr<DeviceBuckets>* made);
  explicit DeviceBuckets(std::shared_ptr<Accelerator> accelerator) : accelerator_(std::move(accelerator)) {}
  ~DeviceBuckets();
  DeviceBuckets(const DeviceBuckets&) = delete;
  DeviceBuckets& operator=(const DeviceBuckets&) = delete;

  bool has(uint32_t bucket) const { return buckets_[bucket] != nullptr; }
  int device(uint32_t bucket) const { return lanes_[buckets_[bucket]->lane].device; }
  Accelerator& accelerator() const { return *accelerator_; }
  uint32_t room(uint32_t bucket) const { return buckets_[bucket]->room; }  // pieces that copy it, at most
  // For what works on the bucket's memory once it has been launched in: whoever makes the plan's parts.
  DeviceCall call(uint32_t bucket) const;
  uint64_t memory_bytes() const { return bytes_; }

  // ---- any thread
  // A gradient of the bucket is made on this stream. kArg if it is no stream of the device. Takes the
  // bucket's lock for the first gradient of a stream in a step alone (and for streams beyond kListed).
  Status note(uint32_t bucket, uint64_t param, DeviceStream stream);
  // The gradient is to be copied in the step of this stamp; by who claimed it, before it is counted.
  void take(uint64_t param, uint32_t stamp) { gradients_[param].stamp = stamp; }
  bool taken(uint64_t param, uint32_t stamp) const { return gradients_[param].stamp == stamp; }
  // All gradients of the bucket are there: what is on its streams now is what is waited for. Where a capture
  // keeps everybody from the legacy default stream for now, `arrived` tries again: what is recorded later is
  // waited for as well.
  Status record(uint32_t bucket, uint32_t stamp);
  Status record_all(uint32_t stamp);
  // That has been done for all buckets: what is put on streams from now on comes after their gradients.
  bool recorded(uint32_t stamp) const;
  // Copy a gradient without gaps into its place or, `add`, add it there, in the order of the stream that was
  // noted for it; what is put on that stream afterwards comes after it.
  Status accumulate(uint32_t bucket, uint64_t param, const CopyArgs& args, bool add);
  // Nothing of accumulate is under way.
  bool quiet();
  // No device copies results into gradients. Any thread; a copy that is launched meanwhile may be missed.
  bool returned();

  // ---- drive lock, or no step is open
  // The streams that were noted are those of another plan's buckets.
  void inherit(DeviceBuckets& old);
  // What has been recorded for the step is done; the streams are forgotten then.
  Status arrived(uint32_t bucket, uint32_t stamp, bool* done);
  // The table of what is copied next: while nothing is.
  void clear(uint32_t bucket) { buckets_[bucket]->used = buckets_[bucket]->launched = 0; }
  void add(uint32_t bucket, const std::byte* src, std::byte* dst, uint64_t count, uint64_t src_bytes,
           uint64_t dst_bytes);
  // Into the bucket, or from it to the gradients: copies what is in the table since the launch before, and is
  // over when query says so.
  enum class Way : uint8_t { kIn, kOut };
  Status launch(uint32_t bucket, Way way, Dtype from, Dtype to, double scale);
  Status add_into(uint32_t bucket, const CopyArgs& args);  // part of the next launch
  // Sums of squares of a bucket on its device; over when query says so of kOut, once it is recorded.
  Status squares(uint32_t bucket, const SquaresKernelArgs& args);
  Status record_out(uint32_t bucket);
  Status query(uint32_t bucket, Way way, bool* over);

 private:
  // Streams of a device.
  struct Lane {
    int device = 0;
    DeviceStream in = nullptr;
    DeviceStream out = nullptr;
    std::mutex mutex;  // held while accumulate puts on the streams what belongs together
  };
  // A stream of the program's.
  struct Seen {
    DeviceStream stream = nullptr;
    DeviceEvent made = nullptr;  // the gradients up to here
  };
  static constexpr uint32_t kListed = 4;
  struct Bucket {
    size_t lane = 0;
    std::mutex mutex;
    std::vector<Seen> seen;  // guarded by mutex; events stay
    size_t noted = 0;        // guarded by mutex: so many of them
    // The first of those, for who only asks; changed under the mutex.
    std::array<std::atomic<DeviceStream>, kListed> list{};
    std::atomic<uint32_t> listed{0};
    std::atomic<uint32_t> recorded{0};  // the stamp of the last step in which all were
    std::atomic<uint32_t> deferred{0};  // the stamp of the last step in which record put it off
    DeviceEvent in = nullptr;
    DeviceEvent out = nullptr;
    CopyPiece* pieces = nullptr;  // pinned
    uint32_t room = 0;
    uint32_t used = 0;
    uint32_t launched = 0;
  };
  // Written by who claimed the parameter, read once it has arrived; the stream by every use.
  struct Gradient {
    uint32_t stamp = 0;
    std::atomic<DeviceStream> stream{nullptr};
  };
  DeviceStream stream(const Bucket& bucket, Way way) const {
    return way == Way::kIn ? lanes_[bucket.lane].in : lanes_[bucket.lane].out;
  }
  Status fold(const Bucket& bucket, const CopyArgs& args);
  static bool lists(const Bucket& bucket, DeviceStream stream);
  Status note_locked(Bucket* bucket, DeviceStream stream);
  Status make_lanes(const Manifest& manifest);
  Status make_buckets(const Manifest& manifest, const Plan& plan);

  const std::shared_ptr<Accelerator> accelerator_;
  std::vector<Lane> lanes_;                       // by Param::device
  std::vector<std::unique_ptr<Bucket>> buckets_;  // null for those of host gradients
  std::vector<Gradient> gradients_;
  std::byte* tables_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace weft
