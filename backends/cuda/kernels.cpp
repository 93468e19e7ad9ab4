#include "kernels.h"

#include <limits>

#include "base/dtype.h"
#include "base/text.h"

// The fat binary that nvcc made of lib/kernels/cuda.
extern "C" const unsigned char weft_cuda_kernels[];

namespace weft::cuda {
namespace {

uint64_t shares(uint64_t count, uint64_t share) {
  return (count + share - 1) / share;
}

}  // namespace

Kernels::~Kernels() {
  if (code_ != nullptr) (void)library_.call.cuLibraryUnload(code_);
}

Status Kernels::check(const char* what, CUresult result) const {
  return cuda::check(library_, what, result);
}

Status Kernels::load() {
  const std::lock_guard lock(mutex_);
  return load_locked();
}

// Loads the kernels on a device. The driver loads a kernel when its function is first requested there, or
// launched. The lock is not held meanwhile, so that a launch on another device does not wait.
Status Kernels::load_on(int device) {
  std::array<CUkernel, kCount> kernels{};
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY(load_locked());
    if (devices_.contains(device)) return {};
    kernels = kernels_;
  }
  for (CUkernel kernel : kernels) {
    CUfunction function = nullptr;
    WEFT_TRY(check("cuKernelGetFunction", library_.call.cuKernelGetFunction(&function, kernel)));
    if (library_.call.function_load != nullptr)
      WEFT_TRY(check("cuFuncLoad", library_.call.function_load(function)));
  }
  const std::lock_guard lock(mutex_);
  devices_.insert(device);
  return {};
}

Status Kernels::load_locked() {
  constexpr const char* kNames[kCount] = {"weft_copy_pieces", "weft_accumulate_pieces", "weft_fold",
                                          "weft_squares", "weft_squares_total"};
  if (loaded_) return {};
  const Functions& call = library_.call;
  if (code_ == nullptr) {
    WEFT_TRY(check("cuLibraryLoadData", call.cuLibraryLoadData(&code_, weft_cuda_kernels, nullptr, nullptr, 0,
                                                               nullptr, nullptr, 0)));
  }
  for (size_t i = 0; i < kCount; i++)
    WEFT_TRY(check("cuLibraryGetKernel", call.cuLibraryGetKernel(&kernels_[i], code_, kNames[i]))
                 .with_prefix(cat("kernel ", kNames[i], ": ")));
  loaded_ = true;
  return {};
}

template <class Args>
Status Kernels::launch(Name kernel, DeviceStream stream, uint64_t blocks, Args args) {
  if (blocks == 0) return {};
  if (blocks > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
    return Status::error(Code::kArg, cat("a CUDA kernel needs ", blocks, " thread blocks, allowed: up to ",
                                         std::numeric_limits<int32_t>::max(), "; pass fewer values"));
  WEFT_TRY(load());
  void* parameters[] = {&args};
  // Since CUDA 12 a CUkernel may be passed as a CUfunction.
  return check("cuLaunchKernel",
               library_.call.cuLaunchKernel(reinterpret_cast<CUfunction>(kernels_[kernel]),
                                            static_cast<unsigned>(blocks), 1, 1, kKernelThreads, 1, 1, 0,
                                            static_cast<CUstream>(stream), parameters, nullptr));
}

Status Kernels::copy_pieces(DeviceStream stream, const CopyPiecesArgs& args) {
  const auto src = static_cast<Dtype>(args.src_dtype);
  const auto dst = static_cast<Dtype>(args.dst_dtype);
  if (!valid(src) || !valid(dst) || (src != dst && !(is_float(src) && is_float(dst))))
    return Status::error(Code::kArg,
                         cat("cannot copy ", name(src), " values to ", name(dst),
                             " on a CUDA device: the dtypes must be equal, or both floating-point"));
  return launch(kCopyPieces, stream, args.piece_count, args);
}

Status Kernels::accumulate_pieces(DeviceStream stream, const CopyPiecesArgs& args) {
  const auto src = static_cast<Dtype>(args.src_dtype);
  const auto dst = static_cast<Dtype>(args.dst_dtype);
  const auto narrow = [](Dtype dtype) { return is_float(dtype) && dtype != Dtype::kF64; };
  if (!valid(src) || !valid(dst) || (src != dst && !(narrow(src) && narrow(dst))))
    return Status::error(
        Code::kArg, cat("cannot add ", name(src), " values to ", name(dst),
                        " on a CUDA device: the dtypes must be equal, or both floating-point and not f64"));
  return launch(kAccumulatePieces, stream, args.piece_count, args);
}

Status Kernels::fold(DeviceStream stream, const FoldKernelArgs& args) {
  if (args.input_count < 1 || args.input_count > FoldKernelArgs::kMost || args.output_count < 1 ||
      args.output_count > FoldKernelArgs::kMost) {
    return Status::error(Code::kArg,
                         cat("cannot reduce ", args.input_count, " inputs to ", args.output_count,
                             " outputs on a CUDA device, allowed: 1 to ", FoldKernelArgs::kMost, " of each"));
  }
  WEFT_TRY(check_reduction(static_cast<ReduceOp>(args.op), static_cast<Dtype>(args.dtype)));
  const Arithmetic as = arithmetic(static_cast<ReduceOp>(args.op), static_cast<Dtype>(args.dtype));
  FoldKernelArgs parts = args;
  parts.dtype = static_cast<uint8_t>(as.dtype);
  parts.op = static_cast<uint8_t>(as.op);
  parts.count *= as.parts;
  return launch(kFold, stream, shares(parts.count, kFoldElementsPerBlock), parts);
}

Status Kernels::squares(DeviceStream stream, const SquaresKernelArgs& args) {
  if (!is_float(static_cast<Dtype>(args.dtype)))
    return Status::error(Code::kArg, cat("cannot sum squares of ", name(static_cast<Dtype>(args.dtype)),
                                         " values on a CUDA device: a floating-point dtype is needed"));
  WEFT_TRY(launch(kSquares, stream, shares(shares(args.count, kSquaresRange), kKernelGroups), args));
  return launch(kSquaresTotal, stream, 1, args);
}

}  // namespace weft::cuda
