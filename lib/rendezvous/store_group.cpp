#include "rendezvous/store_group.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "environment/launch.h"

namespace weft::store {

Status Group::join(const Join& join, GroupMember* member) {
  if (failed()) {
    answered_++;
    return failure_;
  }
  Status status;
  if (join.size < 1 || join.size > kMaxRanks) {
    status = Status::error(
        Code::kArg, cat("rank ", join.rank, " gives the size ", join.size, ": allowed are 1 to ", kMaxRanks,
                        " ranks (WEFT_SIZE, or weft_comm_options.size)"));
  } else if (join.rank < 0 || join.rank >= join.size) {
    status = Status::error(Code::kArg,
                           cat("rank is ", join.rank, ": with ", join.size, " ranks, allowed are 0 to ",
                               join.size - 1, " (WEFT_RANK, or weft_comm_options.rank)"));
  } else if (join.size != size_) {
    if (!complete()) return other_size(join);
    status = Status::error(
        Code::kMismatch,
        cat("rank ", join.rank, " says that there are ", join.size, " ranks, but a communicator of ", size_,
            " ranks is complete already: do two jobs use one store and job name?"));
  } else if (seat(join.rank).member != nullptr || seat(join.rank).left) {
    status = Status::error(Code::kMismatch, cat("rank ", join.rank,
                                                " has joined already: two processes have the "
                                                "same rank, or the same job name"));
  }
  if (!status.ok()) {
    note(status.text());
    return status;
  }
  seat(join.rank).member = member;
  present_++;
  member->on_joined();
  return {};
}

// Fails all members at once: ranks with different sizes cannot create a communicator.
Status Group::other_size(const Join& join) {
  const auto there = [](const Seat& each) { return each.member != nullptr; };
  const auto first = std::find_if(members_.begin(), members_.end(), there) - members_.begin();
  failure_ = Status::error(
                 Code::kMismatch,
                 cat("rank ", join.rank, " says that there are ", join.size, " ranks, rank ", first, " says ",
                     size_, ": give all ranks the same size (WEFT_SIZE, or weft_comm_options.size)"))
                 .with_ranks({join.rank});
  expected_ = std::max(size_, join.size);
  answered_ = present_ + 1;
  fail_members(failure_);
  return failure_;
}

Status Group::give(int rank, Give give) {
  Seat& giver = seat(rank);
  if (give.round != giver.given || giver.given != round_) {
    return Status::error(Code::kInternal,
                         cat("rank ", rank, " sent data of round ", give.round, ", but has sent that of ",
                             giver.given, " rounds, and the group is in round ", round_,
                             " (counted from 0): this is a bug of Weft, please report it"));
  }
  parts_.resize(static_cast<size_t>(size_));
  parts_[static_cast<size_t>(rank)] = std::move(give.bytes);
  giver.given++;
  if (++given_ < size_) {
    fail_if_left();
    return {};
  }

  auto round = std::make_shared<Round>();
  round->number = round_;
  round->parts = std::exchange(parts_, {});
  round_++;
  given_ = 0;
  for (Seat& each : members_) {
    if (each.member != nullptr) each.member->on_round(round);
  }
  return {};
}

void Group::who_is_missing(int rank, const std::string& strangers) {
  Missing missing;
  for (int each = 0; each < size_; each++) {
    if (seat(each).given == round_ && missing.ranks.size() < kMaxRanksInText) missing.ranks.push_back(each);
  }
  missing.note = cat(notes_, notes_.empty() || strangers.empty() ? "" : "; ", strangers);
  seat(rank).member->on_missing(missing);
}

void Group::leave(int rank) {
  seat(rank).member = nullptr;
  seat(rank).left = true;
  present_--;
  left_++;
  if (given_ > 0) fail_if_left();
}

// Fails the group if a member waits in this round for a rank that has left.
void Group::fail_if_left() {
  for (int rank = 0; left_ > 0 && rank < size_; rank++) {
    if (!seat(rank).left || seat(rank).given != round_) continue;
    lost(rank, Status::error(Code::kPeerFailed,
                             cat("rank ", rank, " left while the communicator was being created"),
                             Evidence::kReport)
                   .with_ranks({rank}));
    return;
  }
}

void Group::lost(int rank, const Status& why) {
  if (!failed()) failure_ = why;
  if (seat(rank).member != nullptr) present_--;
  seat(rank).member = nullptr;
  fail_members(why);
}

void Group::fail_members(const Status& why) {
  for (Seat& each : members_) {
    GroupMember* member = std::exchange(each.member, nullptr);
    if (member == nullptr) continue;
    present_--;
    member->on_failed(why);
  }
}

void Group::note(const std::string& text) {
  constexpr size_t kMostNotes = 1024;
  if (notes_.size() < kMostNotes) notes_ += cat(notes_.empty() ? "" : "; ", "refused: ", text);
}

}  // namespace weft::store
