// Behaviour of the CUDA runtime on which Weft and its tests rely. Here it is checked on the fake, in
// tests/gpu on a real one (WEFT_TEST_REAL_CUDA). If they differ, the fake is wrong.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "support/catch.h"
#ifndef WEFT_TEST_REAL_CUDA
#include "support/fake_cuda/fake_cuda.h"
#endif

namespace {

#ifdef WEFT_TEST_REAL_CUDA
struct Runtime {
  ~Runtime() { CHECK(cudaDeviceSynchronize() == cudaSuccess); }
  void forgive() { (void)cudaGetLastError(); }
};
#else
struct Runtime {
  Runtime() { fake_cuda_setup(1, 1, 20); }
  ~Runtime() {
    CHECK(std::string(fake_cuda_problems()) == "");
    CHECK(std::string(fake_cuda_live()) == "");
  }
  // Clears recorded misuses, which the test caused on purpose.
  void forgive() {
    (void)cudaGetLastError();
    fake_cuda_setup(1, 1, 20);
  }
};
#endif

struct Stream {
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    REQUIRE(cudaStreamCreateWithFlags(&stream, flags) == cudaSuccess);
  }
  ~Stream() {
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // Holds back work that is queued afterwards until the gate is open.
  void hold(std::atomic<bool>* gate) {
    const auto wait = [](void* open) {
      while (!static_cast<std::atomic<bool>*>(open)->load()) std::this_thread::yield();
    };
    REQUIRE(cudaLaunchHostFunc(stream, wait, gate) == cudaSuccess);
  }
  cudaStream_t stream = nullptr;
};

struct Event {
  Event() { REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess); }
  ~Event() { CHECK(cudaEventDestroy(event) == cudaSuccess); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t event = nullptr;
};

// A copy of the number 1 from device memory to pinned memory, which shows whether it has run. From host
// memory to host memory it would block until the stream's earlier work is done.
struct Copy {
  Copy() {
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, sizeof(int)) == cudaSuccess);
    source = static_cast<int*>(memory);
    set(1);
    REQUIRE(cudaHostAlloc(&memory, sizeof(int), 0) == cudaSuccess);
    result = static_cast<int*>(memory);
    *result = 0;
  }
  ~Copy() {
    CHECK(cudaFree(source) == cudaSuccess);
    CHECK(cudaFreeHost(result) == cudaSuccess);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  void set(int number) const {
    REQUIRE(cudaMemcpy(source, &number, sizeof number, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  cudaError_t put_on(cudaStream_t stream) const {
    return cudaMemcpyAsync(result, source, sizeof(int), cudaMemcpyDefault, stream);
  }
  bool ran() const { return __atomic_load_n(result, __ATOMIC_ACQUIRE) == 1; }
  bool stays_away() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return !ran();
  }
  int* source = nullptr;  // in device memory
  int* result = nullptr;  // in pinned memory
};

// Makes the call on another thread, in that thread's capture mode, and returns its result.
template <class Call>
cudaError_t elsewhere(cudaStreamCaptureMode mode, Call&& call) {
  cudaError_t result = cudaSuccess;
  std::thread([&] {
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    result = call();
    (void)cudaGetLastError();
  }).join();
  return result;
}

// Looks up a call of the driver, which the runtime has loaded. The fake is both.
template <class Function>
Function driver_call(const char* name) {
  void* driver = RTLD_DEFAULT;
#ifdef WEFT_TEST_REAL_CUDA
  driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  REQUIRE(driver != nullptr);
#endif
  const auto found = reinterpret_cast<Function>(dlsym(driver, name));
  REQUIRE(found != nullptr);
  return found;
}

cudaError_t allocate() {
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, 100);
  (void)cudaFree(memory);
  return result;
}

}  // namespace

TEST_CASE("empty copies succeed at any address") {
  const Runtime runtime;
  char host = 0;
  void* device = nullptr;
  REQUIRE(cudaMalloc(&device, 1) == cudaSuccess);
  CHECK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(device, nullptr, 0, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(static_cast<char*>(device) + 1, &host, 0, cudaMemcpyHostToDevice) == cudaSuccess);
  const Stream stream;
  CHECK(cudaMemcpyAsync(nullptr, nullptr, 0, cudaMemcpyDefault, stream.stream) == cudaSuccess);
  CHECK(cudaFree(device) == cudaSuccess);
}

TEST_CASE("a stream waits for the record that an event had when the wait was queued") {
  const Runtime runtime;
  std::atomic<bool> gate{false};
  Stream held;
  const Stream waiting, idle;
  const Event event;
  Copy copy;
  CHECK(cudaEventQuery(event.event) == cudaSuccess);  // never recorded
  CHECK(cudaStreamWaitEvent(waiting.stream, event.event, 0) == cudaSuccess);
  CHECK(cudaStreamSynchronize(waiting.stream) == cudaSuccess);
  held.hold(&gate);
  REQUIRE(cudaEventRecord(event.event, held.stream) == cudaSuccess);
  CHECK(cudaEventQuery(event.event) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(held.stream) == cudaErrorNotReady);
  (void)cudaGetLastError();
  REQUIRE(cudaStreamWaitEvent(waiting.stream, event.event, 0) == cudaSuccess);
  REQUIRE(copy.put_on(waiting.stream) == cudaSuccess);
  REQUIRE(cudaEventRecord(event.event, idle.stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(idle.stream) == cudaSuccess);
  CHECK(cudaEventQuery(event.event) == cudaSuccess);  // it refers to the later record
  CHECK(copy.stays_away());
  gate = true;
  CHECK(cudaStreamSynchronize(waiting.stream) == cudaSuccess);
  CHECK(copy.ran());
}

TEST_CASE("a copy from host memory to host memory blocks until it has run") {
  const Runtime runtime;
  const Stream stream;
  void* memory = nullptr;
  REQUIRE(cudaHostAlloc(&memory, 2 * sizeof(int), 0) == cudaSuccess);
  auto* const numbers = static_cast<int*>(memory);
  numbers[0] = 1;
  numbers[1] = 0;
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  REQUIRE(cudaLaunchHostFunc(stream.stream, sleep, nullptr) == cudaSuccess);
  CHECK(cudaMemcpyAsync(numbers + 1, numbers, sizeof(int), cudaMemcpyDefault, stream.stream) == cudaSuccess);
  CHECK(numbers[1] == 1);
  CHECK(cudaFreeHost(numbers) == cudaSuccess);
}

TEST_CASE("the default stream and blocking streams wait for each other, others do not") {
  const Runtime runtime;
  std::atomic<bool> gate{false};
  Stream blocking(cudaStreamDefault);
  const Stream other;
  Copy behind, beside;
  blocking.hold(&gate);
  REQUIRE(behind.put_on(nullptr) == cudaSuccess);
  REQUIRE(beside.put_on(other.stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(other.stream) == cudaSuccess);
  CHECK(beside.ran());
  CHECK(behind.stays_away());
  gate = true;
  CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(behind.ran());
}

TEST_CASE("memory attributes report where memory lies") {
  const Runtime runtime;
  void *device = nullptr, *pinned = nullptr, *managed = nullptr;
  int plain = 0;
  REQUIRE(cudaMalloc(&device, 100) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&pinned, 100, cudaHostAllocPortable) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal) == cudaSuccess);
  const auto type = [](const void* at) {
    cudaPointerAttributes attributes{};
    CHECK(cudaPointerGetAttributes(&attributes, at) == cudaSuccess);
    return attributes.type;
  };
  CHECK(type(device) == cudaMemoryTypeDevice);
  CHECK(type(static_cast<char*>(device) + 99) == cudaMemoryTypeDevice);
  CHECK(type(pinned) == cudaMemoryTypeHost);
  CHECK(type(managed) == cudaMemoryTypeManaged);
  CHECK(type(&plain) == cudaMemoryTypeUnregistered);
  CHECK(cudaFree(device) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFree(managed) == cudaSuccess);
}

// Weft asks the driver whether memory may lie on a device. The runtime has loaded it as libcuda.so.1.
TEST_CASE("the driver reports where memory lies, also on a thread without a context") {
  const Runtime runtime;
  void *device = nullptr, *pinned = nullptr, *managed = nullptr, *freed = nullptr;
  int plain = 0;
  REQUIRE(cudaMalloc(&device, 100) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&pinned, 100, cudaHostAllocPortable) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal) == cudaSuccess);
  REQUIRE(cudaMalloc(&freed, size_t{64} << 20) == cudaSuccess);
  REQUIRE(cudaFree(freed) == cudaSuccess);
  const auto ask = driver_call<decltype(&::cuPointerGetAttributes)>("cuPointerGetAttributes");
  struct Told {
    CUresult result = CUDA_ERROR_UNKNOWN;
    unsigned int type = 9, managed = 9;
    int device = 9;
  };
  const auto look = [&](const void* at) {
    Told told;
    std::array<CUpointer_attribute, 3> wanted = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                 CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    std::array<void*, 3> values = {&told.type, &told.managed, &told.device};
    std::thread([&] {
      told.result = ask(static_cast<unsigned int>(wanted.size()), wanted.data(), values.data(),
                        reinterpret_cast<CUdeviceptr>(at));
    }).join();
    return told;
  };
  const Told on_device = look(static_cast<char*>(device) + 99);
  CHECK(on_device.result == CUDA_SUCCESS);
  CHECK(on_device.type == CU_MEMORYTYPE_DEVICE);
  CHECK(on_device.managed == 0);
  CHECK(on_device.device == 0);
  CHECK(look(pinned).type == CU_MEMORYTYPE_HOST);
  CHECK(look(managed).managed == 1);
  for (const void* at : {static_cast<const void*>(&plain), static_cast<const void*>(freed)}) {
    const Told told = look(at);
    CHECK((told.result != CUDA_SUCCESS || (told.type == 0 && told.managed == 0)));
  }
  CHECK(cudaFree(device) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFree(managed) == cudaSuccess);
}

TEST_CASE("invalid calls are refused, and the thread's last error is returned once") {
  Runtime runtime;
  int devices = 0, plain = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  CHECK(cudaSetDevice(devices) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaFree(nullptr) == cudaSuccess);
  CHECK(cudaFree(&plain) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(&plain) == cudaErrorInvalidValue);
  void* device = nullptr;
  REQUIRE(cudaMalloc(&device, 100) == cudaSuccess);
  CHECK(cudaFree(static_cast<char*>(device) + 50) == cudaErrorInvalidValue);
  CHECK(cudaFree(device) == cudaSuccess);
  static char block[1 << 16];
  REQUIRE(cudaHostRegister(block, sizeof block, 0) == cudaSuccess);
  CHECK(cudaHostRegister(block, sizeof block, 0) == cudaErrorHostMemoryAlreadyRegistered);
  CHECK(cudaHostUnregister(block) == cudaSuccess);
  CHECK(cudaHostUnregister(block) == cudaErrorHostMemoryNotRegistered);
  runtime.forgive();
}

TEST_CASE("calls of the driver do not change the thread's last error, whatever they return") {
  Runtime runtime;
  Stream stream;
  const Event event;
  const auto query = driver_call<decltype(&::cuEventQuery)>("cuEventQuery");
  const auto record = driver_call<decltype(&::cuEventRecord)>("cuEventRecord");
  const auto free_memory = driver_call<decltype(&::cuMemFree)>("cuMemFree_v2");
  std::atomic<bool> gate{false};
  stream.hold(&gate);
  // A stream and an event of the runtime are also valid for the driver.
  CHECK(record(event.event, stream.stream) == CUDA_SUCCESS);
  for (const cudaError_t pending : {cudaSuccess, cudaErrorInvalidDevice}) {
    if (pending != cudaSuccess) CHECK(cudaSetDevice(-1) == pending);
    CHECK(query(event.event) == CUDA_ERROR_NOT_READY);
    CHECK(free_memory(1) != CUDA_SUCCESS);
    CHECK(cudaPeekAtLastError() == pending);
  }
  gate = true;
  CHECK(cudaEventSynchronize(event.event) == cudaSuccess);
  CHECK(query(event.event) == CUDA_SUCCESS);
  runtime.forgive();
}

TEST_CASE(
    "the legacy default stream is refused while a blocking stream is captured, and queries are harmless") {
  Runtime runtime;
  const Stream blocking(cudaStreamDefault);
  const Event event;
  cudaGraph_t graph = nullptr;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  REQUIRE(cudaStreamBeginCapture(blocking.stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(cudaStreamIsCapturing(nullptr, &status) == cudaErrorStreamCaptureImplicit);
  REQUIRE(cudaStreamEndCapture(blocking.stream, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);

  REQUIRE(cudaStreamBeginCapture(blocking.stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(cudaEventRecord(event.event, nullptr) == cudaErrorStreamCaptureImplicit);
  CHECK(cudaStreamEndCapture(blocking.stream, &graph) == cudaErrorStreamCaptureInvalidated);
  runtime.forgive();

  const Stream apart;
  REQUIRE(cudaStreamBeginCapture(apart.stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(cudaStreamIsCapturing(nullptr, &status) == cudaSuccess);
  CHECK(cudaEventRecord(event.event, nullptr) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(apart.stream, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("operations on a captured stream do not run") {
  Runtime runtime;
  const Stream stream;
  const Event event;
  Copy copy;
  cudaGraph_t graph = nullptr;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal) ==
        cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream.stream, &graph) != cudaSuccess);
  CHECK(cudaStreamIsCapturing(stream.stream, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusNone);
  REQUIRE(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaStreamIsCapturing(stream.stream, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusActive);
  CHECK(copy.put_on(stream.stream) == cudaSuccess);
  CHECK(cudaEventRecord(event.event, stream.stream) == cudaSuccess);
  CHECK(copy.stays_away());
  // Capture mode thread-local forbids the call only on this thread.
  CHECK(elsewhere(cudaStreamCaptureModeGlobal, allocate) == cudaSuccess);
  CHECK(cudaStreamEndCapture(stream.stream, &graph) == cudaSuccess);
  CHECK(graph != nullptr);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(copy.stays_away());

  REQUIRE(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  const auto end = [&] { return cudaStreamEndCapture(stream.stream, &graph); };
  CHECK(elsewhere(cudaStreamCaptureModeGlobal, end) == cudaErrorStreamCaptureWrongThread);
  if (end() == cudaSuccess) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  runtime.forgive();
}

TEST_CASE("asking for the device of a captured stream invalidates the capture") {
  Runtime runtime;
  const Stream stream;
  cudaGraph_t graph = nullptr;
  int device = -1;
  CHECK(cudaStreamGetDevice(stream.stream, &device) == cudaSuccess);
  CHECK(device == 0);
  REQUIRE(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(cudaStreamGetDevice(stream.stream, &device) == cudaErrorStreamCaptureUnsupported);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  CHECK(cudaStreamIsCapturing(stream.stream, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusInvalidated);
  CHECK(cudaStreamEndCapture(stream.stream, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamGetDevice(stream.stream, &device) == cudaSuccess);
  runtime.forgive();
}

TEST_CASE("a capture forbids calls that may wait for the device, except on threads in relaxed mode") {
  Runtime runtime;
  const Stream stream;
  const Event event;
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(elsewhere(cudaStreamCaptureModeRelaxed, allocate) == cudaSuccess);
  CHECK(elsewhere(cudaStreamCaptureModeRelaxed, [&] { return cudaEventQuery(event.event); }) == cudaSuccess);
  CHECK(elsewhere(cudaStreamCaptureModeThreadLocal, allocate) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(stream.stream, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);

  REQUIRE(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(elsewhere(cudaStreamCaptureModeGlobal, allocate) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream.stream, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);
  runtime.forgive();
}

TEST_CASE("each launch of a graph runs the captured operations, across streams that events have joined") {
  Runtime runtime;
  const Stream stream, side;
  const Event event;
  Copy first, second;  // the second one's source is the first one's result
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(first.put_on(stream.stream) == cudaSuccess);
  CHECK(cudaEventRecord(event.event, stream.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(side.stream, event.event, 0) == cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK(cudaStreamIsCapturing(side.stream, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusActive);
  CHECK(cudaMemcpyAsync(second.source, first.result, sizeof(int), cudaMemcpyDefault, side.stream) ==
        cudaSuccess);
  CHECK(second.put_on(side.stream) == cudaSuccess);
  CHECK(cudaEventRecord(event.event, side.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(stream.stream, event.event, 0) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(stream.stream, &graph) == cudaSuccess);
  CHECK(cudaStreamIsCapturing(side.stream, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusNone);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);  // the executable graph remains valid
  CHECK(first.stays_away());
  for (int round = 2; round < 6; round++) {
    first.set(round);
    CHECK(cudaGraphLaunch(executable, stream.stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream.stream) == cudaSuccess);
    CHECK(*second.result == round);
  }
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
}

TEST_CASE("a capture must be joined, and waits for nothing outside of it") {
  Runtime runtime;
  const Stream stream, side;
  const Event event, outside;
  Copy copy;
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaEventRecord(event.event, stream.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(side.stream, event.event, 0) == cudaSuccess);
  CHECK(copy.put_on(side.stream) == cudaSuccess);
  CHECK(cudaStreamEndCapture(stream.stream, &graph) == cudaErrorStreamCaptureUnjoined);
  CHECK(graph == nullptr);

  CHECK(cudaEventRecord(outside.event, side.stream) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(stream.stream, outside.event, 0) == cudaErrorStreamCaptureIsolation);
  CHECK(cudaStreamEndCapture(stream.stream, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);
  runtime.forgive();
}
