// Decides which receive takes which message: a receive takes the message that fits and arrived first, a
// message is taken by the receive that fits and was called first. Keeps the receives without a message and
// the messages without a receive. Neither waits nor moves data.
#pragma once

#include <cstddef>
#include <list>
#include <utility>
#include <vector>

#include "tagged/operation.h"

namespace weft::tagged {

// A message that no receive has taken.
struct Unexpected {
  int source = 0;
  Header header;
  std::vector<std::byte> data;  // of an eager message
  Operation* send = nullptr;    // this rank's own, whose data was not copied
};

class Matching {
 public:
  // Gives the receive the first message that fits: moves it to *message and returns true. Otherwise the
  // receive waits here, in the order of the calls.
  bool post(Operation& receive, Unexpected* message);
  // Returns the receive that takes an arrived message, and forgets it. If null, the caller keeps the message.
  Operation* match(int source, uint64_t tag);
  void keep(Unexpected message) { unexpected_.push_back(std::move(message)); }

  // Forget a receive that ends; a send of this rank to itself that ends; the offer `id` of a rank, if it is
  // here (returns false if not); all offers of a rank. Messages that are here whole can still be received.
  void forget_receive(Operation& receive) { posted_.remove(&receive); }
  void forget_send(const Operation& send);
  bool forget_offer(int source, uint64_t id);
  void forget_offers(int source);

 private:
  std::list<Operation*> posted_;      // in the order of their calls
  std::list<Unexpected> unexpected_;  // in the order of their arrival
};

}  // namespace weft::tagged
