// Membership consensus: how the members of a failed communicator agree on the survivors. It makes one
// decision by Paxos. No two ranks decide differently, even if ranks die or are late meanwhile. Every decision
// needs a majority of the members.
//
// A Consensus is one rank's part, without threads, clock or connections: the owner sends the messages from
// take_out(). The lowest rank among the possible survivors proposes, once every member that is not known to
// be lost has joined. It proposes the members that joined and can reach each other, if they are a majority. A
// rank that others accuse waits, so that the ranks that it alone has lost propose first. Messages may be lost
// with their sender, and may arrive out of order.
//
// Threads: the owner's lock guards it (control/generations.h).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/buffer.h"

namespace weft {

class Consensus {
 public:
  // Types of messages.
  enum class Kind : uint8_t { kJoin = 1, kPrepare, kPromise, kAccept, kAccepted, kRefuse, kDecided };

  // members: in ascending order, with self.
  Consensus(int self, std::vector<int> members) : self_(self), members_(std::move(members)) {}

  // This rank's program wants to continue. last_of_two: of two members, one may continue alone. accused: the
  // ranks that the failure names. If two ranks cannot reach each other and either could continue, the one
  // with fewer accusers does.
  void join(bool last_of_two, const std::set<int>& accused = {});
  // A member is lost: it sends nothing any more, or nothing that reaches this rank.
  void lose(int rank);
  // Proposes, if it is this rank's turn. Called repeatedly while waiting.
  void advance(uint64_t now_ns);
  // Handles a message from another member. Invalid messages are ignored.
  void on_message(int from, ByteReader& message);

  bool decided() const { return decided_; }
  const std::vector<int>& decision() const { return decision_; }
  // Returns true if fewer members are left than a decision needs.
  bool minority() const;
  // Members that are not lost and have not joined.
  std::vector<int> awaited() const;
  // Members that are not lost and have not answered this rank's proposal; none while it makes no proposal.
  std::vector<int> unanswered() const;
  const std::vector<int>& members() const { return members_; }
  // Takes the outgoing messages, each with its destination.
  std::vector<std::pair<int, Bytes>> take_out() { return std::exchange(out_, {}); }

 private:
  enum class Phase { kIdle, kPreparing, kAccepting };
  struct Message {
    Kind kind = Kind::kJoin;
    uint64_t number = 0;           // of the proposal
    uint64_t accepted_number = 0;  // kPromise
    std::vector<int> ranks;        // kJoin: the lost; kPromise: the accepted; kAccept, kDecided: the proposed
    std::vector<int> accused;      // kJoin
  };

  bool read(ByteReader& reader, Message* message) const;
  bool read_ranks(ByteReader& reader, std::vector<int>* ranks) const;
  void send_join();
  void send(int to, const Message& message);
  void send_all(const Message& message);
  void receive(int from, const Message& message);
  void on_prepare(int from, const Message& message);
  void on_promise(int from, const Message& message);
  void on_accept(int from, const Message& message);
  void on_accepted(int from, const Message& message);
  void decide(const std::vector<int>& ranks);
  bool is_member(int rank) const;
  size_t quorum() const;
  size_t left() const { return members_.size() - lost_.size(); }
  bool apart(int a, int b) const;
  std::vector<int> connected() const;
  bool views_differ() const;
  bool gives_way() const;

  const int self_;
  const std::vector<int> members_;
  std::set<int> lost_;
  std::map<int, std::set<int>> joined_;   // members that have joined, with the ranks that each has lost
  std::map<int, std::set<int>> accused_;  // the ranks that each member accuses
  bool last_of_two_ = false;
  bool decided_ = false;
  std::vector<int> decision_;
  std::vector<std::pair<int, Bytes>> out_;

  // Acceptor state: what this rank has promised and accepted.
  uint64_t promised_ = 0;
  uint64_t accepted_number_ = 0;
  std::vector<int> accepted_;

  // Proposer state: this rank's own proposal.
  Phase phase_ = Phase::kIdle;
  uint64_t number_ = 0;
  uint64_t highest_ = 0;  // highest proposal number seen
  uint64_t not_before_ns_ = 0;
  uint32_t attempts_ = 0;
  std::set<int> answers_;        // ranks that have answered the current phase
  std::vector<int> candidates_;  // at the time the proposal began
  uint64_t differ_since_ns_ = UINT64_MAX;
  uint64_t best_number_ = 0;
  std::vector<int> proposed_;
};

}  // namespace weft
