#include "rendezvous/store_session.h"

namespace weft::store {
namespace {

// Limit of encrypted results and answers in the queue. Results wait as shared rounds, and are encrypted for a
// member only as it reads.
constexpr size_t kQueuedMost = 256u << 10;

}  // namespace

void Session::on_joined() {
  joined_ = true;
  deadline_ = Deadline::never();
  connection_.set_limit(kLargeFrame);
  connection_.send(encode_plain(Type::kJoined));
}

void Session::on_round(std::shared_ptr<const Round> round) {
  rounds_.push_back(std::move(round));
}

void Session::on_missing(const Missing& missing) {
  // A member that asks again and again, and does not read, gets no further answers.
  if (connection_.queued() < kQueuedMost) connection_.send(encode(missing));
}

void Session::on_failed(const Status& status) {
  group_ = nullptr;
  rounds_.clear();
  // No deadline is needed here: the server gives closing sessions one (say_goodbye).
  connection_.send(encode_failed(status));
  closing_ = true;
}

void Session::say_goodbye(ByteView frame, Deadline deadline) {
  group_ = nullptr;
  rounds_.clear();
  if (!frame.empty()) connection_.send(frame);
  closing_ = true;
  deadline_ = deadline;
}

bool Session::pump() {
  while (!rounds_.empty() && connection_.queued() < kQueuedMost) {
    const Round& round = *rounds_.front();
    connection_.send(encode_result(round.number, round.parts, next_part_, &next_part_));
    if (next_part_ < round.parts.size()) continue;
    rounds_.pop_front();
    next_part_ = 0;
  }
  if (!connection_.flush()) return false;
  if (closing_ && !sent_all_ && connection_.queued() == 0) {
    sent_all_ = true;
    connection_.finish_sending();
  }
  return true;
}

}  // namespace weft::store
