// Runs the suite's cases on device memory, for rows of backends.cpp that ask for it, on the fake CUDA and the
// fake NCCL. The fakes are linked into the program if the build has their modules.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends.h"
#include "comm/lane.h"
#include "device/accelerator.h"
#include "support/ranks.h"

namespace weft::test {

// Returns the fake devices, which the first call creates. Null, and the reason, if this build has none.
std::shared_ptr<Accelerator> fake_devices(std::string* why);
// Makes the device of this number the calling thread's current one.
void use_device(int device);
// Makes Weft load the fake NCCL from here on.
void use_fake_nccl();
// Returns the misuses of the fakes since the last call, and objects that were not freed; "" if there are
// none.
std::string device_problems();

struct HostBuffer {
  std::byte* memory = nullptr;
  size_t size = 0;
};

// An operation on device memory. It copies the host buffers' contents to the device before, and back
// afterwards. The operation must be complete before this object is destroyed.
class DeviceOperation {
 public:
  DeviceOperation(Rank& self, const CollectiveArgs& host, const std::array<HostBuffer, 2>& buffers);
  ~DeviceOperation();
  DeviceOperation(const DeviceOperation&) = delete;
  DeviceOperation& operator=(const DeviceOperation&) = delete;

  // Called before the operation is submitted to the lane.
  Status prepare(Lane& lane);
  CollectiveArgs& args() { return args_; }
  // Called after the operation is complete.
  void fetch();

 private:
  Rank& self_;
  const std::array<HostBuffer, 2> host_;
  std::array<void*, 2> memory_{};
  CollectiveArgs args_;
  DeviceCall call_;
};

// Runs the case on device memory. complete: adds what needs the device addresses.
Status run_on_device(Rank& self, const CollectiveArgs& args, const std::array<HostBuffer, 2>& buffers,
                     const std::function<void(CollectiveArgs*)>& complete = {});

// Runs the case on the memory that the row asks for.
Status run_there(const BackendRow& row, Rank& self, const CollectiveArgs& args,
                 const std::array<HostBuffer, 2>& buffers = {});
// Skips four in five cases on device rows, because a fake device hands every copy to a thread. Each row skips
// other cases, so that together the rows run all. at: the index of the case in its test.
bool skips_on_device(const BackendRow& row, size_t at);
// Returns the text by which errors describe the operation there.
std::string text_there(const BackendRow& row, CollectiveArgs args);

template <class T>
HostBuffer whole(std::vector<T>& data) {
  return {reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(T)};
}

}  // namespace weft::test
