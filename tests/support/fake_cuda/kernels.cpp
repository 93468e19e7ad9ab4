// The fake's kernels: the bodies that nvcc compiles for a GPU, run by a stream's thread, block by block.
#include "kernels/cuda/copy.h"
#include "kernels/cuda/fold.h"

#include <cstring>

#include "state.h"

using namespace fake;

namespace {

// Thread by thread, which is right for kernels whose threads share nothing.
template <class Body>
void run_grid(uint32_t blocks, uint32_t threads, Body&& body) {
  for (uint32_t block = 0; block < blocks; block++) {
    for (uint32_t thread = 0; thread < threads; thread++) body(weft::cuda::Place{block, thread, threads});
  }
}

size_t element_size(uint8_t dtype) {
  constexpr size_t kSizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
  return kSizes[dtype];
}

template <class Pointer>
Pointer translate(Pointer pointer, size_t size) {
  return reinterpret_cast<Pointer>(reach(pointer, size, "a kernel"));
}

void copy_pieces(uint32_t blocks, uint32_t threads, weft::CopyPiecesArgs args) {
  std::vector<weft::CopyPiece> pieces(blocks);
  {
    const std::lock_guard lock(state().mutex);
    const auto* const table = reach(args.pieces, args.piece_count * sizeof(weft::CopyPiece), "a kernel");
    if (table == nullptr || blocks != args.piece_count) return;
    std::memcpy(pieces.data(), table, pieces.size() * sizeof(weft::CopyPiece));
    for (weft::CopyPiece& piece : pieces) {
      if (piece.count == 0) continue;
      piece.src = translate(piece.src, piece.count * element_size(args.src_dtype));
      piece.dst = translate(piece.dst, piece.count * element_size(args.dst_dtype));
      if (piece.src == nullptr || piece.dst == nullptr) return;
    }
  }
  args.pieces = pieces.data();
  run_grid(blocks, threads, [&](const weft::cuda::Place& place) { weft::cuda::copy_pieces(place, args); });
}

void fold(uint32_t blocks, uint32_t threads, weft::FoldKernelArgs args) {
  {
    const std::lock_guard lock(state().mutex);
    const size_t size = args.count * element_size(args.dtype);
    for (int i = 0; i < args.input_count; i++) {
      args.inputs[i] = translate(args.inputs[i], size);
      if (args.inputs[i] == nullptr) return;
    }
    for (int i = 0; i < args.output_count; i++) {
      args.outputs[i] = translate(args.outputs[i], size);
      if (args.outputs[i] == nullptr) return;
    }
  }
  run_grid(blocks, threads, [&](const weft::cuda::Place& place) { weft::cuda::fold(place, args); });
}

using Launch = std::function<void()> (*)(uint32_t blocks, uint32_t threads, const void* args);

template <class Args, void (*kRun)(uint32_t, uint32_t, Args)>
std::function<void()> prepare(uint32_t blocks, uint32_t threads, const void* given) {
  Args args;
  std::memcpy(&args, given, sizeof args);  // now, as a launch does
  return [=] { kRun(blocks, threads, args); };
}

struct Kernel {
  const char* name;
  Launch prepare;
};
constexpr Kernel kKernels[] = {{"weft_copy_pieces", prepare<weft::CopyPiecesArgs, copy_pieces>},
                               {"weft_fold", prepare<weft::FoldKernelArgs, fold>}};

}  // namespace

extern "C" {

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* /*options*/, void** /*values*/,
                           unsigned int /*count*/, CUlibraryOption* /*library_options*/,
                           void** /*library_values*/, unsigned int /*library_count*/) {
  constexpr uint32_t kFatBinary = 0xBA55ED50;
  uint32_t magic = 0;
  std::memcpy(&magic, code, sizeof magic);
  if (magic != kFatBinary) return CUDA_ERROR_INVALID_IMAGE;
  *library = reinterpret_cast<CUlibrary>(const_cast<void*>(code));
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary /*library*/) {
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary /*library*/, const char* name) {
  for (const Kernel& known : kKernels) {
    if (std::strcmp(known.name, name) != 0) continue;
    *kernel = reinterpret_cast<CUkernel>(const_cast<Kernel*>(&known));
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream handle, void** parameters, void** /*extra*/) {
  const std::lock_guard lock(state().mutex);
  const auto stream = find_stream(handle, "cuLaunchKernel");
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->device != current_device()) problem("cuLaunchKernel while another device is current");
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x * block_y * block_z > 1024 ||
      shared_bytes > 48 * 1024) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto* const kernel = reinterpret_cast<const Kernel*>(function);
  enqueue(stream, {{}, kernel->prepare(grid_x, block_x, parameters[0])});
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult /*error*/, const char** text) {
  *text = "an error of the fake CUDA driver";
  return CUDA_SUCCESS;
}

}  // extern "C"
