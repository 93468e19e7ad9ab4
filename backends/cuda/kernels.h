// The kernels of lib/kernels/cuda on CUDA devices. Their fat binary is part of this module; the first launch
// passes it to the driver. Threads: any thread.
#pragma once

#include <array>
#include <mutex>
#include <set>

#include "device/accelerator.h"
#include "device/device_kernels.h"
#include "library.h"

namespace weft::cuda {

class Kernels {
 public:
  // library is loaded and outlives this object.
  explicit Kernels(const Library& library) : library_(library) {}
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // Loads the kernels on `device`, which is the current device. May wait for work in flight there.
  Status load_on(int device);
  // Enqueue a kernel on the stream, whose device is the current device. They check the arguments; the caller
  // is responsible for addresses.
  Status copy_pieces(DeviceStream stream, const CopyPiecesArgs& args);
  Status accumulate_pieces(DeviceStream stream, const CopyPiecesArgs& args);
  Status fold(DeviceStream stream, const FoldKernelArgs& args);
  Status squares(DeviceStream stream, const SquaresKernelArgs& args);

 private:
  enum Name { kCopyPieces, kAccumulatePieces, kFold, kSquares, kSquaresTotal, kCount };
  Status load();
  Status load_locked();
  template <class Args>
  Status launch(Name kernel, DeviceStream stream, uint64_t blocks, Args args);
  Status check(const char* what, CUresult result) const;

  const Library& library_;
  std::mutex mutex_;     // held while the kernels are passed to the driver
  bool loaded_ = false;  // guarded by mutex_, like all members below
  CUlibrary code_ = nullptr;
  std::array<CUkernel, kCount> kernels_{};
  std::set<int> devices_;  // devices on which the kernels are loaded
};

}  // namespace weft::cuda
