// One connection of the store: an unauthenticated client until it has joined, then a member of a group.
// Threads: the server's thread only.
#pragma once

#include <deque>
#include <memory>

#include "rendezvous/connection.h"
#include "rendezvous/store_group.h"

namespace weft::store {

class Session final : public GroupMember {
 public:
  Session(Connection connection, uint64_t accepted_ns, Deadline deadline)
      : connection_(std::move(connection)), since_ns_(accepted_ns), deadline_(deadline) {}

  Connection& connection() { return connection_; }
  Group* group() const { return group_; }
  int rank() const { return rank_; }
  bool unauthenticated() const { return !joined_; }
  // Returns the time at which the client was accepted, or sent its hello.
  uint64_t since_ns() const { return since_ns_; }
  void set_greeted(uint64_t now_ns) { since_ns_ = now_ns; }
  // Returns the deadline of an unauthenticated or closing session; never for members.
  Deadline deadline() const { return deadline_; }

  // Sets the group that calls this member. Called before group->join.
  void enter(Group* group, int rank) {
    group_ = group;
    rank_ = rank;
  }
  void forget_group() { group_ = nullptr; }
  // Sends a last frame, then ends the connection once the peer has read it, or at the deadline.
  void say_goodbye(ByteView frame, Deadline deadline);
  bool closing() const { return closing_; }
  // Queues results as fast as the peer reads, and writes. Called after every event. False: the connection is
  // broken.
  bool pump();

  void on_joined() override;
  void on_round(std::shared_ptr<const Round> round) override;
  void on_missing(const Missing& missing) override;
  void on_failed(const Status& status) override;

 private:
  Connection connection_;
  uint64_t since_ns_;
  Deadline deadline_;
  Group* group_ = nullptr;
  int rank_ = -1;
  bool joined_ = false;
  bool closing_ = false;
  bool sent_all_ = false;
  std::deque<std::shared_ptr<const Round>> rounds_;  // to be sent
  size_t next_part_ = 0;                             // next part to send of the first round in rounds_
};

}  // namespace weft::store
