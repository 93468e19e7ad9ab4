// NCCL, found and loaded when a communicator is created or a query needs it. A libnccl.so.2 that the process
// has already loaded (a framework's own) comes first, then WEFT_NCCL_LIBRARY, then an installed one.
// Functions of later versions are used if they are present. Threads: any thread.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace weft::nccl {

#define WEFT_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion)            \
  X(ncclGetUniqueId)           \
  X(ncclCommInitRankConfig)    \
  X(ncclCommGetAsyncError)     \
  X(ncclCommFinalize)          \
  X(ncclCommDestroy)           \
  X(ncclCommAbort)             \
  X(ncclGetErrorString)        \
  X(ncclGetLastError)          \
  X(ncclGroupStart)            \
  X(ncclGroupEnd)              \
  X(ncclRedOpCreatePreMulSum)  \
  X(ncclRedOpDestroy)          \
  X(ncclAllReduce)             \
  X(ncclReduce)                \
  X(ncclBroadcast)             \
  X(ncclAllGather)             \
  X(ncclReduceScatter)         \
  X(ncclSend)                  \
  X(ncclRecv)

struct Library {
  // NOLINTBEGIN(bugprone-macro-parentheses,readability-identifier-naming): names are the library's
#define WEFT_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_NCCL_FUNCTIONS(WEFT_NCCL_MEMBER)
#undef WEFT_NCCL_MEMBER
  // NOLINTEND(bugprone-macro-parentheses,readability-identifier-naming)
  // Since NCCL 2.28; null before.
  ncclResult_t (*all_to_all)(const void* src, void* dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                             cudaStream_t stream) = nullptr;
  ncclResult_t (*gather)(const void* src, void* dst, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) = nullptr;
  ncclResult_t (*scatter)(const void* src, void* dst, size_t count, ncclDataType_t type, int root,
                          ncclComm_t comm, cudaStream_t stream) = nullptr;
  // Since NCCL 2.19; all four are null before.
  ncclResult_t (*mem_alloc)(void** memory, size_t size) = nullptr;
  ncclResult_t (*mem_free)(void* memory) = nullptr;
  ncclResult_t (*comm_register)(ncclComm_t comm, void* memory, size_t size, void** handle) = nullptr;
  ncclResult_t (*comm_deregister)(ncclComm_t comm, void* handle) = nullptr;
  bool registers() const { return mem_alloc != nullptr; }
  std::string file;
  int version = 0;  // 22809: 2.28.9
};

// The first version with non-blocking communicators.
inline constexpr int kMinVersion = 21403;

// Loads the library. file: WEFT_NCCL_LIBRARY. Returns kUnavailable and the reason on failure.
Status load(const std::string& file, std::shared_ptr<const Library>* library);

// Returns "2.28.9" for 22809.
std::string version_text(int version);

}  // namespace weft::nccl
