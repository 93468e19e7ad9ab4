#include "reducer/feature/devices/device_gradients.h"

#include <algorithm>

#include "base/round_up.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/bucket/layout.h"
#include "reducer/step/stamps.h"

namespace weft {
namespace {

constexpr uint64_t kViewAlignment = 256;  // as cudaMalloc's
constexpr uint64_t kMostRuns = 1u << 16;  // each run takes a piece of its own, and so a block of threads

uint64_t pieces_of(const Layout& layout) {
  if (layout.count() == 0) return 0;
  return layout.runs() * (layout.run() / kCopyPieceElements + 2);  // + 2, because a slice may begin anywhere
}

}  // namespace

uint32_t cut_run(CopyPiece* pieces, const std::byte* src, std::byte* dst, uint64_t count, uint64_t src_bytes,
                 uint64_t dst_bytes) {
  uint32_t used = 0;
  for (uint64_t done = 0; done < count;) {
    const uint64_t n = std::min(kCopyPieceElements, count - done);
    pieces[used++] = {src + done * src_bytes, dst + done * dst_bytes, n};
    done += n;
  }
  return used;
}

Status find_devices(Context& context, const Manifest& manifest, DeviceReach* reach) {
  if (!manifest.has_devices()) return {};
  std::string detail;
  WEFT_TRY(context.probe_accelerator(&detail).with_prefix("gradients on CUDA devices: "));
  const int count = context.accelerator()->device_count();
  for (size_t i = 0; i < manifest.params.size(); i++) {
    if (!manifest.params[i].on_device() || manifest.device(i) < count) continue;
    return Status::error(Code::kArg,
                         cat(manifest.named(i), ": its device is ", manifest.device(i), "; there are ", count,
                             " CUDA devices, numbered from 0 (weft_param.device)"));
  }
  *reach = {context.options().accelerator, manifest.devices.front()};
  return {};
}

Status DeviceViews::make(const DeviceReach& reach, const Manifest& manifest,
                         std::shared_ptr<DeviceViews>* out) {
  std::shared_ptr<DeviceViews> made(new DeviceViews(reach.accelerator));
  for (const int32_t device : manifest.devices) made->blocks_.push_back({.device = device});
  std::vector<uint64_t> offsets(manifest.params.size());
  for (size_t i = 0; i < manifest.params.size(); i++) {
    const Param& p = manifest.params[i];
    if (!p.on_device()) continue;
    Block& block = made->blocks_[static_cast<size_t>(p.device)];
    offsets[i] = block.bytes;
    block.bytes += round_up(std::max<uint64_t>(p.bytes(), 1), kViewAlignment);
  }
  for (Block& block : made->blocks_)
    WEFT_TRY(reach.accelerator->allocate(block.device, block.bytes, &block.memory)
                 .with_prefix("memory for gradient views on a CUDA device: "));
  made->places_.resize(manifest.params.size());
  for (size_t i = 0; i < manifest.params.size(); i++) {
    const Param& p = manifest.params[i];
    if (p.on_device()) made->places_[i] = made->blocks_[static_cast<size_t>(p.device)].memory + offsets[i];
  }
  *out = std::move(made);
  return {};
}

DeviceViews::~DeviceViews() {
  for (const Block& block : blocks_) {
    if (block.memory != nullptr) accelerator_->free(block.device, block.memory);
  }
}

Status DeviceViews::clear(Context& context, const Buckets& buckets, DeviceGradients* devices,
                          Deadline deadline) const {
  constexpr auto kOut = DeviceGradients::Way::kOut;
  for (uint64_t param = 0; param < places_.size(); param++) {
    if (places_[param] == nullptr) continue;
    const Buckets::Place& place = buckets.place(param);
    // A kernel copies zeros from the fresh bucket; zeros have the same bits in any dtype.
    devices->clear(place.bucket);
    devices->add(place.bucket, place.memory, places_[param], place.count, place.element_bytes,
                 place.gradient_bytes);
    WEFT_TRY(devices->launch(place.bucket, kOut, place.dtype, place.layout->dtype(), 1.0));
    Status failed;
    const auto over = [&] {
      bool done = false;
      failed = devices->query(place.bucket, kOut, &done);
      return done || !failed.ok();
    };
    if (!context.engine().wait(over, deadline)) {
      return Status::error(Code::kTimeout, cat("the view of the gradient of parameter ", param,
                                               " was not set to zero in time: its CUDA device may hang"));
    }
    WEFT_TRY(failed);
  }
  return {};
}

uint64_t DeviceViews::bytes() const {
  uint64_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.bytes;
  return bytes;
}

Status DeviceGradients::make(const DeviceReach& reach, const Manifest& manifest, const Plan& plan,
                             std::shared_ptr<DeviceGradients>* out) {
  auto made = std::make_shared<DeviceGradients>(reach.accelerator);
  WEFT_TRY(made->make_lanes(manifest));
  WEFT_TRY(made->make_buckets(manifest, plan));
  *out = std::move(made);
  return {};
}

Status DeviceGradients::make_lanes(const Manifest& manifest) {
  lanes_ = std::vector<Lane>(manifest.devices.size());
  for (size_t i = 0; i < lanes_.size(); i++) {
    lanes_[i].device = manifest.devices[i];
    WEFT_TRY(accelerator_->load_kernels(lanes_[i].device));
    WEFT_TRY(accelerator_->create_stream(lanes_[i].device, &lanes_[i].in));
    WEFT_TRY(accelerator_->create_stream(lanes_[i].device, &lanes_[i].out));
  }
  return {};
}

Status DeviceGradients::make_buckets(const Manifest& manifest, const Plan& plan) {
  gradients_ = std::vector<Gradient>(manifest.params.size());
  uint64_t pieces = 0;
  for (const PlannedBucket& planned : plan.buckets) {
    std::unique_ptr<Bucket>& bucket = buckets_.emplace_back();
    if (!planned.on_device()) continue;
    bucket = std::make_unique<Bucket>();
    bucket->lane = static_cast<size_t>(planned.device);
    const int device = lanes_[bucket->lane].device;
    WEFT_TRY(accelerator_->create_event(device, &bucket->in));
    WEFT_TRY(accelerator_->create_event(device, &bucket->out));
    uint64_t room = 0;
    for (const uint32_t param : planned.params) {
      const Layout layout(manifest.params[param]);
      if (layout.runs() > kMostRuns) {
        return Status::error(Code::kUnsupported,
                             cat(manifest.named(param), ": its gradient has ", layout.runs(),
                                 " runs of elements with gaps between them; on a CUDA device at most ",
                                 kMostRuns, " are allowed: make it contiguous"));
      }
      room += pieces_of(layout);
    }
    if (room > UINT32_MAX)
      return Status::error(Code::kUnsupported, cat("bucket ", buckets_.size() - 1, " needs ", room,
                                                   " copy pieces on its CUDA device; at most ", UINT32_MAX,
                                                   " are allowed: set smaller bucket_limits"));
    bucket->room = static_cast<uint32_t>(room);
    pieces += room;
  }
  bytes_ = std::max<uint64_t>(pieces, 1) * sizeof(CopyPiece);
  WEFT_TRY(accelerator_->allocate_pinned(lanes_.front().device, bytes_, &tables_));
  auto* at = reinterpret_cast<CopyPiece*>(tables_);
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    if (bucket == nullptr) continue;
    bucket->pieces = at;
    at += bucket->room;
  }
  return {};
}

DeviceGradients::~DeviceGradients() {
  // Freeing waits for the kernels that read the tables.
  if (tables_ != nullptr) accelerator_->free_pinned(tables_);
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    if (bucket == nullptr) continue;
    const int device = lanes_[bucket->lane].device;
    for (const Seen& seen : bucket->seen) accelerator_->destroy_event(device, seen.made);
    if (bucket->in != nullptr) accelerator_->destroy_event(device, bucket->in);
    if (bucket->out != nullptr) accelerator_->destroy_event(device, bucket->out);
  }
  for (const Lane& lane : lanes_) {
    if (lane.in != nullptr) accelerator_->destroy_stream(lane.device, lane.in);
    if (lane.out != nullptr) accelerator_->destroy_stream(lane.device, lane.out);
  }
}

Status DeviceGradients::note(uint32_t bucket, uint64_t param, DeviceStream stream) {
  Bucket& b = *buckets_[bucket];
  // A capture may have begun since the stream was noted; the caller can still get the error.
  if (accelerator_->is_legacy(stream)) WEFT_TRY(accelerator_->check_stream(lanes_[b.lane].device, stream));
  if (!lists(b, stream)) {
    const std::lock_guard lock(b.mutex);
    WEFT_TRY(note_locked(&b, stream));
  }
  std::atomic<DeviceStream>& last = gradients_[param].stream;  // of several uses, the last one's stream
  if (last.load(std::memory_order_relaxed) != stream) last.store(stream, std::memory_order_relaxed);
  return {};
}

// True if the bucket's first streams include this one. No lock is needed: this call's gradient arrives before
// the bucket's events are recorded, and that thread then sees what was noted.
bool DeviceGradients::lists(const Bucket& bucket, DeviceStream stream) {
  const uint32_t listed = bucket.listed.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < listed; i++) {
    if (bucket.list[i].load(std::memory_order_relaxed) == stream) return true;
  }
  return false;
}

Status DeviceGradients::note_locked(Bucket* bucket, DeviceStream stream) {
  Bucket& b = *bucket;
  const auto end = b.seen.begin() + static_cast<ptrdiff_t>(b.noted);
  if (std::any_of(b.seen.begin(), end, [&](const Seen& seen) { return seen.stream == stream; })) return {};
  const int device = lanes_[b.lane].device;
  WEFT_TRY(accelerator_->check_stream(device, stream));
  if (b.noted == b.seen.size()) {
    Seen fresh;
    WEFT_TRY(accelerator_->create_event(device, &fresh.made));
    b.seen.push_back(fresh);
  }
  b.seen[b.noted].stream = stream;
  if (b.noted < kListed) {
    b.list[b.noted].store(stream, std::memory_order_relaxed);
    b.listed.store(static_cast<uint32_t>(b.noted) + 1, std::memory_order_release);
  }
  b.noted++;
  return {};
}

Status DeviceGradients::record(uint32_t bucket, uint32_t stamp) {
  Bucket& b = *buckets_[bucket];
  Status status;
  {
    const std::lock_guard lock(b.mutex);
    const int device = lanes_[b.lane].device;
    for (size_t i = 0; i < b.noted && status.ok(); i++) {
      const Seen& seen = b.seen[i];
      // A capture may have begun since the stream was noted, and an event recorded in a capture cannot be
      // queried.
      status = accelerator_->check_stream(device, seen.stream);
      if (status.ok()) status = accelerator_->record(device, seen.made, seen.stream);
    }
  }
  const bool deferred = status.code() == Code::kState;
  (deferred ? b.deferred : b.recorded).store(stamp, std::memory_order_release);
  return deferred ? Status() : status;
}

Status DeviceGradients::record_all(uint32_t stamp) {
  for (uint32_t b = 0; b < buckets_.size(); b++) {
    if (has(b)) WEFT_TRY(record(b, stamp));
  }
  return {};
}

void DeviceGradients::forget(uint32_t stamp) {
  for (Gradient& gradient : gradients_) gradient.stamp = kept_mark(gradient.stamp, stamp);
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    if (bucket == nullptr) continue;
    for (std::atomic<uint32_t>* const mark : {&bucket->recorded, &bucket->deferred})
      mark->store(kept_mark(mark->load(std::memory_order_relaxed), stamp), std::memory_order_relaxed);
  }
}

bool DeviceGradients::recorded(uint32_t stamp) const {
  return std::all_of(buckets_.begin(), buckets_.end(), [&](const std::unique_ptr<Bucket>& bucket) {
    return bucket == nullptr || bucket->recorded.load(std::memory_order_acquire) == stamp;
  });
}

void DeviceGradients::inherit(DeviceGradients& old) {
  for (const std::unique_ptr<Bucket>& from : old.buckets_) {
    for (size_t i = 0; from != nullptr && i < from->noted; i++) {
      for (const std::unique_ptr<Bucket>& to : buckets_) {
        // Streams are taken over only if the bucket stays on the same device. A stream that is not needed
        // there only makes the copy wait longer.
        if (to != nullptr && to->lane == from->lane)
          static_cast<void>(note_locked(to.get(), from->seen[i].stream).ok());
      }
    }
  }
}

DeviceCall DeviceGradients::call(uint32_t bucket) const {
  const Bucket& b = *buckets_[bucket];
  return {kCudaDevices, lanes_[b.lane].device, accelerator_.get(), lanes_[b.lane].in, b.in};
}

Status DeviceGradients::arrived(uint32_t bucket, uint32_t stamp, bool* done) {
  Bucket& b = *buckets_[bucket];
  *done = false;
  if (b.recorded.load(std::memory_order_acquire) != stamp) {
    if (b.deferred.load(std::memory_order_acquire) != stamp) return {};
    WEFT_TRY(record(bucket, stamp));
    if (b.recorded.load(std::memory_order_relaxed) != stamp) return {};
  }
  const std::lock_guard lock(b.mutex);
  for (size_t i = 0; i < b.noted; i++) {
    WEFT_TRY(accelerator_->query(lanes_[b.lane].device, b.seen[i].made, done));
    if (!*done) return {};
  }
  b.noted = 0;
  b.listed.store(0, std::memory_order_release);
  *done = true;
  return {};
}

void DeviceGradients::add(uint32_t bucket, const std::byte* src, std::byte* dst, uint64_t count,
                          uint64_t src_bytes, uint64_t dst_bytes) {
  Bucket& b = *buckets_[bucket];
  b.used += cut_run(b.pieces + b.used, src, dst, count, src_bytes, dst_bytes);
}

Status DeviceGradients::launch(uint32_t bucket, Way way, Dtype from, Dtype to, double scale) {
  Bucket& b = *buckets_[bucket];
  const int device = lanes_[b.lane].device;
  const CopyPiecesArgs args{b.pieces + b.launched, b.used - b.launched, static_cast<uint8_t>(from),
                            static_cast<uint8_t>(to), scale};
  if (args.piece_count > 0) WEFT_TRY(accelerator_->copy_pieces(device, stream(b, way), args));
  b.launched = b.used;
  return accelerator_->record(device, way == Way::kIn ? b.in : b.out, stream(b, way));
}

Status DeviceGradients::squares(uint32_t bucket, const SquaresKernelArgs& args) {
  const Bucket& b = *buckets_[bucket];
  return accelerator_->squares(lanes_[b.lane].device, stream(b, Way::kOut), args);
}

Status DeviceGradients::record_out(uint32_t bucket) {
  const Bucket& b = *buckets_[bucket];
  return accelerator_->record(lanes_[b.lane].device, b.out, stream(b, Way::kOut));
}

Status DeviceGradients::query(uint32_t bucket, Way way, bool* over) {
  const Bucket& b = *buckets_[bucket];
  return accelerator_->query(lanes_[b.lane].device, way == Way::kIn ? b.in : b.out, over);
}

Status DeviceGradients::fold(const Bucket& bucket, const CopyArgs& args) {
  FoldKernelArgs fold{};
  fold.inputs[0] = args.dst;
  fold.inputs[1] = args.src;
  fold.outputs[0] = args.dst;
  fold.input_count = 2;
  fold.output_count = 1;
  fold.dtype = static_cast<uint8_t>(args.dst_dtype);
  fold.op = static_cast<uint8_t>(ReduceOp::kSum);
  fold.count = args.count;
  fold.prescale = fold.postscale = 1.0;
  return accelerator_->fold(lanes_[bucket.lane].device, lanes_[bucket.lane].in, fold);
}

Status DeviceGradients::add_into(uint32_t bucket, const CopyArgs& args) {
  return fold(*buckets_[bucket], args);
}

Status DeviceGradients::accumulate(uint32_t bucket, uint64_t param, const CopyArgs& args, bool add) {
  Bucket& b = *buckets_[bucket];
  Lane& lane = lanes_[b.lane];
  const std::lock_guard lock(lane.mutex);
  // The stream's event is recorded here for the gradient's copy; the next step records it anew.
  DeviceStream from = nullptr;
  DeviceEvent made = nullptr;
  {
    const std::lock_guard seen_lock(b.mutex);
    from = gradients_[param].stream.load(std::memory_order_relaxed);
    for (size_t i = 0; i < b.noted; i++) {
      if (b.seen[i].stream == from) made = b.seen[i].made;
    }
  }
  WEFT_TRY(accelerator_->record(lane.device, made, from));
  WEFT_TRY(accelerator_->wait_event(lane.device, lane.in, made));
  if (args.count > 0) {
    WEFT_TRY(add ? fold(b, args)
                 : accelerator_->copy(lane.device, lane.in, args.dst, args.src,
                                      args.count * dtype_size(args.dst_dtype)));
  }
  WEFT_TRY(accelerator_->record(lane.device, b.in, lane.in));
  return accelerator_->wait_event(lane.device, from, b.in);
}

bool DeviceGradients::returned() {
  for (uint32_t b = 0; b < buckets_.size(); b++) {
    bool over = true;
    // A device that fails has stopped copying.
    if (has(b) && query(b, Way::kOut, &over).ok() && !over) return false;
  }
  return true;
}

bool DeviceGradients::quiet() {
  for (uint32_t b = 0; b < buckets_.size(); b++) {
    bool over = true;
    if (has(b) && query(b, Way::kIn, &over).ok() && !over) return false;
  }
  return true;
}

}  // namespace weft
