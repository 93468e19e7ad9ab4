#include "runtime.h"

#include "base/text.h"

namespace weft::cuda {

// The calling thread works on this device meanwhile, and a capture that another thread of the program has
// begun does not forbid what it does. Not by cudaSetDevice: to go back it would have to set the device that
// the thread had before, which makes a context there, also on one that the process does not use.
class Runtime::Scope {
 public:
  static constexpr int kAny = -1;
  Scope(Runtime& runtime, int device) : call_(runtime.cuda_.call) {
    (void)call_.cudaThreadExchangeStreamCaptureMode(&mode_);
    if (device == kAny) return;
    const CUcontext context = runtime.contexts_.of(device);
    pushed_ = context != nullptr && call_.push_context(context) == CUDA_SUCCESS;
  }
  ~Scope() {
    CUcontext popped = nullptr;
    if (pushed_) (void)call_.pop_context(&popped);
    (void)call_.cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Functions& call_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool pushed_ = false;
};

namespace {

cudaStream_t native(DeviceStream stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t native_event(DeviceEvent event) {
  return static_cast<cudaEvent_t>(event);
}

// The default streams have no device of their own.
bool is_default(DeviceStream stream) {
  return native(stream) == nullptr || native(stream) == cudaStreamLegacy ||
         native(stream) == cudaStreamPerThread;
}

}  // namespace

Runtime::Contexts::~Contexts() {
  for (const auto& [device, context] : known_) (void)cuda_.call.release_context(device);
}

CUcontext Runtime::Contexts::of(int device) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(device);
  if (known != known_.end()) return known->second;
  CUcontext context = nullptr;
  if (cuda_.call.retain_context(&context, device) != CUDA_SUCCESS) return nullptr;
  return known_[device] = context;
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

// What failed is Weft's to tell: it does not stay behind as the thread's last error.
Status Runtime::check(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cuda_.call.cudaGetLastError();
  const Code code = error == cudaErrorMemoryAllocation ? Code::kNoMemory
                    : error == cudaErrorInvalidValue || error == cudaErrorInvalidResourceHandle
                        ? Code::kArg
                        : Code::kSystem;
  return Status::error(code, cat("CUDA: ", what, ": ", cuda_.call.cudaGetErrorString(error)));
}

Status Runtime::current_device(int* device) {
  return check("the current device", cuda_.call.cudaGetDevice(device));
}

Status Runtime::within(int device, const std::function<Status()>& work) {
  const Scope scope(*this, device);
  return work();
}

Status Runtime::look_at(const void* pointer, PointerInfo* info) {
  *info = {};
  if (!loaded()) {
    *info = programs_driver_.look_at(pointer);
    return {};
  }
  const Scope scope(*this, Scope::kAny);
  // A later runtime's struct may be longer.
  union {
    cudaPointerAttributes attributes;
    char room[256];
  };
  attributes = {};
  if (!check("pointer attributes", cuda_.call.cudaPointerGetAttributes(&attributes, pointer)).ok()) return {};
  info->device = attributes.device;
  if (attributes.type == cudaMemoryTypeHost) info->place = MemoryPlace::kPinned;
  if (attributes.type == cudaMemoryTypeDevice) info->place = MemoryPlace::kDevice;
  if (attributes.type == cudaMemoryTypeManaged) info->place = MemoryPlace::kManaged;
  return {};
}

Status Runtime::check_stream(int device, DeviceStream stream) {
  const Scope scope(*this, device);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  WEFT_TRY(check("the stream", cuda_.call.cudaStreamIsCapturing(native(stream), &capture)));
  if (capture != cudaStreamCaptureStatusNone) {
    return Status::error(Code::kUnsupported,
                         "the stream is being captured into a graph, which a host's transfers cannot be");
  }
  return check_device(device, stream);
}

Status Runtime::check_captured(int device, DeviceStream stream) {
  const Scope scope(*this, device);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  WEFT_TRY(check("the stream", cuda_.call.cudaStreamIsCapturing(native(stream), &capture)));
  if (capture == cudaStreamCaptureStatusNone) {
    return Status::error(Code::kState,
                         "the stream is not being captured into a graph, as the step is: begin the capture "
                         "first, and let the stream join it by an event");
  }
  if (capture != cudaStreamCaptureStatusActive) {
    return Status::error(Code::kState, "the stream's capture was spoilt by an earlier error: end it");
  }
  return check_device(device, stream);
}

// Where the library can tell.
Status Runtime::check_device(int device, DeviceStream stream) {
  if (is_default(stream) || cuda_.call.stream_get_device == nullptr) return {};
  int own = device;
  WEFT_TRY(check("the stream's device", cuda_.call.stream_get_device(native(stream), &own)));
  if (own == device) return {};
  return Status::error(Code::kArg,
                       cat("weft_stream.device is ", device, ", but the stream is one of device ", own));
}

bool Runtime::own_of_thread(DeviceStream stream) const {
  return native(stream) == cudaStreamPerThread;
}

Status Runtime::create_stream(int device, DeviceStream* stream) {
  const Scope scope(*this, device);
  cudaStream_t made = nullptr;
  int lowest = 0, highest = 0;
  WEFT_TRY(check("priorities", cuda_.call.cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
  WEFT_TRY(check("a stream", cuda_.call.cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, highest)));
  *stream = made;
  return {};
}

void Runtime::destroy_stream(int device, DeviceStream stream) {
  const Scope scope(*this, device);
  (void)check("", cuda_.call.cudaStreamDestroy(native(stream))).ok();
}

Status Runtime::create_event(int device, DeviceEvent* event) {
  const Scope scope(*this, device);
  cudaEvent_t made = nullptr;
  WEFT_TRY(check("an event", cuda_.call.cudaEventCreateWithFlags(&made, cudaEventDisableTiming)));
  *event = made;
  return {};
}

void Runtime::destroy_event(int device, DeviceEvent event) {
  const Scope scope(*this, device);
  (void)check("", cuda_.call.cudaEventDestroy(native_event(event))).ok();
}

Status Runtime::record(int device, DeviceEvent event, DeviceStream stream) {
  const Scope scope(*this, device);
  return check("an event's record", cuda_.call.cudaEventRecord(native_event(event), native(stream)));
}

Status Runtime::wait_event(int device, DeviceStream stream, DeviceEvent event) {
  const Scope scope(*this, device);
  return check("a wait for an event", cuda_.call.cudaStreamWaitEvent(native(stream), native_event(event), 0));
}

Status Runtime::query(int device, DeviceEvent event, bool* done) {
  const Scope scope(*this, device);
  const cudaError_t state = cuda_.call.cudaEventQuery(native_event(event));
  *done = state == cudaSuccess;
  if (state != cudaErrorNotReady) return check("work on the device", state);
  (void)cuda_.call.cudaGetLastError();
  return {};
}

Status Runtime::allocate(int device, uint64_t size, std::byte** memory) {
  const Scope scope(*this, device);
  void* made = nullptr;
  WEFT_TRY(check("device memory", cuda_.call.cudaMalloc(&made, size)));
  *memory = static_cast<std::byte*>(made);
  return {};
}

void Runtime::free(int device, std::byte* memory) {
  const Scope scope(*this, device);
  (void)check("", cuda_.call.cudaFree(memory)).ok();
}

Status Runtime::allocate_pinned(int device, uint64_t size, std::byte** memory) {
  const Scope scope(*this, device);
  void* made = nullptr;
  WEFT_TRY(check("pinned memory", cuda_.call.cudaHostAlloc(&made, size, cudaHostAllocPortable)));
  *memory = static_cast<std::byte*>(made);
  return {};
}

void Runtime::free_pinned(std::byte* memory) {
  const Scope scope(*this, Scope::kAny);
  (void)check("", cuda_.call.cudaFreeHost(memory)).ok();
}

Status Runtime::pin(int device, std::byte* memory, uint64_t size) {
  const Scope scope(*this, device);
  return check("pinning memory", cuda_.call.cudaHostRegister(memory, size, cudaHostRegisterPortable));
}

void Runtime::unpin(std::byte* memory) {
  const Scope scope(*this, Scope::kAny);
  (void)check("", cuda_.call.cudaHostUnregister(memory)).ok();
}

Status Runtime::copy(int device, DeviceStream stream, std::byte* dst, const std::byte* src, uint64_t size) {
  const Scope scope(*this, device);
  return check("a copy", cuda_.call.cudaMemcpyAsync(dst, src, size, cudaMemcpyDefault, native(stream)));
}

Status Runtime::wait_value(int device, DeviceStream stream, uint32_t* word, uint32_t value) {
  const Scope scope(*this, device);
  // Pinned memory has one address everywhere.
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(word));
  const CUresult result = cuda_.call.wait_value(native(stream), address, value, CU_STREAM_WAIT_VALUE_GEQ);
  if (result == CUDA_SUCCESS) return {};
  return Status::error(Code::kSystem, cat("CUDA: the stream cannot wait for a value (driver error ",
                                          static_cast<int>(result), ")"));
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

Status Runtime::quantize(int device, DeviceStream stream, const QuantizeArgs& args) {
  const Scope scope(*this, device);
  return kernels_.quantize(stream, args);
}

Status Runtime::dequantize(int device, DeviceStream stream, const DequantizeArgs& args) {
  const Scope scope(*this, device);
  return kernels_.dequantize(stream, args);
}

Status Runtime::squares(int device, DeviceStream stream, const SquaresKernelArgs& args) {
  const Scope scope(*this, device);
  return kernels_.squares(stream, args);
}

Status Runtime::low_rank(int device, DeviceStream stream, const LowRankArgs& args) {
  const Scope scope(*this, device);
  return kernels_.low_rank(stream, args);
}

Status Runtime::low_rank_fast(int device, DeviceStream stream, const LowRankArgs& args) {
  const bool factor = args.product == LowRank::kLeft || args.product == LowRank::kRight;
  const Scope scope(*this, device);
  if (!factor || !blas_.probe().ok()) return kernels_.low_rank(stream, args);
  return blas_.multiply(device, stream, args);
}

Status Runtime::orthonormalize(int device, DeviceStream stream, const OrthonormalArgs& args) {
  const Scope scope(*this, device);
  return kernels_.orthonormalize(stream, args);
}

Status Runtime::select(int device, DeviceStream stream, const SelectArgs& args) {
  const Scope scope(*this, device);
  return kernels_.select(stream, args);
}

}  // namespace weft::cuda
