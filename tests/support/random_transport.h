// A program's own transport between the threads of this process. It draws at random, from a seed, everything
// that weft_transport.h leaves open: when frames are sent, when their memory is given back and in which
// order, from inside which function, how long frames are on their way, the limits of each peer, and what a
// closed connection reports. It shows defects of code that relies on the habits of one network.
#pragma once

#include <weft/weft_transport.h>

#include <cstdint>

namespace weft::test {

// Returns the table of the backend "random", for weft_context_add_transport. Draws from base_seed().
const weft_transport* random_transport();

}  // namespace weft::test
