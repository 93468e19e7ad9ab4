// Calls between weft_group_begin and weft_group_end, and the wait for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "capi/call.h"

namespace weft::capi {

// Counts down the requests of a group for weft_group_end. Threads: any thread.
class GroupEnd {
 public:
  // request: completes with the last of `members` and the end call itself; this object holds one of its
  // references.
  GroupEnd(weft_request* request, size_t members) : request_(request), left_(members + 1) {}
  void completed(const Status& status);

 private:
  weft_request* const request_;
  std::mutex mutex_;
  size_t left_;   // guarded by mutex_
  Status first_;  // first failure; guarded by mutex_
};

// The queue of a communicator's open group. Threads: as collectives, and only the thread that began it.
class Group {
 public:
  explicit Group(weft_comm& comm) : comm_(comm), owner_(std::this_thread::get_id()) {}

  bool owned() const { return owner_ == std::this_thread::get_id(); }
  Status add(Call* call);
  // Submits all calls to the lanes, in order. Calls on device streams wait for their streams, and the streams
  // for them. end is null if the communicator is closed and no thread waits.
  void launch(const std::shared_ptr<GroupEnd>& end);
  size_t size() const { return queued_.size(); }
  // Returns true if a call is ordered by a device's stream.
  bool on_streams() const;

 private:
  struct Queued {
    weft_request* request = nullptr;
    int64_t timeout_ms = 0;
    Status refused = {};  // error of the stream gate
  };
  void order_with_streams(std::vector<Queued>* queued);

  weft_comm& comm_;
  const std::thread::id owner_;
  std::vector<Queued> queued_;
};

inline Status no_group(const weft_comm& comm) {
  if (comm.group == nullptr) return {};
  return Status::error(Code::kState, "a group is open on the communicator: call weft_group_end first");
}

}  // namespace weft::capi
