// Calls between weft_group_begin and weft_group_end, and what waits for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "capi/call.h"

namespace weft::capi {

// What weft_group_end waits for. Threads: any.
class GroupEnd {
 public:
  // request: completes with the last of `members` and the end itself; this holds one of its references.
  GroupEnd(weft_request* request, size_t members) : request_(request), left_(members + 1) {}
  void completed(const Status& status);

 private:
  weft_request* const request_;
  std::mutex mutex_;
  size_t left_;   // guarded by mutex_
  Status first_;  // failure; guarded by mutex_
};

// The queue of a communicator's open group. Threads: as collectives, and only the one that began it.
class Group {
 public:
  explicit Group(weft_comm& comm) : comm_(comm), owner_(std::this_thread::get_id()) {}

  bool owned() const { return owner_ == std::this_thread::get_id(); }
  Status add(Call* call);
  // Hand everything to the lanes, in order; calls on streams of devices wait for those, and those for them. A
  // null end: the communicator is closed, and nobody waits.
  void launch(const std::shared_ptr<GroupEnd>& end);
  size_t size() const { return queued_.size(); }
  // A call is in the order of a device's stream.
  bool on_streams() const;

 private:
  struct Queued {
    weft_request* request = nullptr;
    int64_t timeout_ms = 0;
    Status refused = {};  // by the device
  };
  void order_with_streams(std::vector<Queued>* queued);

  weft_comm& comm_;
  const std::thread::id owner_;
  std::vector<Queued> queued_;
};

inline Status no_group(const weft_comm& comm) {
  if (comm.group == nullptr) return {};
  return Status::error(Code::kState, "a group is open on the communicator: weft_group_end comes first");
}

}  // namespace weft::capi
