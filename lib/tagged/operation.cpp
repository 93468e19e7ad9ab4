#include "tagged/operation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"

namespace weft::tagged {
namespace {

std::string elements(const End& end) {
  return cat(name(end.dtype), " x ", end.bytes / std::max<uint32_t>(dtype_size(end.dtype), 1));
}

}  // namespace

Status take(const Operation& receive, int rank, int source, const Header& message) {
  if (receive.receipt.write != nullptr) {
    receive.receipt.write(receive.receipt.target,
                          {source, message.tag, message.bytes / dtype_size(message.dtype)});
  }
  if (receive.dtype() == message.dtype && message.bytes <= receive.bytes()) return {};
  return mismatch(rank, message.tag, {source, message.dtype, message.bytes},
                  {rank, receive.dtype(), receive.bytes()});
}

FlightMessage flight_of(const Operation& operation) {
  const bool moving = operation.state == Operation::State::kStreaming;
  FlightMessage message;
  message.sends = operation.sends();
  message.peer = operation.awaited();
  message.tag = operation.tag;
  message.dtype = operation.dtype();
  message.count = operation.request->args.count;
  message.waiting_since_ns = operation.since_ns;
  message.waiters = operation.request->waiters.load(std::memory_order_relaxed);
  message.state = moving ? FlightMessage::State::kMoving : FlightMessage::State::kUnmatched;
  return message;
}

std::string text_of(const Operation& operation, int rank) {
  return cat(flight_of(operation).text(), " on rank ", rank);
}

Status mismatch(int rank, uint64_t tag, const End& sender, const End& receiver) {
  return Status::error(Code::kMismatch,
                       cat("message with tag ", tag, ": rank ", sender.rank, " sends ", elements(sender),
                           ", rank ", receiver.rank, " receives at most ", elements(receiver),
                           ": give both the same dtype, and the receive room for the message"),
                       Evidence::kDescriptor)
      .with_ranks({sender.rank == rank ? receiver.rank : sender.rank});
}

Status withdrawn(int source, uint64_t tag, uint64_t received, uint64_t bytes) {
  return Status::error(Code::kCancelled,
                       cat("rank ", source, " gave up its message with tag ", tag, " after ",
                           bytes_text(received), " of ", bytes_text(bytes)),
                       Evidence::kReport)
      .with_ranks({source});
}

Status late(int rank, const Operation& operation) {
  const int other = operation.awaited();
  const bool any = other == kAnySource;
  std::vector<int> ranks;
  if (!any && other != rank) ranks.push_back(other);
  std::string advice;
  if (operation.state == Operation::State::kStreaming) {
    advice = cat("its data is being moved: check that rank ", other, " makes progress, or give it more time");
  } else {
    const std::string tag =
        operation.tag == kAnyTag ? std::string("a tagged message") : cat("tag ", operation.tag);
    advice = cat("check that ", any ? std::string("a rank") : cat("rank ", other),
                 operation.sends() ? " receives " : " sends ", tag);
  }
  return Status::error(Code::kTimeout,
                       cat(text_of(operation, rank), " passed its deadline",
                           ranks.empty() ? "" : cat(" waiting for rank ", other), ": ", advice),
                       Evidence::kDeadline)
      .with_ranks(std::move(ranks));
}

Status left(int rank, int lost, const Operation& operation) {
  const bool all = lost == kAnySource || operation.awaited() == kAnySource;
  std::vector<int> ranks;
  if (!all) ranks.push_back(lost);
  return Status::error(
             Code::kPeerFailed,
             cat(all ? std::string("all other ranks") : cat("rank ", lost), " left the communicator; ",
                 text_of(operation, rank), " waits for ", all ? "one of them" : "it"),
             Evidence::kConnection)
      .with_ranks(std::move(ranks));
}

}  // namespace weft::tagged
