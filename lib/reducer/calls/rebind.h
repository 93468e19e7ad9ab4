// Binds a reducer to another communicator after a failure. Threads: one thread at a time, as begin and
// finish.
#pragma once

#include "reducer/data.h"

namespace weft {

Status rebind_reducer(ReducerData& r, std::shared_ptr<Comm> comm);

}  // namespace weft
