// What Weft needs of a device's own library: borrowed streams, events, asynchronous copies, memory that
// copies reach. Implemented by a module (backends/cuda); used by the C layer and by lib/coll/staged. Nothing
// here waits for a device: the engine asks query() again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "core/device_kernels.h"

namespace weft {

inline constexpr uint8_t kCudaDevices = 1;  // WEFT_DEVICE_CUDA

// A stream and an event of the device's library (cudaStream_t, cudaEvent_t).
using DeviceStream = void*;
using DeviceEvent = void*;

enum class MemoryPlace : uint8_t {
  kUnknown,  // the library does not know it: the program's own host memory, or freed
  kPinned,   // host memory that the library allocated or registered
  kDevice,
  kManaged,  // moves between host and devices
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
  // Load the library, the first time. kUnavailable with "because ..."; *detail says what it is. The other
  // calls come after this has succeeded.
  virtual Status probe(std::string* detail) = 0;
  // look_at tells where memory lies: probe has succeeded, or notice_use was true.
  virtual bool sees_memory() const = 0;
  // Whether the program itself uses the library: memory may be a device's although probe was not called.
  // Loads nothing and allocates nothing, looks through what the process has loaded (0.2 us) until it is true.
  virtual bool notice_use() = 0;
  virtual int device_count() const = 0;

  // The calling thread's. Work of other libraries runs with the device as the thread's, and with captures of
  // other threads not in its way.
  virtual Status current_device(int* device) = 0;
  virtual Status within(int device, const std::function<Status()>& work) = 0;

  virtual Status look_at(const void* pointer, PointerInfo* info) = 0;
  // kArg if it is a stream of another device, where the library can tell; kUnsupported for one that is being
  // captured into a graph; kState for the legacy default stream while the capture of another stream keeps
  // everybody from it. record then returns kState as well.
  virtual Status check_stream(int device, DeviceStream stream) = 0;
  // The other way round: kState for one that is not being captured into a graph.
  virtual Status check_captured(int device, DeviceStream stream) = 0;
  // The handle means another stream on each thread (CUDA's default stream of a thread).
  virtual bool own_of_thread(DeviceStream stream) const = 0;
  // The handle is the legacy default stream of the device.
  virtual bool is_legacy(DeviceStream stream) const = 0;

  // Streams that wait for no other (not for the legacy default stream either), of the highest priority: what
  // a stream of the program's waits for by wait_value, which the device's scheduler does not see, must not be
  // queued behind it, as it may be where both share one of the few queues that the device has for a priority.
  virtual Status create_stream(int device, DeviceStream* stream) = 0;
  virtual void destroy_stream(int device, DeviceStream stream) = 0;
  virtual Status create_event(int device, DeviceEvent* event) = 0;
  virtual void destroy_event(int device, DeviceEvent event) = 0;
  virtual Status record(int device, DeviceEvent event, DeviceStream stream) = 0;
  // What is put on the stream from now on waits for the work before the event's last record.
  virtual Status wait_event(int device, DeviceStream stream, DeviceEvent event) = 0;
  // Whether the work before the event's last record is done. Errors: what failed on the device.
  virtual Status query(int device, DeviceEvent event, bool* done) = 0;

  // Memory of the device, with any content. Freeing may wait for the device.
  virtual Status allocate(int device, uint64_t size, std::byte** memory) = 0;
  virtual void free(int device, std::byte* memory) = 0;
  // Host memory that all devices reach; made by way of this one. pin: memory of Weft's own, until unpin.
  virtual Status allocate_pinned(int device, uint64_t size, std::byte** memory) = 0;
  virtual void free_pinned(std::byte* memory) = 0;
  virtual Status pin(int device, std::byte* memory, uint64_t size) = 0;
  virtual void unpin(std::byte* memory) = 0;

  // On the stream: copy between pinned and device memory in either direction; go on once *word, of pinned
  // memory, is `value` or later (as numbers on a circle).
  virtual Status copy(int device, DeviceStream stream, std::byte* dst, const std::byte* src,
                      uint64_t size) = 0;
  virtual Status wait_value(int device, DeviceStream stream, uint32_t* word, uint32_t value) = 0;
  // Load the kernels there, so that no launch does: that may wait for the device, and so for a stream that
  // waits for us (CUDA's lazy loading). Before any stream of the program's is held. May take long.
  virtual Status load_kernels(int device) = 0;
  // On the stream: kernels (lib/kernels/cuda), equal bit by bit to the host's.
  virtual Status copy_pieces(int device, DeviceStream stream, const CopyPiecesArgs& args) = 0;
  virtual Status accumulate_pieces(int device, DeviceStream stream, const CopyPiecesArgs& args) = 0;
  virtual Status fold(int device, DeviceStream stream, const FoldKernelArgs& args) = 0;
  virtual Status quantize(int device, DeviceStream stream, const QuantizeArgs& args) = 0;
  virtual Status dequantize(int device, DeviceStream stream, const DequantizeArgs& args) = 0;
  virtual Status squares(int device, DeviceStream stream, const SquaresKernelArgs& args) = 0;
  virtual Status low_rank(int device, DeviceStream stream, const LowRankArgs& args) = 0;
  // As low_rank, by the library that the device's maker has for it, where that is installed: quicker, with
  // sums in an order of its own. The first one on a device takes long.
  virtual Status low_rank_fast(int device, DeviceStream stream, const LowRankArgs& args) = 0;
  virtual Status orthonormalize(int device, DeviceStream stream, const OrthonormalArgs& args) = 0;
  virtual Status select(int device, DeviceStream stream, const SelectArgs& args) = 0;
};

// What a device's module exports, under this name.
struct AcceleratorModule {
  uint32_t abi;
  // library: the file to load in place of the installed ones; empty: those.
  std::shared_ptr<Accelerator> (*make)(const std::string& library);
};
inline constexpr uint32_t kAcceleratorModuleAbi = 7;
inline constexpr const char* kAcceleratorModuleSymbol = "weft_accelerator_module";

// A call whose buffers lie on a device, in the order of a stream of the program's (core/stream_gate.h).
struct DeviceCall {
  uint8_t kind = 0;  // WEFT_DEVICE_*
  int device = 0;
  Accelerator* accelerator = nullptr;
  DeviceStream stream = nullptr;
  DeviceEvent ready = nullptr;  // done when the buffers are the call's
  void* ticket = nullptr;       // of the gate
  bool direct = false;          // of prepare: for what Collectives::takes alone
};

}  // namespace weft
