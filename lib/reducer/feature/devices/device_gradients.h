// Buckets whose gradients are on devices. The bucket itself is in pinned host memory, where hooks and
// collectives use it like any other. Kernels copy the gradients there and the results back, in one launch
// each. This class keeps what such a bucket needs: the program's streams that produced its gradients, streams
// and events of its own, and the tables of the copies. Made with the plan. Used by Reducer and Step
// (device_ready.cpp and the other files here).
//
// Threads: stated for each call. Only make and the destructor wait for a device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "device/accelerator.h"
#include "reducer/bucket/buckets.h"
#include "reducer/manifest/manifest.h"
#include "reducer/plan/plan.h"

namespace weft {

class Context;
class DeviceGradients;

// Cuts consecutive elements into pieces of a copy kernel; returns their number.
uint32_t cut_run(CopyPiece* pieces, const std::byte* src, std::byte* dst, uint64_t count, uint64_t src_bytes,
                 uint64_t dst_bytes);

// Finds the accelerator of the gradients. kUnavailable with the reason, or kArg for a device that does not
// exist.
Status find_devices(Context& context, const Manifest& manifest, DeviceReach* reach);

// The memory of gradients on devices in view mode. It lives as long as the reducer.
class DeviceViews {
 public:
  static Status make(const DeviceReach& reach, const Manifest& manifest, std::shared_ptr<DeviceViews>* views);
  ~DeviceViews();
  DeviceViews(const DeviceViews&) = delete;
  DeviceViews& operator=(const DeviceViews&) = delete;
  std::byte* of(uint64_t param) const { return places_[param]; }
  // Sets the views to zero, as fresh buckets are. Waits for the devices.
  Status clear(Context& context, const Buckets& buckets, DeviceGradients* devices, Deadline deadline) const;
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

class DeviceGradients {
 public:
  // Creates the streams and copy tables of the buckets whose gradients are on devices. kUnsupported if a
  // gradient has so many gaps that its copy needs more pieces (contiguous runs of elements) than a kernel
  // launch takes.
  static Status make(const DeviceReach& reach, const Manifest& manifest, const Plan& plan,
                     std::shared_ptr<DeviceGradients>* made);
  explicit DeviceGradients(std::shared_ptr<Accelerator> accelerator) : accelerator_(std::move(accelerator)) {}
  ~DeviceGradients();
  DeviceGradients(const DeviceGradients&) = delete;
  DeviceGradients& operator=(const DeviceGradients&) = delete;

  bool has(uint32_t bucket) const { return buckets_[bucket] != nullptr; }
  int device(uint32_t bucket) const { return lanes_[buckets_[bucket]->lane].device; }
  Accelerator& accelerator() const { return *accelerator_; }
  uint32_t room(uint32_t bucket) const { return buckets_[bucket]->room; }  // most pieces of a copy
  // Returns the device call for collectives and folds that use the bucket's memory after a launch into it.
  // Called while the plan's parts are made.
  DeviceCall call(uint32_t bucket) const;
  uint64_t memory_bytes() const { return bytes_; }

  // ---- any thread
  // Notes the stream that produces a gradient of the bucket. kArg if it is no stream of the device. Takes the
  // bucket's lock only for the first gradient of a stream in a step, and for streams beyond kListed.
  Status note(uint32_t bucket, uint64_t param, DeviceStream stream);
  // Marks the gradient to be copied in the step of this stamp. The thread that claimed it calls this before
  // it is counted.
  void take(uint64_t param, uint32_t stamp) { gradients_[param].stamp = stamp; }
  bool taken(uint64_t param, uint32_t stamp) const { return gradients_[param].stamp == stamp; }
  // Forgets the marks of the half that begins with `stamp` (reducer/step/stamps.h). The program's thread,
  // between steps.
  void forget(uint32_t stamp);
  // Records an event on each of the bucket's streams, once all its gradients are ready: the copy waits for
  // them. If a capture makes the legacy default stream unusable, `arrived` tries again later. The copy then
  // also waits for work put on the streams meanwhile.
  Status record(uint32_t bucket, uint32_t stamp);
  Status record_all(uint32_t stamp);
  // True when record() has succeeded for all buckets. Work put on the streams later runs after their
  // gradients.
  bool recorded(uint32_t stamp) const;
  // Copies a gradient without gaps into its place, or adds it there (`add`). Runs in the order of the stream
  // noted for it; later work on that stream runs after the copy.
  Status accumulate(uint32_t bucket, uint64_t param, const CopyArgs& args, bool add);
  // True when no accumulate() is in progress on a device.
  bool quiet();
  // True when no device copies results into gradients. Any thread; a copy launched meanwhile may be missed.
  bool returned();

  // ---- progress lock held, or no step open
  // Takes over the noted streams of another plan's buckets.
  void inherit(DeviceGradients& old);
  // Polls the events recorded for the step. When they are done, the bucket's streams are forgotten.
  Status arrived(uint32_t bucket, uint32_t stamp, bool* done);
  // Empties the table of the next copy. No copy of the bucket may be in progress.
  void clear(uint32_t bucket) { buckets_[bucket]->used = buckets_[bucket]->launched = 0; }
  void add(uint32_t bucket, const std::byte* src, std::byte* dst, uint64_t count, uint64_t src_bytes,
           uint64_t dst_bytes);
  // Launches the table's pieces that were added since the last launch. kIn: into the bucket; kOut: from it to
  // the gradients. query() reports the end.
  enum class Way : uint8_t { kIn, kOut };
  Status launch(uint32_t bucket, Way way, Dtype from, Dtype to, double scale);
  // Adds a gradient to the bucket, as part of the next launch.
  Status add_into(uint32_t bucket, const CopyArgs& args);
  // Sums squares of a bucket on its device. After record_out, query(kOut) reports the end.
  Status squares(uint32_t bucket, const SquaresKernelArgs& args);
  Status record_out(uint32_t bucket);
  Status query(uint32_t bucket, Way way, bool* over);

 private:
  // The streams of a device.
  struct Lane {
    int device = 0;
    DeviceStream in = nullptr;
    DeviceStream out = nullptr;
    std::mutex mutex;  // held by accumulate while it puts its sequence of calls on the streams
  };
  // A stream of the program, with an event.
  struct Seen {
    DeviceStream stream = nullptr;
    DeviceEvent made = nullptr;  // recorded after the gradients
  };
  static constexpr uint32_t kListed = 4;
  struct Bucket {
    size_t lane = 0;
    std::mutex mutex;
    std::vector<Seen> seen;  // guarded by mutex; events are reused
    size_t noted = 0;        // how many of `seen` are in use; guarded by mutex
    // Copies of the first noted streams for lookups without the lock; changed under the mutex.
    std::array<std::atomic<DeviceStream>, kListed> list{};
    std::atomic<uint32_t> listed{0};
    std::atomic<uint32_t> recorded{0};  // the stamp of the last step in which all events were recorded
    std::atomic<uint32_t> deferred{0};  // the stamp of the last step in which record() was deferred
    DeviceEvent in = nullptr;
    DeviceEvent out = nullptr;
    CopyPiece* pieces = nullptr;  // pinned
    uint32_t room = 0;
    uint32_t used = 0;
    uint32_t launched = 0;
  };
  // The thread that claimed the parameter writes `stamp` before it counts the gradient as arrived; Step reads
  // it afterwards. Every ready call of the parameter writes `stream`.
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
  std::vector<std::unique_ptr<Bucket>> buckets_;  // null for buckets of host gradients
  std::vector<Gradient> gradients_;
  std::byte* tables_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace weft
