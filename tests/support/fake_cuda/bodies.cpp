// The fake's kernels. They are the kernel bodies that nvcc compiles for a GPU; a stream's thread runs them
// block by block. Addresses are translated first: if a kernel may not access one, the fake records a problem
// and the kernel does nothing.
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/squares.h"
#include "state.h"

namespace fake {
namespace {

// Runs the threads one after the other, which is correct for kernels whose threads share no memory.
template <class Body>
void run_grid(uint32_t blocks, uint32_t threads, Body&& body) {
  for (uint32_t block = 0; block < blocks; block++) {
    for (uint32_t thread = 0; thread < threads; thread++) body(weft::cuda::Place{block, thread, threads});
  }
}

// Runs the threads phase by phase, for kernels with shared memory. The shared memory is filled with garbage
// when a block begins.
template <class Shared, class Body>
void run_blocks(uint32_t blocks, uint32_t threads, Body&& body) {
  Shared shared;
  for (uint32_t block = 0; block < blocks; block++) {
    std::memset(&shared, 0xAB, sizeof shared);
    body(weft::cuda::Block{block, threads}, shared);
  }
}

size_t element_size(uint8_t dtype) {
  constexpr size_t kSizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
  return kSizes[dtype];
}

// Replaces the pointer by the host address of its elements. The caller holds the lock.
template <class T>
bool place(T*& pointer, size_t count) {
  if (count == 0) return true;
  pointer = reinterpret_cast<T*>(reach(pointer, count * sizeof(T), "a kernel"));
  return pointer != nullptr;
}

bool place_pieces(uint32_t blocks, const weft::CopyPiecesArgs& args, std::vector<weft::CopyPiece>* pieces) {
  const std::lock_guard lock(state().mutex);
  const weft::CopyPiece* table = args.pieces;
  if (blocks != args.piece_count || !place(table, blocks)) return false;
  pieces->assign(table, table + blocks);
  for (weft::CopyPiece& piece : *pieces) {
    if (!place(piece.src, piece.count * element_size(args.src_dtype)) ||
        !place(piece.dst, piece.count * element_size(args.dst_dtype))) {
      return false;
    }
  }
  return true;
}

void copy_pieces(uint32_t blocks, uint32_t threads, weft::CopyPiecesArgs args) {
  std::vector<weft::CopyPiece> pieces;
  if (!place_pieces(blocks, args, &pieces)) return;
  args.pieces = pieces.data();
  run_grid(blocks, threads, [&](const weft::cuda::Place& at) { weft::cuda::copy_pieces(at, args); });
}

void accumulate_pieces(uint32_t blocks, uint32_t threads, weft::CopyPiecesArgs args) {
  std::vector<weft::CopyPiece> pieces;
  if (!place_pieces(blocks, args, &pieces)) return;
  args.pieces = pieces.data();
  run_grid(blocks, threads, [&](const weft::cuda::Place& at) { weft::cuda::accumulate_pieces(at, args); });
}

void fold(uint32_t blocks, uint32_t threads, weft::FoldKernelArgs args) {
  {
    const std::lock_guard lock(state().mutex);
    const size_t size = args.count * element_size(args.dtype);
    for (int i = 0; i < args.input_count; i++) {
      if (!place(args.inputs[i], size)) return;
    }
    for (int i = 0; i < args.output_count; i++) {
      if (!place(args.outputs[i], size)) return;
    }
  }
  run_grid(blocks, threads, [&](const weft::cuda::Place& at) { weft::cuda::fold(at, args); });
}

bool place_squares(weft::SquaresKernelArgs& args) {
  const std::lock_guard lock(state().mutex);
  return place(args.src, args.count * element_size(args.dtype)) &&
         place(args.parts, (args.count + weft::kSquaresRange - 1) / weft::kSquaresRange) &&
         place(args.result, 1);
}

void squares(uint32_t blocks, uint32_t threads, weft::SquaresKernelArgs args) {
  if (!place_squares(args)) return;
  run_blocks<weft::cuda::SquaresShared>(blocks, threads, [&](const weft::cuda::Block& block, auto& shared) {
    weft::cuda::squares(block, shared, args);
  });
}

void squares_total(uint32_t blocks, uint32_t threads, weft::SquaresKernelArgs args) {
  if (!place_squares(args)) return;
  run_blocks<weft::cuda::SquaresShared>(blocks, threads, [&](const weft::cuda::Block& block, auto& shared) {
    weft::cuda::squares_total(block, shared, args);
  });
}

template <class Args, void (*kRun)(uint32_t, uint32_t, Args)>
std::function<void()> prepare(uint32_t blocks, uint32_t threads, const void* given) {
  Args args;
  std::memcpy(static_cast<void*>(&args), given, sizeof args);  // copies the arguments at launch, as CUDA does
  return [=] { kRun(blocks, threads, args); };
}

constexpr Kernel kKernels[] = {
    {"weft_copy_pieces", prepare<weft::CopyPiecesArgs, copy_pieces>},
    {"weft_accumulate_pieces", prepare<weft::CopyPiecesArgs, accumulate_pieces>},
    {"weft_fold", prepare<weft::FoldKernelArgs, fold>},
    {"weft_squares", prepare<weft::SquaresKernelArgs, squares>},
    {"weft_squares_total", prepare<weft::SquaresKernelArgs, squares_total>},
};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& known : kKernels) {
    if (std::strcmp(known.name, name) == 0) return &known;
  }
  return nullptr;
}

}  // namespace fake
