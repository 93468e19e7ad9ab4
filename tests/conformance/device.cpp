#include "device.h"

#include "comm/context.h"
#include "registry.h"

#ifdef WEFT_TEST_CUDA
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>

#include "support/fake_cuda/fake_cuda.h"
#endif
#ifdef WEFT_TEST_NCCL
#include "support/fake_nccl/fake_nccl.h"
#endif

namespace weft::test {

#ifdef WEFT_TEST_CUDA
namespace {

template <class Function>
std::string file_of(Function* function) {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(function), &info);
  return info.dli_fname;
}

}  // namespace

std::shared_ptr<Accelerator> fake_devices(std::string* why) {
  static Status status;
  static const auto made = [&] {
    std::string detail;
    fake_cuda_setup(8, 1, 0);
    auto accelerator = Registry::load_accelerator(WEFT_BUILD_MODULES, file_of(&fake_cuda_setup), &status);
    if (accelerator != nullptr) status = accelerator->probe(&detail);
    return status.ok() ? accelerator : nullptr;
  }();
  *why = status.text();
  return made;
}

void use_device(int device) {
  cudaSetDevice(device);
}

DeviceOperation::DeviceOperation(Rank& self, const CollectiveArgs& host,
                                 const std::array<HostBuffer, 2>& buffers)
    : self_(self), host_(buffers), args_(host) {
  for (size_t i = 0; i < host_.size(); i++) {
    const HostBuffer& buffer = host_[i];
    if (buffer.size == 0) continue;
    cudaMalloc(&memory_[i], buffer.size);
    cudaMemcpy(memory_[i], buffer.memory, buffer.size, cudaMemcpyHostToDevice);
    const auto inside = [&](const std::byte* at) {
      return at != nullptr && at >= buffer.memory && at < buffer.memory + buffer.size;
    };
    auto* const base = static_cast<std::byte*>(memory_[i]);
    if (inside(host.src)) args_.src = base + (host.src - buffer.memory);
    if (inside(host.dst)) args_.dst = base + (host.dst - buffer.memory);
  }
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  call_ = {kCudaDevices, self.rank, self.comm->context().accelerator(), stream};
  args_.device = &call_;
}

DeviceOperation::~DeviceOperation() {
  self_.comm->context().gate().leave(&call_);
  for (void* memory : memory_) {
    if (memory != nullptr) cudaFree(memory);
  }
  cudaStreamDestroy(static_cast<cudaStream_t>(call_.stream));
}

Status DeviceOperation::prepare(Lane& lane) {
  WEFT_TRY(lane.prepare(call_));
  return self_.comm->context().gate().enter(call_.device, call_.stream, &call_);
}

void DeviceOperation::fetch() {
  for (size_t i = 0; i < host_.size(); i++) {
    if (memory_[i] != nullptr) cudaMemcpy(host_[i].memory, memory_[i], host_[i].size, cudaMemcpyDeviceToHost);
  }
}

#else

std::shared_ptr<Accelerator> fake_devices(std::string* why) {
  *why = "the cuda module is not part of this build";
  return nullptr;
}
void use_device(int /*device*/) {}
DeviceOperation::DeviceOperation(Rank& self, const CollectiveArgs& host,
                                 const std::array<HostBuffer, 2>& buffers)
    : self_(self), host_(buffers), args_(host) {}
DeviceOperation::~DeviceOperation() = default;
Status DeviceOperation::prepare(Lane& /*lane*/) {
  return Status::error(Code::kUnavailable, "there are no devices");
}
void DeviceOperation::fetch() {}

#endif

#ifdef WEFT_TEST_NCCL
void use_fake_nccl() {
  setenv("WEFT_NCCL_LIBRARY", file_of(&fake_nccl_setup).c_str(), 1);
}
std::string device_problems() {
  std::string problems = fake_nccl_problems();
  problems += fake_nccl_live();
  problems += fake_cuda_problems();
  return problems;
}
#elif defined(WEFT_TEST_CUDA)
void use_fake_nccl() {}
std::string device_problems() {
  return fake_cuda_problems();
}
#else
void use_fake_nccl() {}
std::string device_problems() {
  return {};
}
#endif

Status run_on_device(Rank& self, const CollectiveArgs& args, const std::array<HostBuffer, 2>& buffers,
                     const std::function<void(CollectiveArgs*)>& complete) {
  DeviceOperation operation(self, args, buffers);
  if (complete) complete(&operation.args());
  std::shared_ptr<Lane> lane;
  WEFT_TRY(self.comm->lane_for(operation.args(), &lane));
  WEFT_TRY(operation.prepare(*lane));
  Status status = self.run(operation.args());
  operation.fetch();
  return status;
}

Status run_there(const BackendRow& row, Rank& self, const CollectiveArgs& args,
                 const std::array<HostBuffer, 2>& buffers) {
  return row.devices ? run_on_device(self, args, buffers) : self.run(args);
}

bool skips_on_device(const BackendRow& row, size_t at) {
  size_t sum = 0;  // of the name's letters, so that each row has another one
  for (const char* letter = row.name; *letter != 0; letter++) sum += static_cast<unsigned char>(*letter);
  return row.devices && (at + sum) % (row.run == run_launched ? 20 : 5) != 0;
}

std::string text_there(const BackendRow& row, CollectiveArgs args) {
  DeviceCall call;
  call.kind = kCudaDevices;
  args.device = row.devices ? &call : nullptr;
  return Descriptor::of(args).text();
}

}  // namespace weft::test
