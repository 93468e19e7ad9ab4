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

  // kMismatch for another size, which fails a group that is not complete. Other errors are the
  // joiner's alone: kMismatch for a rank twice, kArg for one out of range; members see these as a
  // note when they ask who is missing. A group that has failed answers with its failure.
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
  // Ranks were given different sizes, and some of them have not come yet to learn it.
  bool awaits_latecomers() const { return answered_ < expected_; }
  // Everybody has come.
  bool complete() const { return present_ + left_ == size_; }

 private:
  struct Seat {
    GroupMember* member = nullptr;  // null: not come yet, or gone
    uint64_t given = 0;             // rounds
    bool left = false;
  };
  Seat& seat(int rank) { return members_[static_cast<size_t>(rank)]; }
  Status other_size(const Join& join);
  void fail_members(const Status& why);
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
  int expected_ = 0;          // ranks that are to learn that sizes differ: as many as the smaller size says
  int answered_ = 0;          // how many have
};

}  // namespace weft::store
