// weft_sparse_all_reduce, weft_sparse_release.
#include <algorithm>

#include "base/splitmix.h"
#include "capi/call.h"
#include "reducer/feature/sparse/sparse_sum.h"

namespace weft::capi {
namespace {

constexpr int32_t kMostDimensions = 32;
constexpr uint64_t kMostElements = uint64_t{1} << 56;

// Describes the array as a parameter of a reducer.
Status array_of(const int64_t* shape, int32_t ndim, int32_t sparse_ndim, Dtype dtype, Param* array) {
  WEFT_NOT_NULL(shape);
  if (ndim < 1 || ndim > kMostDimensions || sparse_ndim < 1 || sparse_ndim > ndim) {
    return Status::error(Code::kArg, cat("ndim is ", ndim, " and sparse_ndim is ", sparse_ndim,
                                         ": allowed are 1 to ", kMostDimensions, ", and 1 to ndim"));
  }
  array->dtype = dtype;
  array->sparse_ndim = static_cast<uint32_t>(sparse_ndim);
  uint64_t product = 1;  // of the nonzero extents, so that the product of any subset fits as well
  for (int32_t d = 0; d < ndim; d++) {
    const uint64_t extent = static_cast<uint64_t>(std::max(shape[d], int64_t{1}));
    if (shape[d] < 0 || product > kMostElements / extent) {
      return Status::error(
          Code::kArg, cat("shape[", d, "] is ", shape[d],
                          ": allowed are extents of 0 or more whose product is at most ", kMostElements));
    }
    product *= extent;
    array->count *= static_cast<uint64_t>(shape[d]);
    array->shape.push_back(shape[d]);
  }
  return {};
}

uint64_t digest(const Param& array) {
  uint64_t h = array.sparse_ndim;
  for (const int64_t extent : array.shape) h = scramble((h ^ static_cast<uint64_t>(extent)) + kSplitMixStep);
  return h == 0 ? 1 : h;
}

Status check_sparse(const weft_sparse* sparse, const char* name) {
  if (sparse == nullptr) return null_argument(name);
  if (sparse->struct_size >= sizeof *sparse) return {};
  return Status::error(
      Code::kArg, cat(name, "->struct_size is ", sparse->struct_size, "; set it to sizeof(weft_sparse)"));
}

// Validates that the entries are in host memory: the call reads them on the host.
Status check_entries(weft_comm& comm, const weft_sparse& entries) {
  if (entries.count == 0) return {};
  for (const void* const start : {static_cast<const void*>(entries.indices), entries.values}) {
    if (start == nullptr) continue;
    Status memory = check_memory(comm.rep->context(), &comm.memory_watch, {}, start, 1);
    if (memory.ok()) continue;
    return memory.with_prefix(start == entries.indices ? "sparse_all_reduce: src->indices "
                                                       : "sparse_all_reduce: src->values ");
  }
  return {};
}

}  // namespace
}  // namespace weft::capi

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_sparse_all_reduce(weft_comm* comm, const weft_sparse* src, const int64_t* shape,
                                   int32_t ndim, int32_t sparse_ndim, int32_t dtype, int32_t op,
                                   const weft_coll_options* options, weft_sparse* result,
                                   weft_request** request) {
  return called(comm, [&]() -> Status {
    if (request != nullptr) *request = nullptr;
    WEFT_TRY(check_sparse(result, "result"));
    if (src == result) {
      return Status::error(Code::kArg, "src and result are the same weft_sparse: give two structs");
    }
    result->count = 0;
    result->indices = nullptr;
    result->values = nullptr;
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kSparseAllReduce, 0, dtype, op, 0));
    CollectiveArgs& args = call.args;
    weft_sparse entries;
    WEFT_TRY(src == nullptr ? null_argument("src") : read_struct(src, "weft_sparse", &entries));
    Param array;
    WEFT_TRY(array_of(shape, ndim, sparse_ndim, args.dtype, &array));
    WEFT_TRY(check_entries(*comm, entries));
    Context& context = comm->rep->context();
    const auto sum = std::make_shared<SparseSum>(array, context.options().host_allocator, context.host(),
                                                 static_cast<int>(call.rank), static_cast<int>(call.size),
                                                 args.op == ReduceOp::kAvg, result);
    WEFT_TRY(sum->put(entries));
    args.tag = digest(array);
    args.composite = sum.get();
    call.kept = sum;
    return submit(&call);
  });
}

weft_status weft_sparse_release(weft_sparse* result) {
  return plain([&]() -> Status {
    WEFT_TRY(check_sparse(result, "result"));
    SparseSum::release(result);
    return {};
  });
}

}  // extern "C"
