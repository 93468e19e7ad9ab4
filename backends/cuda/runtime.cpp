#include "runtime.h"

#include "base/text.h"

namespace weft::cuda {

// Makes a device current on the calling thread, and relaxes the thread's capture mode. In this mode a capture
// that another thread of the program has begun does not forbid the calls made meanwhile. The class pushes a
// context and does not use cudaSetDevice: restoring the thread's previous device with it would create a
// context there, even if the process does not use that device.
class Runtime::Scope {
 public:
  Scope(Runtime& runtime, int device) : Scope(runtime.cuda_.call, runtime.contexts_.of(device)) {}
  // Uses any device that was used before: for memory that belongs to all of them.
  explicit Scope(Runtime& runtime) : Scope(runtime.cuda_.call, runtime.contexts_.any()) {}
  ~Scope() {
    CUcontext popped = nullptr;
    if (pushed_) (void)call_.cuCtxPopCurrent(&popped);
    (void)call_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Scope(const Functions& call, CUcontext context) : call_(call) {
    (void)call_.cuThreadExchangeStreamCaptureMode(&mode_);
    pushed_ = context != nullptr && call_.cuCtxPushCurrent(context) == CUDA_SUCCESS;
  }

  const Functions& call_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool pushed_ = false;
};

namespace {

// The runtime's streams and events are the driver's.
CUstream native(DeviceStream stream) {
  return static_cast<CUstream>(stream);
}
CUevent native_event(DeviceEvent event) {
  return static_cast<CUevent>(event);
}
CUdeviceptr address(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

}  // namespace

Runtime::Contexts::~Contexts() {
  for (const auto& [device, context] : known_) (void)cuda_.call.cuDevicePrimaryCtxRelease(device);
}

CUcontext Runtime::Contexts::of(int device) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(device);
  if (known != known_.end()) return known->second;
  CUcontext context = nullptr;
  if (cuda_.call.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return nullptr;
  return known_[device] = context;
}

CUcontext Runtime::Contexts::any() {
  const std::lock_guard lock(mutex_);
  return known_.empty() ? nullptr : known_.begin()->second;
}

Status Runtime::probe(std::string* detail) {
  const std::lock_guard lock(mutex_);
  if (!tried_) {
    tried_ = true;
    status_ = load(file_, &cuda_);
    loaded_.store(status_.ok(), std::memory_order_release);
  }
  WEFT_TRY(status_);
  *detail = cat("CUDA runtime ", version_text(cuda_.runtime), " (", cuda_.file, "), driver for ",
                version_text(cuda_.driver), ", ", cuda_.devices, cuda_.devices == 1 ? " device" : " devices");
  return {};
}

Status Runtime::check(const char* what, CUresult result) const {
  return cuda::check(cuda_, what, result);
}

// Follows the runtime: a thread that has made no device current uses the first one.
Status Runtime::current_device(int* device) {
  const CUresult result = cuda_.call.cuCtxGetDevice(device);
  if (result != CUDA_ERROR_INVALID_CONTEXT) return check("cuCtxGetDevice", result);
  *device = 0;
  return {};
}

Status Runtime::within(int device, const std::function<Status()>& work) {
  const Scope scope(*this, device);
  return work();
}

Status Runtime::query_pointer(const void* pointer, PointerInfo* info) {
  *info =
      loaded() ? ask(cuda_.call.cuPointerGetAttributes, pointer) : programs_driver_.query_pointer(pointer);
  return {};
}

Status Runtime::check_stream(int device, DeviceStream stream) {
  const Scope scope(*this, device);
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  WEFT_TRY(check("cuStreamIsCapturing", cuda_.call.cuStreamIsCapturing(native(stream), &capture)));
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return Status::error(Code::kUnsupported,
                         "the stream is being captured into a graph, which cannot contain this operation's "
                         "transfers through the host: end the capture first");
  }
  return check_device(device, stream);
}

Status Runtime::check_captured(int device, DeviceStream stream) {
  const Scope scope(*this, device);
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  WEFT_TRY(check("cuStreamIsCapturing", cuda_.call.cuStreamIsCapturing(native(stream), &capture)));
  if (capture == CU_STREAM_CAPTURE_STATUS_NONE) {
    return Status::error(Code::kState,
                         "the step is being captured into a graph, but this stream is not: begin the capture "
                         "first, and let the stream join it by an event");
  }
  if (capture != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return Status::error(
        Code::kState,
        "an earlier error invalidated the stream's capture: end the capture and begin it again");
  }
  return {};  // the stream's device cannot be asked for: the question itself invalidates a capture
}

// Checks the stream's device if the library can report it.
Status Runtime::check_device(int device, DeviceStream stream) {
  // The default streams belong to no device.
  if (is_legacy(stream) || own_of_thread(stream) || cuda_.call.stream_get_device == nullptr) return {};
  int own = device;
  WEFT_TRY(check("cuStreamGetDevice", cuda_.call.stream_get_device(native(stream), &own)));
  if (own == device) return {};
  return Status::error(Code::kArg,
                       cat("weft_stream.device is ", device, ", but the stream belongs to device ", own));
}

bool Runtime::own_of_thread(DeviceStream stream) const {
  return native(stream) == CU_STREAM_PER_THREAD;
}

bool Runtime::is_legacy(DeviceStream stream) const {
  return native(stream) == nullptr || native(stream) == CU_STREAM_LEGACY;
}

Status Runtime::create_stream(int device, DeviceStream* stream) {
  const Scope scope(*this, device);
  CUstream made = nullptr;
  int lowest = 0, highest = 0;
  WEFT_TRY(check("cuCtxGetStreamPriorityRange", cuda_.call.cuCtxGetStreamPriorityRange(&lowest, &highest)));
  WEFT_TRY(check("cuStreamCreateWithPriority",
                 cuda_.call.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, highest)));
  *stream = made;
  return {};
}

void Runtime::destroy_stream(int device, DeviceStream stream) {
  const Scope scope(*this, device);
  (void)cuda_.call.cuStreamDestroy(native(stream));
}

Status Runtime::create_event(int device, DeviceEvent* event) {
  const Scope scope(*this, device);
  CUevent made = nullptr;
  WEFT_TRY(check("cuEventCreate", cuda_.call.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING)));
  *event = made;
  return {};
}

void Runtime::destroy_event(int device, DeviceEvent event) {
  const Scope scope(*this, device);
  (void)cuda_.call.cuEventDestroy(native_event(event));
}

Status Runtime::record(int device, DeviceEvent event, DeviceStream stream) {
  const Scope scope(*this, device);
  return check("cuEventRecord", cuda_.call.cuEventRecord(native_event(event), native(stream)));
}

Status Runtime::wait_event(int device, DeviceStream stream, DeviceEvent event) {
  const Scope scope(*this, device);
  return check("cuStreamWaitEvent", cuda_.call.cuStreamWaitEvent(native(stream), native_event(event), 0));
}

Status Runtime::query(int device, DeviceEvent event, bool* done) {
  const Scope scope(*this, device);
  const CUresult state = cuda_.call.cuEventQuery(native_event(event));
  *done = state == CUDA_SUCCESS;
  return state == CUDA_ERROR_NOT_READY ? Status() : check("cuEventQuery", state);
}

Status Runtime::allocate(int device, uint64_t size, std::byte** memory) {
  const Scope scope(*this, device);
  CUdeviceptr made = 0;
  WEFT_TRY(check("cuMemAlloc", cuda_.call.cuMemAlloc(&made, size)));
  *memory = reinterpret_cast<std::byte*>(made);
  return {};
}

void Runtime::free(int device, std::byte* memory) {
  const Scope scope(*this, device);
  (void)cuda_.call.cuMemFree(address(memory));
}

Status Runtime::allocate_pinned(int device, uint64_t size, std::byte** memory) {
  const Scope scope(*this, device);
  void* made = nullptr;
  WEFT_TRY(check("cuMemHostAlloc", cuda_.call.cuMemHostAlloc(&made, size, CU_MEMHOSTALLOC_PORTABLE)));
  *memory = static_cast<std::byte*>(made);
  return {};
}

void Runtime::free_pinned(std::byte* memory) {
  const Scope scope(*this);
  (void)cuda_.call.cuMemFreeHost(memory);
}

Status Runtime::pin(int device, std::byte* memory, uint64_t size) {
  const Scope scope(*this, device);
  return check("cuMemHostRegister", cuda_.call.cuMemHostRegister(memory, size, CU_MEMHOSTREGISTER_PORTABLE));
}

void Runtime::unpin(std::byte* memory) {
  const Scope scope(*this);
  (void)cuda_.call.cuMemHostUnregister(memory);
}

Status Runtime::copy(int device, DeviceStream stream, std::byte* dst, const std::byte* src, uint64_t size) {
  const Scope scope(*this, device);
  return check("cuMemcpyAsync", cuda_.call.cuMemcpyAsync(address(dst), address(src), size, native(stream)));
}

Status Runtime::wait_value(int device, DeviceStream stream, uint32_t* word, uint32_t value) {
  const Scope scope(*this, device);
  // Pinned memory has the same address everywhere.
  return check("cuStreamWaitValue32", cuda_.call.cuStreamWaitValue32(native(stream), address(word), value,
                                                                     CU_STREAM_WAIT_VALUE_GEQ));
}

Status Runtime::load_kernels(int device) {
  const Scope scope(*this, device);
  return kernels_.load_on(device);
}

Status Runtime::copy_pieces(int device, DeviceStream stream, const CopyPiecesArgs& args) {
  const Scope scope(*this, device);
  return kernels_.copy_pieces(stream, args);
}

Status Runtime::accumulate_pieces(int device, DeviceStream stream, const CopyPiecesArgs& args) {
  const Scope scope(*this, device);
  return kernels_.accumulate_pieces(stream, args);
}

Status Runtime::fold(int device, DeviceStream stream, const FoldKernelArgs& args) {
  const Scope scope(*this, device);
  return kernels_.fold(stream, args);
}

Status Runtime::squares(int device, DeviceStream stream, const SquaresKernelArgs& args) {
  const Scope scope(*this, device);
  return kernels_.squares(stream, args);
}

}  // namespace weft::cuda
