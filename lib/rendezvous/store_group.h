// One meeting: the ranks of one communicator that is being formed, and their rounds of all-gather. Knows no
// sockets; the server tells it what members do, and it tells members what comes of it.
// Threads: the server's thread only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/store_protocol.h"

namespace weft::store {

// A round that is complete. Shared by the members it is being sent to, because they read at their own pace.
struct Round {
  uint64_t number = 0;
  std::vector<Bytes> parts;  // by rank
};

// What a group says to a member. Calls may come from within calls to the group.
class GroupMember {
 public:
  virtual ~GroupMember() = default;
  virtual void on_joined() = 0;
  virtual void on_round(std::shared_ptr<const Round> round) = 0;
  virtual void on_missing(const Missing& missing) = 0;
  // The last thing that a member hears: of its own mistake, or of another's failure.
  virtual void on_failed(const Status& status) = 0;
};

class Group {
 public:
  explicit Group(int size) : size_(size), members_(static_cast<size_t>(size)) {}

  // Errors are the joiner's alone: kMismatch for another size or a rank twice, kArg for one out of range; the
  // others see these only as a note when they ask who is missing. To a group that has failed nobody
  // comes any more: its failure is the answer.
  Status join(const Join& join, GroupMember* member);
  // Errors are the giver's mistake: a round that is not its next one.
  Status give(int rank, Give give);
  void who_is_missing(int rank);
  // The member finished and needs the others no more.
  void leave(int rank);
  // The member is gone without having left, or made a mistake: everybody else fails.
  void lost(int rank, const Status& why);

  bool failed() const { return !failure_.ok(); }
  // Nobody is here any more.
  bool empty() const { return present_ == 0; }
  // Everybody has come.
  bool complete() const { return present_ + left_ == size_; }

 private:
  struct Seat {
    GroupMember* member = nullptr;  // null: not come yet, or gone
    uint64_t given = 0;             // rounds
    bool left = false;
  };
  Seat& seat(int rank) { return members_[static_cast<size_t>(rank)]; }
  void note(const std::string& text);
  void fail_if_left();

  const int size_;
  std::vector<Seat> members_;
  int present_ = 0;
  int left_ = 0;
  uint64_t round_ = 0;        // the one that is being collected
  std::vector<Bytes> parts_;  // of it
  int given_ = 0;             // how many have given theirs
  std::string notes_;         // about refused joiners
  Status failure_;            // sticky
};

}  // namespace weft::store
