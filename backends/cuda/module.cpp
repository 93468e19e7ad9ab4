// The export of libweft-cuda.so. Loading the module loads nothing of CUDA.
#include <memory>

#include "base/unwinding.h"
#include "runtime.h"

namespace {

std::shared_ptr<weft::Accelerator> make(const std::string& library) {
  weft::prepare_unwinding();
  return std::make_shared<weft::cuda::Runtime>(library);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const weft::AcceleratorModule weft_accelerator_module;
const weft::AcceleratorModule weft_accelerator_module = {weft::kAcceleratorModuleAbi, make};
