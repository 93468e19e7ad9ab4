// One rendezvous group: the ranks of a communicator that is being created, and their rounds of all-gather. It
// has no sockets: the server reports the members' events, and the group calls the members back. Threads: the
// server's thread only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/store_protocol.h"

namespace weft::store {

// A complete round. Shared by the members to which it is being sent, because they read at different speeds.
struct Round {
  uint64_t number = 0;
  std::vector<Bytes> parts;  // by rank
};

// Callbacks from a group to a member. They may run inside calls to the group.
class GroupMember {
 public:
  virtual ~GroupMember() = default;
  virtual void on_joined() = 0;
  virtual void on_round(std::shared_ptr<const Round> round) = 0;
  virtual void on_missing(const Missing& missing) = 0;
  // The last callback of a member: its own mistake, or another member's failure.
  virtual void on_failed(const Status& status) = 0;
};

class Group {
 public:
  explicit Group(int size) : size_(size), members_(static_cast<size_t>(size)) {}

  // Adds a member. kMismatch for a different size; this fails an incomplete group. Other errors concern only
  // the joiner: kMismatch for a duplicate rank, kArg for one out of range; they are added to the notes that
  // members get with the missing ranks. A failed group returns its failure.
  Status join(const Join& join, GroupMember* member);
  // Errors are the caller's mistake: the round is not its next one.
  Status give(int rank, Give give);
  // strangers: about clients that the store has refused, whose group is unknown; may be empty.
  void who_is_missing(int rank, const std::string& strangers);
  // The member has finished and no longer needs the others.
  void leave(int rank);
  // The member is gone without leaving, or made a mistake: all other members fail.
  void lost(int rank, const Status& why);

  bool failed() const { return !failure_.ok(); }
  // True if no member is present.
  bool empty() const { return present_ == 0; }
  // Ranks were given different sizes, and some of them have not arrived yet to receive the error.
  bool awaits_latecomers() const { return answered_ < expected_; }
  // True if all ranks have joined.
  bool complete() const { return present_ + left_ == size_; }

 private:
  struct Seat {
    GroupMember* member = nullptr;  // null: not joined yet, or gone
    uint64_t given = 0;             // number of rounds
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
  uint64_t round_ = 0;        // the current round
  std::vector<Bytes> parts_;  // of the current round
  int given_ = 0;             // number of ranks that have contributed to it
  std::string notes_;         // about rejected joiners
  Status failure_;            // sticky
  int expected_ = 0;          // number of ranks that must receive the size mismatch: the largest of the sizes
  int answered_ = 0;          // number of ranks that have received it
};

}  // namespace weft::store
