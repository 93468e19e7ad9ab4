// Linked into every program of this folder. Without a GPU it reports that and exits with the code for
// "skipped".
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace {

[[maybe_unused]] const bool kLooked = [] {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return true;
  std::printf("SKIPPED: no CUDA device here: %s\n", cudaGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(77);
}();

}  // namespace
