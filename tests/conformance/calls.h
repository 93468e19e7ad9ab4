// Calls with data for behavioural tests: short forms of all_reduce, send, and queued requests.
#pragma once

#include <memory>
#include <vector>

#include "comm/lane.h"
#include "support/ranks.h"

namespace weft::test {

template <class T>
std::byte* raw(std::vector<T>& data) {
  return reinterpret_cast<std::byte*>(data.data());
}

inline CollectiveArgs barrier() {
  return {};
}

// Sums i32 in place.
inline CollectiveArgs all_reduce(std::vector<int32_t>& data) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kI32;
  args.op = ReduceOp::kSum;
  args.count = data.size();
  args.src = args.dst = raw(data);
  return args;
}

inline CollectiveArgs send(const std::vector<int32_t>& data, int peer) {
  CollectiveArgs args;
  args.coll = Coll::kSend;
  args.dtype = Dtype::kI32;
  args.count = data.size();
  args.peer = peer;
  args.src = reinterpret_cast<const std::byte*>(data.data());
  return args;
}

inline CollectiveArgs receive(std::vector<int32_t>& data, int peer) {
  CollectiveArgs args = send(data, peer);
  args.coll = Coll::kRecv;
  args.src = nullptr;
  args.dst = raw(data);
  return args;
}

// Requests in progress. They must be complete before this object is destroyed: call wait, or close the
// communicator.
class Outstanding {
 public:
  explicit Outstanding(Rank& self) : self_(self) {}

  void submit(const CollectiveArgs& args) {
    std::shared_ptr<Lane> lane;
    self_.expect(self_.comm->lane_for(args, &lane), "lane");
    if (lane) submit(*lane, args);
  }
  void submit(Lane& lane, const CollectiveArgs& args) {
    Request& request = *requests_.emplace_back(std::make_unique<Request>());
    request.args = args;
    request.deadline = self_.comm->op_deadline(0);
    lane.submit(&request);
    self_.comm->context().engine().notify();
  }
  // Waits for all requests. Returns the first failure.
  Status wait() {
    Status failure;
    for (const auto& request : requests_) {
      self_.comm->context().engine().wait([&] { return request->done(); }, Deadline::never());
      if (failure.ok()) failure = request->result;
    }
    return failure;
  }
  const std::vector<std::unique_ptr<Request>>& requests() const { return requests_; }

 private:
  Rank& self_;
  std::vector<std::unique_ptr<Request>> requests_;
};

// Drives the communicator until it has failed, and returns the failure.
inline Status wait_for_failure(Rank& self) {
  self.comm->context().engine().wait([&] { return self.comm->failed(); },
                                     Deadline::after(self.comm->context().clock(), 60'000, 0));
  self.expect(self.comm->failed(), "the communicator did not fail");
  return self.comm->failure();
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace weft::test
