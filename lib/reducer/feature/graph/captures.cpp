#include "reducer/feature/graph/captures.h"

#include <algorithm>
#include <utility>

#include "base/guard.h"
#include "base/round_up.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/context.h"
#include "reducer/agreement.h"
#include "reducer/feature/norms/step_norms.h"
#include "reducer/state.h"
#include "reducer/step/step_handshake.h"

namespace weft {
namespace {

constexpr uint64_t kCaptureAlignment = 256;  // as cudaMalloc's
constexpr uint64_t kLookNs = 100'000'000;    // interval of the watcher's checks
constexpr int64_t kEndMs = 3000;  // for a launch in progress: before it is aborted, and again after

Status unsupported(const std::string& what) {
  return Status::error(Code::kUnsupported, cat("WEFT_REDUCER_GRAPH: ", what));
}

}  // namespace

Status Captures::make(const Agreement& agreement, ReducerState* state, std::unique_ptr<Captures>* out) {
  Comm& comm = agreement.comm;
  const Agreement again{comm, agreement.doing, agreement.deadline, agreement.lane};  // already open
  const auto no_difference = [](int, ByteView, int, ByteView) { return std::string(); };
  auto made = std::make_unique<Captures>(state);
  Bytes id;
  Status local = made->prepare();
  if (local.ok() && comm.rank() == 0) local = made->lane_->identify(&id);
  WEFT_TRY(agree_on(again, local, {}, no_difference));
  std::vector<Bytes> all;
  WEFT_TRY(comm.agree(id, &all, again.deadline, again.lane));
  // A rank that cannot connect reports that before the others wait for it.
  local = made->lane_->connect(all[0]);
  WEFT_TRY(agree_on(again, local, {}, no_difference));
  local = made->await(
      "connecting the ranks", [&](bool* done) { return made->lane_->connected(done); }, again.deadline);
  if (local.ok()) local = made->make_memory();
  WEFT_TRY(agree_on(again, local, {}, no_difference));
  local = made->warm_up(again.deadline);
  if (!local.ok()) made->lane_->give_up(local);
  WEFT_TRY(agree_on(again, local, {}, no_difference));
  *out = std::move(made);
  return {};
}

// Checks what this rank cannot capture, and opens the graph lane. Local.
Status Captures::prepare() {
  const Manifest& manifest = s_.manifest;
  if (!s_.hook->copies_suffice() || s_.hook->comm() != nullptr) {
    return unsupported(
        cat("hook '", s_.hook->name(), "' cannot be captured: ",
            s_.hook->comm() != nullptr ? "it has a communicator of its own" : "it computes on the host",
            ". Use the default hook, or fp16 or bf16 around it with order=scale_first"));
  }
  bool any = false;
  for (size_t i = 0; i < manifest.params.size(); i++) {
    const Param& param = manifest.params[i];
    if (!param.reduced()) continue;
    const char* const why = param.sparse()       ? "is sparse"
                            : !param.on_device() ? "is in host memory"
                            : param.device != 0 ? "is on another CUDA device than that of the first parameter"
                                                : nullptr;
    if (why != nullptr)
      return unsupported(cat("the gradient of ", manifest.named(i), " ", why,
                             "; all gradients must be dense and on one CUDA device"));
    any = true;
  }
  if (!any) return unsupported("no parameter of the list has a gradient");
  if (!manifest.uses.empty())
    return unsupported(
        "a parameter has weft_param.uses above 1, but a captured step uses every parameter once");
  device_ = manifest.devices.front();
  Collectives& collectives = s_.comm->collectives();
  WEFT_TRY(collectives.open_graph_lane(device_, &lane_).with_prefix("WEFT_REDUCER_GRAPH: "));
  for (const Slot& slot : s_.schedule.slots) {
    const PlannedBucket& planned = s_.plan.buckets[slot.bucket];
    if (s_.hook->cast_dtype() && rounds(planned.gradients, planned.dtype)) {
      return unsupported(cat(s_.plan.text(manifest, slot.bucket),
                             ": reduce_dtype rounds its gradients before the hook '", s_.hook->name(),
                             "' rounds them again, but a captured step rounds once: set "
                             "weft_reducer_options.reduce_dtype to 0"));
    }
    if (!collectives.takes(device_, slot.args)) {
      return unsupported(cat(s_.plan.text(manifest, slot.bucket), ": backend '", collectives.name(),
                             "' cannot sum ", name(slot.args.dtype), " values on a CUDA device"));
    }
  }
  return {};
}

// Returns an earlier deadline, which leaves time to report the outcome to the other ranks.
Deadline Captures::most_of(Deadline deadline) const {
  const uint64_t now = s_.comm->context().clock().now_ns();
  return Deadline::at(now + (std::max(deadline.ns(), now) - now) / 4 * 3);
}

Status Captures::await(const char* what, const std::function<Status(bool* done)>& ask,
                       Deadline deadline) const {
  Status status;
  bool done = false;
  const auto over = [&] {
    status = s_.comm->failed() ? s_.comm->failure() : ask(&done);
    return done || !status.ok();
  };
  if (s_.comm->context().engine().wait(over, most_of(deadline))) return status;
  return Status::error(
      Code::kTimeout,
      cat("WEFT_REDUCER_GRAPH: ", what, " did not complete in three quarters of the time limit of the call"),
      Evidence::kDeadline);
}

// Runs all collectives once without capturing: the first run connects ranks and allocates memory.
Status Captures::warm_up(Deadline deadline) {
  Accelerator& accelerator = s_.devices->accelerator();
  for (const Slot& slot : s_.schedule.slots) {
    if (slot.args.count == 0) continue;
    CollectiveArgs args = slot.args;
    args.src = args.dst = places_[slot.bucket];
    args.prescale = args.postscale = 1.0;
    WEFT_TRY(lane_->put(args, nullptr, most_of(deadline)));
  }
  WEFT_TRY(accelerator.record(device_, event_, lane_->stream()));
  return await(
      "the first run of the collectives",
      [&](bool* done) { return accelerator.query(device_, event_, done); }, deadline);
}

Status Captures::make_memory() {
  Accelerator& accelerator = s_.devices->accelerator();
  std::vector<uint64_t> offsets;
  uint64_t bytes = 0;
  for (uint32_t b = 0; b < s_.plan.buckets.size(); b++) {
    offsets.push_back(bytes);
    const uint64_t comm_bytes = s_.plan.buckets[b].count * dtype_size(s_.fused_dtype(b));
    bytes += round_up(std::max<uint64_t>(comm_bytes, 1), kCaptureAlignment);
  }
  std::byte* memory = nullptr;
  WEFT_TRY(lane_->allocate(bytes, &memory).with_prefix("memory for the buckets of captured steps: "));
  for (const uint64_t offset : offsets) places_.push_back(memory + offset);
  std::byte* words = nullptr;
  WEFT_TRY(accelerator.allocate_pinned(device_, sizeof(Words), &words));
  words_ = new (words) Words{0, 0, 1};
  bytes_ = bytes + sizeof(Words);
  return accelerator.create_event(device_, &event_);
}

Captures::~Captures() {
  end_watch();
  if (lane_ == nullptr) return;
  Clock& clock = s_.comm->context().clock();
  const auto idle = [&](Deadline deadline) {
    for (uint32_t round = 0; launches() != replays(); round++) {
      if (deadline.expired(clock)) return false;
      clock.relax(round);
    }
    return true;
  };
  bool quiet = idle(Deadline::after(clock, kEndMs, 0));
  if (!quiet) {
    lane_->give_up(Status::error(
        Code::kCancelled, "the reducer was destroyed while a launch of its captured step was still running"));
    quiet = idle(Deadline::after(clock, kEndMs, 0));
  }
  if (!quiet) return;  // leaks the memory, because the device may still access it
  // CUDA's free functions wait for the device. That takes forever if a graph launched by mistake waits there
  // for its peers. A separate thread therefore calls them, and this thread waits for a limited time.
  const auto freed = std::make_shared<std::atomic<bool>>(false);
  const auto body = [freed, accelerator = s_.reach.accelerator, tables = tables_, words = words_,
                     device = device_, event = event_] {
    for (std::byte* table : tables) accelerator->free_pinned(table);
    if (words != nullptr) accelerator->free_pinned(reinterpret_cast<std::byte*>(words));
    if (event != nullptr) accelerator->destroy_event(device, event);
    freed->store(true, std::memory_order_release);
  };
  std::thread thread;
  if (!start_thread("weft-graph-end", body, {}, &thread).ok()) {
    body();
    return;
  }
  thread.detach();
  const Deadline deadline = Deadline::after(clock, kEndMs, 0);
  for (uint32_t round = 0; !freed->load(std::memory_order_acquire) && !deadline.expired(clock); round++) {
    clock.relax(round);
  }
}

// ---- the step that is being captured

Status Captures::begin(uint32_t micro_batches, int64_t timeout_ms) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY(watch());
  buckets_.clear();
  gradients_.assign(s_.manifest.params.size(), nullptr);
  ready_.assign(s_.manifest.params.size(), false);
  next_ = 0;
  divisor_ = even_handshake(s_.comm->size(), micro_batches).divisor;
  failure_ = Status();
  timeout_ms_ = timeout_ms;
  WEFT_TRY(make_table());
  open_.store(true, std::memory_order_release);
  return {};
}

// Allocates the table that the step's graph reads. It stays once something was put into the graph, even if
// the capture fails.
Status Captures::make_table() {
  uint64_t pieces = 0;
  for (uint32_t b = 0; b < s_.plan.buckets.size(); b++) pieces += 2 * uint64_t{s_.devices->room(b)};
  if (!spare_table_) {
    const uint64_t bytes = pieces * sizeof(CopyPiece) + s_.plan.buckets.size() * lane_->table_bytes();
    std::byte* table = nullptr;
    WEFT_TRY(s_.devices->accelerator().allocate_pinned(device_, bytes, &table));
    tables_.push_back(table);
    bytes_ += bytes;
    spare_table_ = true;
  }
  std::byte* const table = tables_.back();
  auto* at = reinterpret_cast<CopyPiece*>(table);
  std::byte* lanes = table + pieces * sizeof(CopyPiece);
  for (uint32_t b = 0; b < s_.plan.buckets.size(); b++) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.missing = static_cast<uint32_t>(s_.plan.buckets[b].params.size());
    bucket.pieces = at;
    bucket.table = lanes;
    at += 2 * uint64_t{s_.devices->room(b)};
    lanes += lane_->table_bytes();
  }
  return {};
}

Status Captures::ready(uint64_t param, std::byte* gradient, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  if (!open()) return Status::error(Code::kState, "the captured step has been finished already");
  WEFT_TRY(failure_);
  if (ready_[param]) return Status::error(Code::kState, "it became ready twice in one captured step");
  ready_[param] = true;
  gradients_[param] = gradient;
  Bucket& bucket = buckets_[s_.plan.bucket_of[param]];
  if (std::find(bucket.streams.begin(), bucket.streams.end(), stream) == bucket.streams.end())
    bucket.streams.push_back(stream);
  bucket.missing--;
  while (failure_.ok() && next_ < buckets_.size() && buckets_[next_].missing == 0) {
    failure_ = launch(next_).with_prefix(cat(s_.plan.text(s_.manifest, next_), ": "));
    next_++;
  }
  return failure_;
}

Status Captures::launch(uint32_t b) {
  spare_table_ = false;
  Accelerator& accelerator = s_.devices->accelerator();
  const Bucket& bucket = buckets_[b];
  for (DeviceStream stream : bucket.streams) {
    WEFT_TRY(accelerator.record(device_, event_, stream));
    WEFT_TRY(accelerator.wait_event(device_, lane_->stream(), event_));
  }
  if (b == 0) WEFT_TRY(count(&words_->begun));
  WEFT_TRY(copy(b, true));
  for (const Slot& slot : s_.schedule.slots) {
    if (slot.bucket != b || slot.args.count == 0) continue;
    CollectiveArgs args = slot.args;
    args.src = args.dst = places_[b];
    args.postscale = slot.average ? 1.0 / divisor_ : 1.0;
    WEFT_TRY(lane_->put(args, bucket.table, s_.comm->op_deadline(timeout_ms_)));
  }
  WEFT_TRY(copy(b, false));
  return b + 1 == buckets_.size() ? count(&words_->ended) : Status();
}

// Puts the copy of the gradients into the bucket (`in`), or of the results out of it, on the stream.
Status Captures::copy(uint32_t b, bool in) {
  const PlannedBucket& planned = s_.plan.buckets[b];
  const uint64_t element = dtype_size(s_.fused_dtype(b));
  CopyPiece* const pieces = buckets_[b].pieces + (in ? 0 : s_.devices->room(b));
  uint32_t used = 0;
  for (size_t i = 0; i < planned.params.size(); i++) {
    const Buckets::Place& place = s_.buckets->place(planned.params[i]);
    std::byte* const gradient = gradients_[planned.params[i]];
    std::byte* const packed = places_[b] + planned.offsets[i] * element;
    const auto move = [&](uint64_t from, uint64_t to, uint64_t count) {
      std::byte* const outside = gradient + from * place.gradient_bytes;
      std::byte* const inside = packed + to * element;
      used += in ? cut_run(pieces + used, outside, inside, count, place.gradient_bytes, element)
                 : cut_run(pieces + used, inside, outside, count, element, place.gradient_bytes);
    };
    if (s_.copy) {
      place.layout->for_each_run(0, place.count, move);
    } else {
      move(0, 0, place.count);
    }
  }
  if (used == 0) return {};
  const auto gradients = static_cast<uint8_t>(planned.gradients),
             comm_dtype = static_cast<uint8_t>(s_.fused_dtype(b));
  const double scale = in && s_.hook->cast_dtype() ? 1.0 / divisor_ : 1.0;
  return s_.devices->accelerator().copy_pieces(
      device_, lane_->stream(),
      {pieces, used, in ? gradients : comm_dtype, in ? comm_dtype : gradients, scale});
}

// Adds 1 to a counter, on the device.
Status Captures::count(uint64_t* word) {
  FoldKernelArgs fold{};
  fold.inputs[0] = reinterpret_cast<const std::byte*>(word);
  fold.inputs[1] = reinterpret_cast<const std::byte*>(&words_->one);
  fold.outputs[0] = reinterpret_cast<std::byte*>(word);
  fold.input_count = 2;
  fold.output_count = 1;
  fold.dtype = static_cast<uint8_t>(Dtype::kU64);
  fold.op = static_cast<uint8_t>(ReduceOp::kSum);
  fold.count = 1;
  fold.prescale = fold.postscale = 1.0;
  return s_.devices->accelerator().fold(device_, lane_->stream(), fold);
}

Status Captures::finish(const std::vector<DeviceStream>& streams, const Status& wrong) {
  const std::lock_guard lock(mutex_);
  Status status = failure_.ok() ? wrong : failure_;
  if (status.ok()) status = missing();
  if (status.ok()) status = join(streams);
  open_.store(false, std::memory_order_release);
  if (status.ok()) captures_.fetch_add(1, std::memory_order_relaxed);
  return status.with_prefix("the captured step failed, end the stream capture: ");
}

Status Captures::missing() const {
  std::vector<uint32_t> params;
  for (uint32_t i = 0; i < ready_.size(); i++) {
    if (!ready_[i] && s_.plan.bucket_of[i] != kNoBucket) params.push_back(i);
  }
  if (params.empty()) return {};
  return Status::error(Code::kState,
                       cat(params.size(), " of ", ready_.size(),
                           " parameters never became ready in a captured step: ", s_.manifest.names(params)));
}

Status Captures::join(const std::vector<DeviceStream>& streams) {
  Accelerator& accelerator = s_.devices->accelerator();
  WEFT_TRY(accelerator.record(device_, event_, lane_->stream()));
  for (DeviceStream stream : streams) WEFT_TRY(accelerator.wait_event(device_, stream, event_));
  return {};
}

// ---- launches

Status Captures::watch() {
  if (watcher_.joinable()) return {};
  Context& context = s_.comm->context();
  const auto body = [this, &clock = context.clock()] {
    while (ending_.load() == 0) {
      clock.sleep(ending_, 0, clock.now_ns() + kLookNs);
      const Status thrown = guarded_run([this] { look(); });
      if (!thrown.ok()) s_.comm->fail(thrown);
    }
  };
  return start_thread("weft-graph", body, context.options().thread_start, &watcher_);
}

void Captures::end_watch() {
  if (!watcher_.joinable()) return;
  ending_.store(1);
  s_.comm->context().clock().wake_all(ending_);
  watcher_.join();
}

void Captures::look() {
  Comm& comm = *s_.comm;
  if (comm.failed()) return lane_->give_up(comm.failure());
  const auto fail = [&](const Status& why) {
    comm.fail(why.with_prefix(cat("rank ", comm.rank(), ", launch ", launches(), " of a captured step: "))
                  .with_ranks({comm.rank()}));
    lane_->give_up(comm.failure());
  };
  if (const Status health = lane_->health(); !health.ok()) return fail(health);
  const uint64_t begun = launches();
  if (begun == replays() || begun != seen_) {
    seen_ = begun;
    deadline_ = comm.op_deadline(timeout_ms_);
  } else if (deadline_.expired(comm.context().clock())) {
    fail(Status::error(Code::kTimeout,
                       "it does not end before its timeout: every rank must launch its graphs equally often "
                       "and in the same order",
                       Evidence::kDeadline));
  }
}

}  // namespace weft
