// The fake's memory: allocation, attributes, copies.
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "state.h"
#include "support/sanitized.h"

using namespace fake;

namespace {

constexpr size_t kPage = 4096;

size_t pages(size_t size) {
  return (size + kPage - 1) / kPage * kPage;
}

cudaError_t allocate(Kind kind, void** pointer, size_t size, const char* call) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (const cudaError_t error = failure(call); error != cudaSuccess) return error;
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (size == 0) return cudaSuccess;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  // An inaccessible page follows every block.
  void* const base = mmap(nullptr, pages(size) + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return cudaErrorMemoryAllocation;
  if (kind != Kind::kDevice && mprotect(base, pages(size), PROT_READ | PROT_WRITE) != 0)
    return cudaErrorMemoryAllocation;
  Block block;
  block.kind = kind;
  block.device = current_device();
  block.base = static_cast<std::byte*>(base);
  block.size = size;
  if (kind == Kind::kDevice) {
    block.content = std::shared_ptr<std::byte[]>(new std::byte[size]);
    std::memset(block.content.get(), 0xcd, size);  // no code may rely on zeros
  }
  s.blocks[block.base] = std::move(block);
  *pointer = base;
  return cudaSuccess;
}

// Returns the offset of `base` in its page.
size_t into_page(const std::byte* base) {
  return reinterpret_cast<uintptr_t>(base) % kPage;
}

// Frees a block after waiting for the device, as CUDA does.
cudaError_t release(Kind kind, void* pointer, const char* call) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (pointer == nullptr) return cudaSuccess;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  Block* const block = find_block(pointer);
  const bool managed = block != nullptr && kind == Kind::kDevice && block->kind == Kind::kManaged;
  if (block == nullptr || block->base != pointer || (block->kind != kind && !managed)) {
    problem(std::string(call) + " of what is no " + name(kind));
    return kind == Kind::kRegistered ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue;
  }
  if (block->freed) {
    problem(std::string(call) + ": freed twice");
    return cudaErrorInvalidValue;
  }
  if (!drain(lock, kind == Kind::kDevice ? block->device : -1)) {
    problem(std::string(call) + " waits for streams that wait for the program");
    return cudaErrorLaunchTimeout;
  }
  if (kind == Kind::kRegistered) {
    unmap_again(*block);
    s.blocks.erase(block->base);
    return cudaSuccess;
  }
  block->freed = true;
  block->content.reset();
  if (kind == Kind::kPinned || managed) mprotect(block->base, pages(block->size), PROT_NONE);
  return cudaSuccess;
}

void copy_now(void* dst, const void* src, size_t size) {
  State& s = state();
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::shared_ptr<std::byte[]> keep_to, keep_from;
  int delay = 0;
  {
    const std::lock_guard lock(s.mutex);
    to = reach(dst, size, "a copy");
    from = reach(src, size, "a copy");
    if (to == nullptr || from == nullptr) return;
    keep_to = find_block(dst)->content;
    keep_from = find_block(src)->content;
    delay = s.delay_us;
  }
  const size_t half = size / 2;
  std::memcpy(to, from, half);
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay / 4));
  std::memcpy(to + half, from + half, size - half);
}

bool on_device(const void* pointer) {
  const Block* const block = find_block(pointer);
  return block != nullptr && block->kind == Kind::kDevice;
}

bool matches(cudaMemcpyKind kind, const void* dst, const void* src) {
  switch (kind) {
    case cudaMemcpyDefault:
      return true;
    case cudaMemcpyHostToDevice:
      return on_device(dst) && !on_device(src);
    case cudaMemcpyDeviceToHost:
      return !on_device(dst) && on_device(src);
    case cudaMemcpyDeviceToDevice:
      return on_device(dst) && on_device(src);
    default:
      return !on_device(dst) && !on_device(src);
  }
}

cudaError_t enter(void* pointer, size_t size) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (const cudaError_t error = failure("cudaHostRegister"); error != cudaSuccess) return error;
  if (pointer == nullptr || size == 0) return cudaErrorInvalidValue;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  auto* const base = static_cast<std::byte*>(pointer);
  if (find_block(base) != nullptr || find_block(base + size - 1) != nullptr)
    return cudaErrorHostMemoryAlreadyRegistered;
  s.blocks[base] =
      Block{Kind::kRegistered, current_device(), base, size, nullptr, false, map_again(base, size)};
  return cudaSuccess;
}

// From host memory to host memory it blocks until the copy has run, as CUDA does.
cudaError_t copy_later(void* dst, const void* src, size_t size, cudaMemcpyKind kind, cudaStream_t handle) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (const cudaError_t error = failure("cudaMemcpyAsync"); error != cudaSuccess) return error;
  const auto stream = find_stream(handle, "cudaMemcpyAsync");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (size == 0) return cudaSuccess;
  if (const cudaError_t error = implicit(handle, true); error != cudaSuccess) return error;
  if (stream->device != current_device()) problem("cudaMemcpyAsync while another device is current");
  if (!matches(kind, dst, src) || reach(dst, size, "cudaMemcpyAsync") == nullptr ||
      reach(src, size, "cudaMemcpyAsync") == nullptr) {
    return cudaErrorInvalidValue;
  }
  enqueue(stream, {{}, [dst, src, size] { copy_now(dst, src, size); }});
  if (stream->capture != nullptr || on_device(dst) || on_device(src)) return cudaSuccess;
  const uint64_t number = stream->enqueued;
  return s.changed.wait_for(lock, std::chrono::seconds(20), [&] { return stream->completed >= number; })
             ? cudaSuccess
             : cudaErrorLaunchTimeout;
}

// Copies synchronously; pageable memory is allowed.
cudaError_t copy_at_once(void* dst, const void* src, size_t size, cudaMemcpyKind kind) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  // An empty copy may have null pointers.
  if (size > 0 && !matches(kind, dst, src)) return cudaErrorInvalidValue;
  if (const cudaError_t error = implicit(nullptr, true); error != cudaSuccess) return error;
  const auto stream = find_stream(nullptr, "cudaMemcpy");
  enqueue(stream, {});
  const uint64_t number = stream->enqueued;
  if (!s.changed.wait_for(lock, std::chrono::seconds(20), [&] { return stream->completed >= number; }))
    return cudaErrorLaunchTimeout;
  if (size == 0) return cudaSuccess;
  const auto place = [&](const void* pointer) {
    return find_block(pointer) == nullptr ? static_cast<std::byte*>(const_cast<void*>(pointer))
                                          : reach(pointer, size, "cudaMemcpy");
  };
  std::byte* const to = place(dst);
  const std::byte* const from = place(src);
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  std::memcpy(to, from, size);
  return cudaSuccess;
}

}  // namespace

// Maps memory a second time at one address for devices and host: the thread sanitizer identifies memory by
// its address, so it must see the accesses of both there.
std::byte* fake::map_again(std::byte* base, size_t size) {
  if (weft::test::kThreadSanitizer) return nullptr;
  const size_t before = into_page(base);
  void* const again = mremap(base - before, 0, pages(before + size), MREMAP_MAYMOVE);
  return again == MAP_FAILED ? nullptr : static_cast<std::byte*>(again) + before;
}

void fake::unmap_again(const Block& block) {
  if (block.pages == nullptr) return;
  const size_t before = into_page(block.pages);
  munmap(block.pages - before, pages(before + block.size));
}

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t size) {
  return note(allocate(Kind::kDevice, pointer, size, "cudaMalloc"));
}
CUresult cuMemAlloc(CUdeviceptr* pointer, size_t size) {
  void* made = nullptr;
  const cudaError_t error = allocate(Kind::kDevice, &made, size, "cudaMalloc");
  *pointer = reinterpret_cast<CUdeviceptr>(made);
  return driver(error);
}
cudaError_t cudaMallocManaged(void** pointer, size_t size, unsigned int /*flags*/) {
  return note(allocate(Kind::kManaged, pointer, size, "cudaMallocManaged"));
}
cudaError_t cudaFree(void* pointer) {
  return note(release(Kind::kDevice, pointer, "cudaFree"));
}
CUresult cuMemFree(CUdeviceptr pointer) {
  return driver(release(Kind::kDevice, reinterpret_cast<void*>(pointer), "cudaFree"));
}
cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned int /*flags*/) {
  return note(allocate(Kind::kPinned, pointer, size, "cudaHostAlloc"));
}
CUresult cuMemHostAlloc(void** pointer, size_t size, unsigned int /*flags*/) {
  return driver(allocate(Kind::kPinned, pointer, size, "cudaHostAlloc"));
}
cudaError_t cudaFreeHost(void* pointer) {
  return note(release(Kind::kPinned, pointer, "cudaFreeHost"));
}
CUresult cuMemFreeHost(void* pointer) {
  return driver(release(Kind::kPinned, pointer, "cudaFreeHost"));
}
cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned int /*flags*/) {
  return note(enter(pointer, size));
}
CUresult cuMemHostRegister(void* pointer, size_t size, unsigned int /*flags*/) {
  return driver(enter(pointer, size));
}
cudaError_t cudaHostUnregister(void* pointer) {
  return note(release(Kind::kRegistered, pointer, "cudaHostUnregister"));
}
CUresult cuMemHostUnregister(void* pointer) {
  return driver(release(Kind::kRegistered, pointer, "cudaHostUnregister"));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -1;
  const Block* const block = find_block(pointer);
  if (block == nullptr || block->freed) return cudaSuccess;
  attributes->type = block->kind == Kind::kDevice    ? cudaMemoryTypeDevice
                     : block->kind == Kind::kManaged ? cudaMemoryTypeManaged
                                                     : cudaMemoryTypeHost;
  attributes->device = block->device;
  attributes->devicePointer = const_cast<void*>(pointer);
  if (block->kind != Kind::kDevice) attributes->hostPointer = attributes->devicePointer;
  return cudaSuccess;
}

// Returns the attributes that Weft asks for; the thread's context does not matter.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* wanted, void** values,
                                CUdeviceptr pointer) {
  cudaPointerAttributes attributes;
  (void)cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(pointer));
  const bool known = attributes.type != cudaMemoryTypeUnregistered;
  for (unsigned int i = 0; i < count; i++) {
    if (wanted[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *static_cast<unsigned int*>(values[i]) = !known                                  ? 0
                                               : attributes.type == cudaMemoryTypeHost ? CU_MEMORYTYPE_HOST
                                                                                       : CU_MEMORYTYPE_DEVICE;
    } else if (wanted[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
      *static_cast<unsigned int*>(values[i]) = attributes.type == cudaMemoryTypeManaged ? 1 : 0;
    } else if (wanted[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      *static_cast<int*>(values[i]) = known ? attributes.device : -2;
    } else {
      problem("cuPointerGetAttributes of what the fake does not know");
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t size, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  return note(copy_later(dst, src, size, kind, handle));
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream handle) {
  return driver(copy_later(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), size,
                           cudaMemcpyDefault, handle));
}

// Copies synchronously; only tests call it.
cudaError_t cudaMemcpy(void* dst, const void* src, size_t size, cudaMemcpyKind kind) {
  return note(copy_at_once(dst, src, size, kind));
}

}  // extern "C"
