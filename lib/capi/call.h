// What the calls that execute collectives share: checks of their arguments, done here once (backends get
// valid ones), and submission: at once, or to the communicator's open group. Threads: as the calls.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <memory>

#include "capi/handles.h"

namespace weft::capi {

// One buffer of a call.
struct Span {
  const void* start = nullptr;
  uint64_t count = 0;  // elements
  const char* name = "";
};

struct Call {
  weft_comm* comm = nullptr;
  CollectiveArgs args;
  const weft_coll_options* options = nullptr;
  weft_request** request = nullptr;
  int64_t timeout_ms = 0;
  uint64_t size = 0;  // of the comm
  uint64_t rank = 0;
  StreamArgs stream = {};
  std::shared_ptr<void> kept;  // what args point to, until the operation is complete
};

// The checks that all collectives share. *call is complete but for the buffers.
Status begin(Call* call, Coll coll, uint64_t count, int32_t dtype, int32_t op, int32_t peer);

// src and dst must be there if they hold anything, be aligned to their elements, and may overlap only where
// in_place points.
Status check_buffers(const Call& call, const Span& src, const Span& dst, const void* in_place_src,
                     const void* in_place_dst);

// Run it, or queue it.
Status submit(Call* call);

// What a call on a device's stream needs, before it is queued and ordered with the stream; may take long.
Status prepare_on_device(const Call& call, DeviceCall* device);

// Wait for a request that has been submitted, driving progress meanwhile; an interrupt fails the
// communicator. what: the text of it. Not from a callback.
void await(Comm& comm, const weft_request& request, const char* what);

// What every extern "C" body of a collective is wrapped in: weft_comm_error says why it was refused.
void note_refusal(weft_comm* comm, const Status& status) noexcept;
template <class Body>
weft_status called(weft_comm* comm, Body&& body) noexcept {
  const Status status = in_call(body);
  if (!status.ok()) note_refusal(comm, status);
  return code_of(status);
}

inline const std::byte* bytes(const void* pointer) {
  return static_cast<const std::byte*>(pointer);
}
inline std::byte* bytes(void* pointer) {
  return static_cast<std::byte*>(pointer);
}

}  // namespace weft::capi
