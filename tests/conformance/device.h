// The suite's cases on device memory, for rows of backends.cpp that want it: on the fake CUDA and the fake
// NCCL, which are in the program where their modules are.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends.h"
#include "core/accelerator.h"
#include "core/lane.h"
#include "support/ranks.h"

namespace weft::test {

// Fake devices, made the first time; null and why not where this build has none.
std::shared_ptr<Accelerator> fake_devices(std::string* why);
// The calling thread works on the device of this number.
void use_device(int device);
// NCCL is the fake from here on.
void use_fake_nccl();
// What was done wrong on the fakes since it was last asked, or is left; "" if nothing.
std::string device_problems();

struct HostBuffer {
  std::byte* memory = nullptr;
  size_t size = 0;
};

// An operation whose buffers are in device memory, which is given what those of the host hold, and gives back
// what it holds then. It is over before this goes.
class DeviceOperation {
 public:
  DeviceOperation(Rank& self, const CollectiveArgs& host, const std::array<HostBuffer, 2>& buffers);
  ~DeviceOperation();
  DeviceOperation(const DeviceOperation&) = delete;
  DeviceOperation& operator=(const DeviceOperation&) = delete;

  // Before it is submitted to the lane.
  Status prepare(Lane& lane);
  CollectiveArgs& args() { return args_; }
  // After it is over.
  void fetch();

 private:
  Rank& self_;
  const std::array<HostBuffer, 2> host_;
  std::array<void*, 2> memory_{};
  CollectiveArgs args_;
  DeviceCall call_;
};

// Run it on device memory. complete: adds what needs the device's addresses.
Status run_on_device(Rank& self, const CollectiveArgs& args, const std::array<HostBuffer, 2>& buffers,
                     const std::function<void(CollectiveArgs*)>& complete = {});

// Run it where the row's buffers lie.
Status run_there(const BackendRow& row, Rank& self, const CollectiveArgs& args,
                 const std::array<HostBuffer, 2>& buffers = {});
// Rows of devices run one case in five, because a fake device hands every copy to a thread; other ones in
// each row, so that the rows together run all. The 0th, 1st, ... of a test's cases.
bool skips_on_device(const BackendRow& row, size_t at);
// How errors describe it then.
std::string text_there(const BackendRow& row, CollectiveArgs args);

template <class T>
HostBuffer whole(std::vector<T>& data) {
  return {reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(T)};
}

}  // namespace weft::test
