#include "kernels.h"

#include <limits>

#include "base/dtype.h"
#include "base/text.h"

// What nvcc made of lib/kernels/cuda.
extern "C" const unsigned char weft_cuda_kernels[];

namespace weft::cuda {

Kernels::~Kernels() {
  if (code_ != nullptr) (void)library_.call.library_unload(code_);
}

Status Kernels::check(const char* what, CUresult result) const {
  if (result == CUDA_SUCCESS) return {};
  const char* text = nullptr;
  (void)library_.call.error_string(result, &text);
  return Status::error(Code::kSystem, cat("CUDA: ", what, ": ", text != nullptr ? text : "unknown error"));
}

Status Kernels::load() {
  const std::lock_guard lock(mutex_);
  if (loaded_) return {};
  const Functions& call = library_.call;
  if (code_ == nullptr) {
    WEFT_TRY(check("loading kernels",
                   call.library_load(&code_, weft_cuda_kernels, nullptr, nullptr, 0, nullptr, nullptr, 0)));
  }
  WEFT_TRY(check("kernel weft_copy_pieces", call.library_kernel(&copy_pieces_, code_, "weft_copy_pieces")));
  WEFT_TRY(check("kernel weft_fold", call.library_kernel(&fold_, code_, "weft_fold")));
  loaded_ = true;
  return {};
}

template <class Args>
Status Kernels::launch(CUkernel kernel, DeviceStream stream, uint64_t blocks, Args args) {
  if (blocks > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
    return Status::error(Code::kArg, cat("a launch of ", blocks, " blocks"));
  void* parameters[] = {&args};
  // A CUkernel may be given where a CUfunction is asked for, since CUDA 12.
  return check("a launch", library_.call.launch(reinterpret_cast<CUfunction>(kernel),
                                                static_cast<unsigned>(blocks), 1, 1, kKernelThreads, 1, 1, 0,
                                                static_cast<CUstream>(stream), parameters, nullptr));
}

Status Kernels::copy_pieces(DeviceStream stream, const CopyPiecesArgs& args) {
  WEFT_TRY(load());
  const auto src = static_cast<Dtype>(args.src_dtype);
  const auto dst = static_cast<Dtype>(args.dst_dtype);
  if (!valid(src) || !valid(dst) || (src != dst && !(is_float(src) && is_float(dst))))
    return Status::error(Code::kArg, cat("a copy from ", name(src), " to ", name(dst)));
  if (args.piece_count == 0) return {};
  return launch(copy_pieces_, stream, args.piece_count, args);
}

Status Kernels::fold(DeviceStream stream, const FoldKernelArgs& args) {
  WEFT_TRY(load());
  if (args.input_count < 1 || args.input_count > FoldKernelArgs::kMost || args.output_count < 1 ||
      args.output_count > FoldKernelArgs::kMost) {
    return Status::error(Code::kArg, cat("a fold of ", args.input_count, " into ", args.output_count));
  }
  WEFT_TRY(check_reduction(static_cast<ReduceOp>(args.op), static_cast<Dtype>(args.dtype)));
  if (args.count == 0) return {};
  return launch(fold_, stream, (args.count + kFoldElementsPerBlock - 1) / kFoldElementsPerBlock, args);
}

}  // namespace weft::cuda
