// Shared parts of calls that execute collectives: validation of arguments, done only here (backends get valid
// ones), and submission, immediate or to the communicator's open group. Threads: as the calls.
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
  uint64_t size = 0;  // world size of the communicator
  uint64_t rank = 0;
  StreamArgs stream = {};
  weft_reduction reduction = {};  // WEFT_OP_USER
  std::shared_ptr<void> kept;     // keeps data that args points to until the operation is complete
};

// Runs the checks that all collectives share. Fills *call, except the buffers.
Status begin(Call* call, Coll coll, uint64_t count, int32_t dtype, int32_t op, int32_t peer);

// Validates src and dst. A buffer must not be null unless it is empty, and must be aligned to its elements.
// The two may overlap only exactly as in_place_src and in_place_dst.
Status check_buffers(const Call& call, const Span& src, const Span& dst, const void* in_place_src,
                     const void* in_place_dst);

// Runs the call, or queues it in the open group.
Status submit(Call* call);

// Prepares what a call on a device's stream needs, before it is queued and ordered with the stream. May take
// long.
Status prepare_on_device(const Call& call, DeviceCall* device);

// Waits for a submitted request and drives progress meanwhile; an interrupt fails the communicator. what:
// describes the request. Must not be called from a callback.
void await(Comm& comm, const weft_request& request, const char* what);

// Returns the error with the host and the process of the ranks that it names, as those of a failed
// communicator have them.
Status with_places(const Comm& comm, const Status& status) noexcept;

// Wraps the extern "C" body of a collective: weft_comm_error returns why the call was rejected.
void note_refusal(weft_comm* comm, const Status& status) noexcept;
template <class Body>
weft_status called(weft_comm* comm, Body&& body) noexcept {
  const Status status = in_call(body);
  if (!status.ok()) note_refusal(comm, status);
  return ended(status);
}

inline const std::byte* bytes(const void* pointer) {
  return static_cast<const std::byte*>(pointer);
}
inline std::byte* bytes(void* pointer) {
  return static_cast<std::byte*>(pointer);
}

}  // namespace weft::capi
