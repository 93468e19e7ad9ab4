// A program's own transport between the threads of this process. It draws at random, from a seed, everything
// that weft_transport.h leaves open. That is the time at which frames are sent, how long they take, and in
// which order and inside which function their memory is given back. It is also the limits of each peer, and
// whether a closed connection is reported. It shows defects of code that relies on the habits of one network.
#pragma once

#include <weft/weft_transport.h>

#include <cstdint>

namespace weft::test {

// Returns the table of the backend "random", for weft_context_add_transport. Draws from base_seed().
const weft_transport* random_transport();

}  // namespace weft::test
