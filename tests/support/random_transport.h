// A program's own transport between the threads of this process. It draws at random, from a seed, everything
// that weft_transport.h leaves open. That is the time at which frames are sent, how long they take, and in
// which order, inside which function and with which status their memory is given back. It is also the limits
// of each peer, or none, whether a closed connection is reported, in which function and with which reason. It
// shows defects of code that relies on the habits of one network.
#pragma once

#include <weft/weft_transport.h>

#include <cstdint>

namespace weft::test {

// Returns the table of the backend "random", for weft_context_add_transport. Draws from base_seed().
const weft_transport* random_transport();
// Returns that of the backend "random-plain", which has no function that may be absent. Frames leave at once.
const weft_transport* plain_random_transport();

// Lets the connection to rank `to` die by itself in the link that rank `from` has opened last. The link draws
// when and how it reports that. Any thread.
void end_random_connection(int from, int to);

}  // namespace weft::test
