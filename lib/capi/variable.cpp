// weft_all_gather_v and the other collectives of blocks of different sizes, sparse arrays, and groups.
#include "capi/handles.h"

using namespace weft;
using namespace weft::capi;

namespace {

weft_status not_yet(weft_request** request) {
  if (request != nullptr) *request = nullptr;
  return WEFT_ERR_UNSUPPORTED;
}

}  // namespace

extern "C" {

weft_status weft_all_gather_v(weft_comm*, const void*, void*, const uint64_t*, const uint64_t*, int32_t,
                              const weft_coll_options*, weft_request** request) {
  return not_yet(request);
}

weft_status weft_reduce_scatter_v(weft_comm*, const void*, void*, const uint64_t*, const uint64_t*, int32_t,
                                  int32_t, const weft_coll_options*, weft_request** request) {
  return not_yet(request);
}

weft_status weft_gather_v(weft_comm*, const void*, void*, const uint64_t*, const uint64_t*, int32_t, int32_t,
                          const weft_coll_options*, weft_request** request) {
  return not_yet(request);
}

weft_status weft_scatter_v(weft_comm*, const void*, void*, const uint64_t*, const uint64_t*, int32_t, int32_t,
                           const weft_coll_options*, weft_request** request) {
  return not_yet(request);
}

weft_status weft_all_to_all_v(weft_comm*, const void*, const uint64_t*, const uint64_t*, void*,
                              const uint64_t*, const uint64_t*, int32_t, const weft_coll_options*,
                              weft_request** request) {
  return not_yet(request);
}

weft_status weft_sparse_all_reduce(weft_comm*, const weft_sparse*, const int64_t*, int32_t, int32_t, int32_t,
                                   int32_t, const weft_coll_options*, weft_sparse*, weft_request** request) {
  return not_yet(request);
}

weft_status weft_sparse_release(weft_sparse*) {
  return WEFT_ERR_UNSUPPORTED;
}

weft_status weft_group_begin(weft_comm*) {
  return WEFT_ERR_UNSUPPORTED;
}

weft_status weft_group_end(weft_comm*, weft_request** request) {
  return not_yet(request);
}

}  // extern "C"
