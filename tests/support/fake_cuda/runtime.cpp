// Implements the fake's devices, streams and events, and the controls for tests.
#include <algorithm>
#include <chrono>
#include <utility>

#include "fake_cuda.h"
#include "state.h"

using namespace fake;

namespace {

thread_local int t_device = 0;
thread_local std::vector<int> t_before;  // current devices of the contexts that were pushed since
thread_local cudaError_t t_last = cudaSuccess;
thread_local std::pair<std::string, int> t_slow;  // a call and its delay in microseconds

// Delays the call if a test asked for that. Called without the lock.
void linger(const char* call) {
  if (t_slow.first != call) return;
  const auto [name, delay_us] = std::exchange(t_slow, {});
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
}

std::shared_ptr<Event> find_event(cudaEvent_t handle, const char* call) {
  State& s = state();
  const auto it = s.events.find(handle);
  if (it != s.events.end()) return it->second;
  problem(std::string(call) + (s.dead.count(handle) != 0 ? " of a destroyed event" : " of no event"));
  return nullptr;
}

constexpr int kHighestPriority = -5;  // the same as real devices report

cudaError_t make_stream(cudaStream_t* handle, bool blocking, int priority = 0) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (const cudaError_t error = failure("cudaStreamCreate"); error != cudaSuccess) return error;
  auto stream = std::make_shared<Stream>();
  stream->device = t_device;
  stream->blocking = blocking;
  stream->priority = std::clamp(priority, kHighestPriority, 0);
  *handle = new_handle<cudaStream_t>();
  start(stream);
  s.streams[*handle] = std::move(stream);
  return cudaSuccess;
}

template <class Done>
cudaError_t wait(std::unique_lock<std::mutex>& lock, Done&& done) {
  if (state().changed.wait_for(lock, std::chrono::seconds(20), done)) return cudaSuccess;
  problem("a wait for the device does not end");
  return note(cudaErrorLaunchTimeout);
}

// Shared implementation of runtime calls and their driver counterparts.
cudaError_t get_device_count(int* count) {
  const std::lock_guard lock(state().mutex);
  *count = state().devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t stream_device(cudaStream_t handle, int* device) {
  const std::lock_guard lock(state().mutex);
  const auto stream = find_stream(handle, "cudaStreamGetDevice");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->capture) {
    stream->capture->spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  *device = stream->device;
  return cudaSuccess;
}

// Destroys the stream; operations that are queued on it still run.
cudaError_t destroy_stream(cudaStream_t handle) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto stream = find_stream(handle, "cudaStreamDestroy");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  stream->ending = true;
  s.streams.erase(handle);
  s.dead.insert(handle);
  stream->given.notify_one();
  return cudaSuccess;
}

cudaError_t create_event(cudaEvent_t* handle) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (const cudaError_t error = failure("cudaEventCreateWithFlags"); error != cudaSuccess) return error;
  auto event = std::make_shared<Event>();
  event->device = t_device;
  *handle = new_handle<cudaEvent_t>();
  s.events[*handle] = std::move(event);
  return cudaSuccess;
}

cudaError_t destroy_event(cudaEvent_t handle) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (find_event(handle, "cudaEventDestroy") == nullptr) return cudaErrorInvalidResourceHandle;
  s.events.erase(handle);
  s.dead.insert(handle);
  return cudaSuccess;
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream_handle) {
  linger("cudaEventRecord");
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (const cudaError_t error = failure("cudaEventRecord"); error != cudaSuccess) return error;
  const auto event = find_event(handle, "cudaEventRecord");
  const auto stream = find_stream(stream_handle, "cudaEventRecord");
  if (event == nullptr || stream == nullptr || event->device != stream->device)
    return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = implicit(stream_handle, true); error != cudaSuccess) return error;
  event->capture = stream->capture;
  event->after = stream->after;
  event->done = std::make_shared<bool>(event->capture != nullptr);
  if (event->capture) return cudaSuccess;
  enqueue(stream, {{}, [done = event->done] {
                     const std::lock_guard relock(state().mutex);
                     *done = true;
                   }});
  return cudaSuccess;
}

cudaError_t wait_event(cudaStream_t stream_handle, cudaEvent_t handle) {
  const std::lock_guard lock(state().mutex);
  const auto event = find_event(handle, "cudaStreamWaitEvent");
  const auto stream = find_stream(stream_handle, "cudaStreamWaitEvent");
  if (event == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = implicit(stream_handle, true); error != cudaSuccess) return error;
  if (event->capture || (stream->capture && event->done)) return join(*stream, *event);
  if (event->done) enqueue(stream, {[done = event->done] { return *done; }, {}});
  return cudaSuccess;
}

cudaError_t query(cudaEvent_t handle) {
  const std::lock_guard lock(state().mutex);
  if (const cudaError_t error = failure("cudaEventQuery"); error != cudaSuccess) return error;
  const auto event = find_event(handle, "cudaEventQuery");
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->capture) return cudaErrorCapturedEvent;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  return event->completed() ? cudaSuccess : cudaErrorNotReady;
}

std::string text_;  // the name that was returned last; guarded by the lock

}  // namespace

cudaError_t fake::note(cudaError_t error) {
  if (error != cudaSuccess) t_last = error;
  return error;
}

int fake::current_device() {
  return t_device;
}

extern "C" {

void fake_cuda_setup(int devices, uint64_t seed, int delay_us) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.devices = devices;
  s.seed = seed;
  s.delay_us = delay_us;
  s.streams_made = 0;
  s.operations = 0;
  s.problems.clear();
  s.failures.clear();
  s.stalled.clear();
  s.lazy = false;
  s.loaded.clear();
  s.contexts.clear();
  s.runtime_version = s.driver_version = 13'000;
}

const char* fake_cuda_problems() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  text_.clear();
  for (const std::string& line : s.problems) text_ += line + "\n";
  return text_.c_str();
}

const char* fake_cuda_live() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  text_.clear();
  for (const auto& [base, block] : s.blocks) {
    if (!block.freed)
      text_ += std::string(name(block.kind)) + " of " + std::to_string(block.size) + " bytes\n";
  }
  if (!s.streams.empty()) text_ += std::to_string(s.streams.size()) + " streams\n";
  if (const size_t graphs = s.graphs.size() + s.executables.size(); graphs > 0)
    text_ += std::to_string(graphs) + " graphs\n";
  if (!s.events.empty()) text_ += std::to_string(s.events.size()) + " events\n";
  return text_.c_str();
}

uint64_t fake_cuda_operations() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.operations;
}

bool fake_cuda_has_context(int device) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.contexts.contains(device);
}

void fake_cuda_fail(const char* call, int error) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (error == 0) {
    s.failures.erase(call);
  } else {
    s.failures[call] = error;
  }
}

void fake_cuda_slow(const char* call, int delay_us) {
  t_slow = {call, delay_us};
}

void fake_cuda_stall(const char* kernel, int after) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.stalled = kernel;
  s.stalled_after = after;
  s.changed.notify_all();
}

void fake_cuda_load_lazily(int lazy) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.lazy = lazy != 0;
}

void fake_cuda_versions(int runtime, int driver) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto version = [](int given) { return given > 0 ? given : given == 0 ? 13'000 : 0; };
  s.runtime_version = version(runtime);
  s.driver_version = version(driver);
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  const std::lock_guard lock(state().mutex);
  *version = state().runtime_version;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  const std::lock_guard lock(state().mutex);
  *version = state().driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  return note(get_device_count(count));
}
CUresult cuInit(unsigned int /*flags*/) {
  int count = 0;
  return driver(get_device_count(&count));
}
CUresult cuDeviceGetCount(int* count) {
  return driver(get_device_count(count));
}
cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = t_device;
  return CUDA_SUCCESS;
}
cudaError_t cudaSetDevice(int device) {
  const std::lock_guard lock(state().mutex);
  if (device < 0 || device >= state().devices) return note(cudaErrorInvalidDevice);
  t_device = device;
  state().contexts.insert(device);  // cudaSetDevice creates the context, as in CUDA 12
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return "an error of the fake CUDA";
  }
}
cudaError_t cudaGetLastError() {
  return std::exchange(t_last, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return t_last;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return note(make_stream(stream, true));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return note(make_stream(stream, (flags & cudaStreamNonBlocking) == 0));
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  return note(make_stream(stream, (flags & cudaStreamNonBlocking) == 0, priority));
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return driver(make_stream(stream, (flags & CU_STREAM_NON_BLOCKING) == 0, priority));
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = kHighestPriority;
  return cudaSuccess;
}
CUresult cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  return driver(cudaDeviceGetStreamPriorityRange(lowest, highest));
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const std::lock_guard lock(state().mutex);
  const auto stream = find_stream(handle, "cudaStreamGetPriority");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return note(destroy_stream(handle));
}
CUresult cuStreamDestroy(CUstream handle) {
  return driver(destroy_stream(handle));
}
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return note(stream_device(handle, device));
}
CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return driver(stream_device(handle, device));
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const std::lock_guard lock(state().mutex);
  const auto stream = find_stream(handle, "cudaStreamQuery");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (spoils(*stream)) return note(cudaErrorStreamCaptureUnsupported);
  return stream->completed == stream->enqueued ? cudaSuccess : note(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  std::unique_lock lock(state().mutex);
  const auto stream = find_stream(handle, "cudaStreamSynchronize");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (spoils(*stream)) return note(cudaErrorStreamCaptureUnsupported);
  const uint64_t number = stream->enqueued;
  return wait(lock, [&] { return stream->completed >= number; });
}
cudaError_t cudaDeviceSynchronize() {
  std::unique_lock lock(state().mutex);
  for (const auto& [handle, stream] : state().streams) {
    if (stream->device == t_device && spoils(*stream)) return note(cudaErrorStreamCaptureUnsupported);
  }
  if (drain(lock, t_device)) return cudaSuccess;
  problem("a wait for the device does not end");
  return note(cudaErrorLaunchTimeout);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  const std::lock_guard lock(state().mutex);
  const auto stream = find_stream(handle, "cudaLaunchHostFunc");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  enqueue(stream, {{}, [function, data] { function(data); }});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned int /*flags*/) {
  return note(create_event(handle));
}
CUresult cuEventCreate(CUevent* handle, unsigned int /*flags*/) {
  return driver(create_event(handle));
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return note(destroy_event(handle));
}
CUresult cuEventDestroy(CUevent handle) {
  return driver(destroy_event(handle));
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return note(record(handle, stream));
}
CUresult cuEventRecord(CUevent handle, CUstream stream) {
  return driver(record(handle, stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned int /*flags*/) {
  return note(wait_event(stream, handle));
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int /*flags*/) {
  return driver(wait_event(stream, handle));
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return note(query(handle));
}
CUresult cuEventQuery(CUevent handle) {
  return driver(query(handle));
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  std::unique_lock lock(state().mutex);
  const auto event = find_event(handle, "cudaEventSynchronize");
  if (event == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (event->capture) return note(cudaErrorCapturedEvent);
  if (forbidden()) return note(cudaErrorStreamCaptureUnsupported);
  return wait(lock, [done = event->done] { return done == nullptr || *done; });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const std::lock_guard lock(state().mutex);
  if (device < 0 || device >= state().devices) return CUDA_ERROR_INVALID_DEVICE;
  state().contexts.insert(device);
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice /*device*/) {
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  t_before.push_back(t_device);
  t_device = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (t_before.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(t_device) + 1);
  t_device = t_before.back();
  t_before.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  const std::lock_guard lock(state().mutex);
  const auto stream = find_stream(handle, "cuStreamWaitValue32");
  if (stream == nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ || address % sizeof(uint32_t) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const cudaError_t error = implicit(handle, true); error != cudaSuccess) return driver(error);
  auto* const word = reinterpret_cast<uint32_t*>(
      reach(reinterpret_cast<const void*>(address), sizeof(uint32_t), "cuStreamWaitValue32"));
  if (word == nullptr) return CUDA_ERROR_INVALID_VALUE;
  enqueue(stream, {[word, value, address] {
                     if (reach(reinterpret_cast<const void*>(address), 4, "a wait for a value") == nullptr)
                       return true;
                     return static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0;
                   },
                   {},
                   true});
  return CUDA_SUCCESS;
}

}  // extern "C"
