// The fake's kernels. They are the kernel bodies that nvcc compiles for a GPU; a stream's thread runs them
// block by block. Addresses are translated first: if a kernel may not access one, the fake records a problem
// and the kernel does nothing.
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/orthonormal.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/select.h"
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

// Translates the addresses of QuantizeArgs and DequantizeArgs.
template <class Args>
bool place_codes(Args& args) {
  const std::lock_guard lock(state().mutex);
  const bool bits = args.code == weft::BlockCode::kSign;
  return place(args.values, args.count) && place(args.scales, (args.count + args.block - 1) / args.block) &&
         place(args.codes, bits ? (args.count + 7) / 8 : args.count);
}

void quantize(uint32_t blocks, uint32_t threads, weft::QuantizeArgs args) {
  if (!place_codes(args)) return;
  run_blocks<weft::cuda::QuantizeShared>(blocks, threads, [&](const weft::cuda::Block& block, auto& shared) {
    weft::cuda::quantize(block, shared, args);
  });
}

void dequantize(uint32_t blocks, uint32_t threads, weft::DequantizeArgs args) {
  if (!place_codes(args)) return;
  run_blocks<char>(blocks, threads,
                   [&](const weft::cuda::Block& block, char&) { weft::cuda::dequantize(block, args); });
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

bool place_matrices(weft::LowRankArgs& args) {
  const std::lock_guard lock(state().mutex);
  uint64_t last = 0;
  if (args.offsets != nullptr) {
    if (!place(args.offsets, args.batch)) return false;
    last = *std::max_element(args.offsets, args.offsets + args.batch);
  }
  return place(args.matrix, last + args.rows * args.columns) &&
         place(args.left, args.batch * args.rows * args.rank) &&
         place(args.right, args.batch * args.columns * args.rank) &&
         (args.residual == nullptr || place(args.residual, args.batch * args.rows * args.columns));
}

void low_rank(uint32_t blocks, uint32_t threads, weft::LowRankArgs args) {
  if (!place_matrices(args)) return;
  run_blocks<weft::cuda::LeftShared>(blocks, threads, [&](const weft::cuda::Block& block, auto& shared) {
    weft::cuda::low_rank(block, shared, args);
  });
}

void orthonormalize(uint32_t blocks, uint32_t threads, weft::OrthonormalArgs args) {
  {
    const std::lock_guard lock(state().mutex);
    if (!place(args.columns, args.batch * args.rows * args.rank)) return;
  }
  run_blocks<weft::cuda::OrthonormalShared>(
      blocks, threads,
      [&](const weft::cuda::Block& block, auto& shared) { weft::cuda::orthonormalize(block, shared, args); });
}

void select(uint32_t blocks, uint32_t threads, weft::SelectLaunch launch) {
  weft::SelectArgs& args = launch.args;
  {
    const std::lock_guard lock(state().mutex);
    if (!place(args.values, args.count) || !place(args.selected, args.room) ||
        !place(args.scratch, weft::select_scratch(args.count))) {
      return;
    }
  }
  run_blocks<weft::cuda::SelectShared>(blocks, threads, [&](const weft::cuda::Block& block, auto& shared) {
    weft::cuda::select(block, shared, args, launch.pass);
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
    {"weft_quantize", prepare<weft::QuantizeArgs, quantize>},
    {"weft_dequantize", prepare<weft::DequantizeArgs, dequantize>},
    {"weft_squares", prepare<weft::SquaresKernelArgs, squares>},
    {"weft_squares_total", prepare<weft::SquaresKernelArgs, squares_total>},
    {"weft_low_rank", prepare<weft::LowRankArgs, low_rank>},
    {"weft_orthonormalize", prepare<weft::OrthonormalArgs, orthonormalize>},
    {"weft_select", prepare<weft::SelectLaunch, select>},
};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& known : kKernels) {
    if (std::strcmp(known.name, name) == 0) return &known;
  }
  return nullptr;
}

}  // namespace fake
