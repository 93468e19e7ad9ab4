// The interface to a device's own library: borrowed streams, events, asynchronous copies, pinned memory. A
// module (backends/cuda) implements it; the C layer and lib/coll/staged use it. No function here blocks until
// a device has finished work: the engine polls query().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "device/device_kernels.h"

namespace weft {

inline constexpr uint8_t kCudaDevices = 1;  // WEFT_DEVICE_CUDA

// A stream and an event of the device's library (cudaStream_t, cudaEvent_t).
using DeviceStream = void*;
using DeviceEvent = void*;

enum class MemoryPlace : uint8_t {
  kUnknown,  // memory that the library does not know: pageable host memory of the program, or freed memory
  kPinned,   // host memory that the library allocated or registered
  kDevice,
  kManaged,  // migrates between host and devices
};
struct PointerInfo {
  MemoryPlace place = MemoryPlace::kUnknown;
  int device = 0;
};

// Threads: any thread. No call changes the calling thread's current device. device is below device_count().
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual const char* name() const = 0;  // "cuda"
  // Loads the library on the first call. Returns kUnavailable with the reason; *detail describes the
  // library. The other calls require that this has succeeded.
  virtual Status probe(std::string* detail) = 0;
  // Returns true if query_pointer can tell where memory is: probe has succeeded, or notice_use has returned
  // true.
  virtual bool sees_memory() const = 0;
  // Returns true if the program itself uses the library: then memory may be a device's although probe was not
  // called. Loads and allocates nothing. Searches the libraries that the process has loaded (0.2 us) until it
  // returns true.
  virtual bool notice_use() = 0;
  virtual int device_count() const = 0;
  // Returns true if the library loads the program's kernels at their first launch. While a stream waits for
  // Weft, no work that is enqueued after such a load begins, on any stream, Weft's copies included.
  virtual bool loads_lazily() const = 0;

  // current_device() returns the calling thread's current device. within() runs work of other libraries with
  // `device` as the thread's current device, and so that graph captures on other threads do not make it fail.
  virtual Status current_device(int* device) = 0;
  virtual Status within(int device, const std::function<Status()>& work) = 0;

  virtual Status query_pointer(const void* pointer, PointerInfo* info) = 0;
  // Checks a stream for use in a call. Returns kArg if the library can tell that it belongs to another
  // device. Returns kUnsupported if it is being captured into a graph. Returns kState if it is the legacy
  // default stream while the capture of another stream makes that unusable; record then returns kState as
  // well.
  virtual Status check_stream(int device, DeviceStream stream) = 0;
  // Checks a stream for graph capture. kState: the stream is not being captured into a graph.
  virtual Status check_captured(int device, DeviceStream stream) = 0;
  // Returns true if the handle denotes a different stream on each thread (CUDA's per-thread default stream).
  virtual bool own_of_thread(DeviceStream stream) const = 0;
  // Returns true if the handle denotes the legacy default stream of the device.
  virtual bool is_legacy(DeviceStream stream) const = 0;

  // Creates a stream of the highest priority that does not synchronise with other streams, including the
  // legacy default stream. Streams share a few hardware queues. A program's stream may wait for this stream
  // by wait_value, which the device's scheduler does not see: if both are in one queue, this stream's work
  // never begins (WEFT_CONTEXT_STREAM_WAITS).
  virtual Status create_stream(int device, DeviceStream* stream) = 0;
  virtual void destroy_stream(int device, DeviceStream stream) = 0;
  virtual Status create_event(int device, DeviceEvent* event) = 0;
  virtual void destroy_event(int device, DeviceEvent event) = 0;
  virtual Status record(int device, DeviceEvent event, DeviceStream stream) = 0;
  // Makes work that is enqueued on the stream from now on wait for the work before the event's last record.
  virtual Status wait_event(int device, DeviceStream stream, DeviceEvent event) = 0;
  // Sets *done if the work before the event's last record has completed. Returns errors of the device.
  virtual Status query(int device, DeviceEvent event, bool* done) = 0;

  // Allocate and free device memory, whose contents are undefined at first. Freeing may wait for the device.
  virtual Status allocate(int device, uint64_t size, std::byte** memory) = 0;
  virtual void free(int device, std::byte* memory) = 0;
  // Allocate and free host memory that all devices can access, through this device. pin() registers memory
  // that Weft owns, until unpin().
  virtual Status allocate_pinned(int device, uint64_t size, std::byte** memory) = 0;
  virtual void free_pinned(std::byte* memory) = 0;
  virtual Status pin(int device, std::byte* memory, uint64_t size) = 0;
  virtual void unpin(std::byte* memory) = 0;

  // Enqueue work on the stream. copy: between pinned and device memory, in either direction. wait_value:
  // holds the stream until *word, in pinned memory, has reached `value`, compared modulo 2^32.
  virtual Status copy(int device, DeviceStream stream, std::byte* dst, const std::byte* src,
                      uint64_t size) = 0;
  virtual Status wait_value(int device, DeviceStream stream, uint32_t* word, uint32_t value) = 0;
  // Loads the kernels on the device, so that no launch has to. CUDA's lazy loading may wait for the device,
  // and so for a stream that waits for Weft. Called before a stream of the program is held. May take long.
  virtual Status load_kernels(int device) = 0;
  // Enqueue kernels (lib/kernels/cuda) on the stream. Their results are bitwise equal to the host's.
  virtual Status copy_pieces(int device, DeviceStream stream, const CopyPiecesArgs& args) = 0;
  virtual Status accumulate_pieces(int device, DeviceStream stream, const CopyPiecesArgs& args) = 0;
  virtual Status fold(int device, DeviceStream stream, const FoldKernelArgs& args) = 0;
  virtual Status squares(int device, DeviceStream stream, const SquaresKernelArgs& args) = 0;
};

// The symbol that an accelerator module exports.
struct AcceleratorModule {
  uint32_t abi;
  // library: the library file to load; empty: the installed one.
  std::shared_ptr<Accelerator> (*make)(const std::string& library);
};
inline constexpr uint32_t kAcceleratorModuleAbi = 9;
inline constexpr const char* kAcceleratorModuleSymbol = "weft_accelerator_module";

// A call whose buffers are on a device, ordered by a stream of the program (device/stream_gate.h).
struct DeviceCall {
  uint8_t kind = 0;  // WEFT_DEVICE_*
  int device = 0;
  Accelerator* accelerator = nullptr;
  DeviceStream stream = nullptr;
  DeviceEvent ready = nullptr;  // recorded on the stream; once it has completed, the call may use the buffers
  void* ticket = nullptr;       // StreamGate's ticket
  bool direct = false;          // for prepare(): only operations that Collectives::takes will follow
};

}  // namespace weft
