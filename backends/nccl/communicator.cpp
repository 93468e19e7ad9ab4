#include "communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/guard.h"
#include "base/text.h"
#include "base/thread.h"

namespace weft::nccl {
namespace {

constexpr int64_t kFinalizeMs = 5'000;
constexpr int64_t kEndMs = 5'000;
constexpr int64_t kGraphsEndMs = 1'000;
constexpr int64_t kCallMs = 10'000;
constexpr size_t kIdBytes = sizeof(ncclUniqueId::internal);

Status malformed(const Exchange& exchange) {
  return Status::error(Code::kInternal, cat("rank ", exchange.name(0), " sent no ncclUniqueId of ", kIdBytes,
                                            " bytes: run the same version of Weft on all ranks"))
      .with_ranks({exchange.name(0)});
}

}  // namespace

Communicator::Communicator(const BackendArgs& args, std::shared_ptr<const Library> library, int device)
    : Communicator(
          args.clock, args.host, args.accelerator, std::move(library), args.exchange.rank(),
          args.exchange.size(), device,
          args.names.empty() ? args.exchange.rank() : args.names[static_cast<size_t>(args.exchange.rank())],
          false) {
  turns_ = turn_ = first_of(args.failpoints, FailCounter::kTurns);
}

Communicator::Communicator(Clock& clock, const DeviceOps& host, std::shared_ptr<Accelerator> accelerator,
                           std::shared_ptr<const Library> library, int rank, int size, int device, int name,
                           bool graphs)
    : clock_(clock),
      host_(host),
      accelerator_(std::move(accelerator)),
      nccl_(std::move(library)),
      rank_(rank),
      size_(size),
      device_(device),
      name_(name),
      graphs_(graphs),
      held_(std::make_shared<Held>()) {
  held_->accelerator = accelerator_;
  held_->nccl = nccl_;
  held_->device = device_;
}

Status Communicator::for_graphs(const Communicator& like, std::shared_ptr<Communicator>* communicator) {
  std::shared_ptr<Communicator> made(new Communicator(like.clock_, like.host_, like.accelerator_, like.nccl_,
                                                      like.rank_, like.size_, like.device_, like.name_,
                                                      true));
  WEFT_TRY(made->start_end_thread());
  WEFT_TRY(made->accelerator_->create_stream(made->device_, &made->stream_));
  *communicator = std::move(made);
  return {};
}

Status Communicator::identify(ncclUniqueId* id) const {
  return accelerator_->within(device_, [&] { return check("ncclGetUniqueId", nccl_->ncclGetUniqueId(id)); });
}

Status Communicator::make(const BackendArgs& args, std::shared_ptr<const Library> library,
                          std::shared_ptr<Communicator>* communicator) {
  const int device = args.device;
  ncclUniqueId id{};
  std::shared_ptr<Communicator> made;
  const auto begin = [&]() -> Status {
    made = std::make_shared<Communicator>(args, std::move(library), device);
    WEFT_TRY(made->start_end_thread());
    WEFT_TRY(args.accelerator->load_kernels(device));
    WEFT_TRY(args.accelerator->create_stream(device, &made->stream_));
    return made->rank_ == 0 ? made->identify(&id) : Status();
  };
  WEFT_TRY(agree_on(args.exchange, begin(), args.deadline));

  // Exchanges rank 0's identifier, and whether each rank has a progress thread.
  std::vector<Bytes> all;
  Bytes mine(made->rank_ == 0 ? kIdBytes + 1 : 1, std::byte{args.progress_thread});
  if (made->rank_ == 0) std::memcpy(mine.data() + 1, id.internal, kIdBytes);
  WEFT_TRY(args.exchange.all_gather(mine, &all, args.deadline));
  if (all[0].size() != kIdBytes + 1) return malformed(args.exchange);
  std::memcpy(id.internal, all[0].data() + 1, kIdBytes);
  made->messages_ = std::all_of(all.begin(), all.end(),
                                [](const Bytes& one) { return !one.empty() && one[0] != std::byte{0}; });

  // A rank that cannot begin reports it before the other ranks wait for it inside NCCL.
  Status connected = made->connect(id);
  WEFT_TRY(agree_on(args.exchange, connected, args.deadline));
  connected = made->wait(args);
  if (!connected.ok()) made->give_up(connected);
  WEFT_TRY(agree_on(args.exchange, connected, args.deadline));
  *communicator = std::move(made);
  return {};
}

Status Communicator::connect(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Status status = accelerator_->within(device_, [&] {
    return check("ncclCommInitRankConfig",
                 nccl_->ncclCommInitRankConfig(&held_->comm, size_, id, rank_, &config));
  });
  if (!status.ok()) give_up(status);
  return status;
}

// Waits until NCCL has connected the ranks. Reserves part of the time for the exchange of the ranks' results.
Status Communicator::wait(const BackendArgs& args) {
  const uint64_t now = clock_.now_ns();
  const Deadline deadline = Deadline::at(now + (std::max(args.deadline.ns(), now) - now) / 4 * 3);
  for (uint32_t round = 0;; round++) {
    bool done = false;
    WEFT_TRY(settled(&done));
    if (done) return {};
    WEFT_TRY(args.exchange.check());
    if (deadline.expired(clock_)) {
      return Status::error(Code::kTimeout,
                           "NCCL did not connect its communicator before the deadline: check that all ranks "
                           "are alive, and NCCL's network (NCCL_DEBUG=INFO)",
                           Evidence::kDeadline);
    }
    clock_.relax(round);
  }
}

Status Communicator::allocate(const std::shared_ptr<Communicator>& communicator, uint64_t size,
                              std::shared_ptr<std::byte>* memory) {
  Communicator& c = *communicator;
  const Library& nccl = *c.nccl_;
  void* block = nullptr;
  void* handle = nullptr;
  if (!nccl.registers()) {
    WEFT_TRY(c.accelerator_->allocate(c.device_, size, reinterpret_cast<std::byte**>(&block)));
  } else {
    WEFT_TRY(c.accelerator_->within(c.device_,
                                    [&] { return c.check("ncclMemAlloc", nccl.mem_alloc(&block, size)); }));
    const auto enter = [&] { return nccl.comm_register(c.native(), block, size, &handle); };
    Status registered = c.graphs_ ? Status() : c.call("ncclCommRegister", enter);
    if (!registered.ok()) {
      free(*c.held_, static_cast<std::byte*>(block));
      return registered;
    }
  }
  *memory = std::shared_ptr<std::byte>(
      static_cast<std::byte*>(block),
      [communicator, handle](std::byte* left) { communicator->release(left, handle); });
  return {};
}

// Frees memory, or leaves that to the end thread: freeing memory that a hanging NCCL kernel may access would
// wait for the kernel.
void Communicator::release(std::byte* memory, void* handle) {
  Held& held = *held_;
  // A failed deregistration is an error of the communicator, whose end also deregisters the memory.
  bool stays = graphs_;
  if (handle != nullptr && !aborted())
    stays = !call("ncclCommDeregister", [&] { return nccl_->comm_deregister(native(), handle); }).ok();
  {
    const std::lock_guard lock(held.mutex);
    if ((aborted() || stays) && !ended()) return held.left.push_back(memory);
  }
  free(held, memory);
}

void Communicator::free(const Held& held, std::byte* memory) {
  if (!held.nccl->registers()) return held.accelerator->free(held.device, memory);
  (void)held.accelerator
      ->within(held.device,
               [&] {
                 (void)held.nccl->mem_free(memory);
                 return Status();
               })
      .ok();
}

// Makes an NCCL call that belongs to no lane, once the lanes' calls are on the stream. Any thread, without
// the progress lock.
Status Communicator::call(const char* what, const std::function<ncclResult_t()>& call) {
  const Deadline deadline = Deadline::after(clock_, kCallMs, 0);
  bool called = false;
  for (uint32_t round = 0;; round++) {
    {
      const std::lock_guard lock(held_->calls);
      WEFT_TRY(failure());
      bool done = false;
      WEFT_TRY(settled(&done));
      if (done && called) return {};
      if (done) {
        WEFT_TRY(accelerator_->within(device_, [&] { return check(what, call()); }));
        called = true;
        continue;
      }
    }
    if (deadline.expired(clock_))
      return Status::error(Code::kTimeout, cat("NCCL: ", what, ": not done after ", kCallMs,
                                               " ms: the NCCL communicator has unfinished work"));
    clock_.relax(round);
  }
}

Communicator::~Communicator() {
  const bool any = held_->comm != nullptr;
  // Finalizing also waits for graphs. For a communicator of graphs the end thread does all of it.
  bool rests = false;
  if (any && !aborted_) rests = graphs_ ? settled(&rests).ok() && rests : finalize().ok();
  if (rests) {
    aborted_ = true;
    end(nccl_->ncclCommDestroy);
  }
  give_up(Status::error(Code::kCancelled, "the communicator is being destroyed"));
  const Deadline deadline = Deadline::after(clock_, graphs_ ? kGraphsEndMs : kEndMs, 0);
  for (uint32_t round = 0; any && !ended() && !deadline.expired(clock_); round++) clock_.relax(round);
  const std::lock_guard lock(held_->mutex);
  if (!any) {
    for (std::byte* memory : std::exchange(held_->left, {})) free(*held_, memory);
    held_->dismissed = true;
    held_->changed.notify_one();
  }
  if (any && !ended()) {
    held_->stream = stream_;
  } else if (stream_ != nullptr) {
    accelerator_->destroy_stream(device_, stream_);
  }
}

// Finalizes a communicator at rest; an operation in flight may never end.
Status Communicator::finalize() {
  bool done = false;
  WEFT_TRY(settled(&done));
  if (!done) return Status::error(Code::kState, "NCCL: the communicator has unfinished operations");
  WEFT_TRY(accelerator_->within(
      device_, [&] { return check("ncclCommFinalize", nccl_->ncclCommFinalize(held_->comm)); }));
  const Deadline deadline = Deadline::after(clock_, kFinalizeMs, 0);
  for (uint32_t round = 0;; round++) {
    WEFT_TRY(settled(&done));
    if (done) return {};
    if (deadline.expired(clock_))
      return Status::error(Code::kTimeout,
                           cat("NCCL: ncclCommFinalize is not done after ", kFinalizeMs, " ms"));
    clock_.relax(round);
  }
}

Status Communicator::check_device(const DeviceCall& call) const {
  if (call.device == device_) return {};
  return Status::error(Code::kArg, cat("the communicator is on CUDA device ", device_,
                                       " (weft_comm_options.device, by default the creating thread's current "
                                       "device), and the stream is of device ",
                                       call.device, ": pass a stream of the communicator's device"));
}

void Communicator::give_up(const Status& why) {
  if (aborted()) return;
  failure_ = why;
  aborted_.store(true, std::memory_order_release);
  if (held_->comm == nullptr) return;
  end(nccl_->ncclCommAbort);
}

Status Communicator::start_end_thread() {
  std::thread thread;
  const auto body = [held = held_] {
    const Status thrown = guarded_run([&] { wait_for_end(*held); });
    if (!thrown.ok()) held->ended.store(true, std::memory_order_release);
  };
  WEFT_TRY(start_thread("weft-nccl-end", body, {}, &thread));
  thread.detach();
  return {};
}

// The body of the end thread.
void Communicator::wait_for_end(Held& held) {
  ncclResult_t (*how)(ncclComm_t) = nullptr;
  {
    std::unique_lock lock(held.mutex);
    held.changed.wait(lock, [&] { return held.how != nullptr || held.dismissed; });
    how = held.how;
  }
  if (how == nullptr) return;
  {
    const std::lock_guard lock(held.calls);
    (void)held.accelerator
        ->within(held.device,
                 [&] {
                   (void)how(held.comm);
                   return Status();
                 })
        .ok();
  }
  const std::lock_guard lock(held.mutex);
  for (std::byte* memory : std::exchange(held.left, {})) free(held, memory);
  if (held.stream != nullptr) held.accelerator->destroy_stream(held.device, held.stream);
  held.ended.store(true, std::memory_order_release);
}

// Called once. It never blocks for long, because the end thread holds the mutex only while it frees memory.
void Communicator::end(ncclResult_t (*how)(ncclComm_t)) {
  const std::lock_guard lock(held_->mutex);
  held_->how = how;
  held_->changed.notify_one();
}

Status Communicator::check(const char* what, ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return {};
  // The last error may be unrelated, but it is the best available detail.
  const char* const last = aborted() ? nullptr : nccl_->ncclGetLastError(held_->comm);
  const bool more = last != nullptr && *last != '\0';
  const Code code = result == ncclRemoteError ? Code::kPeerFailed : Code::kSystem;
  return Status::error(
      code, cat("NCCL: ", what, ": ", nccl_->ncclGetErrorString(result), more ? "; " : "", more ? last : ""));
}

Status Communicator::settled(bool* done) const {
  ncclResult_t state = ncclSuccess;
  WEFT_TRY(check("ncclCommGetAsyncError", nccl_->ncclCommGetAsyncError(held_->comm, &state)));
  *done = state == ncclSuccess;
  return check("an asynchronous operation", state);
}

Status Communicator::reached(DeviceEvent event, bool* done) const {
  WEFT_TRY(failure());
  WEFT_TRY(accelerator_->query(device_, event, done));
  if (*done) return {};
  const auto calls = try_calls();
  bool settled_too = false;
  return calls ? settled(&settled_too) : Status();
}

}  // namespace weft::nccl
