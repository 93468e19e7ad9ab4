// Creates what a reducer consists of. Threads: one thread at a time per communicator.
#pragma once

#include <weft/weft.h>

#include <memory>

#include "base/status.h"
#include "reducer/state.h"

namespace weft {

// Collective over comm, as Reducer::create: the ranks agree on the options, or all get the error of one.
Status create_state(std::shared_ptr<Comm> comm, const Status& given, const weft_reducer_options& options,
                    std::shared_ptr<Hook> hook, std::shared_ptr<ReducerState>* made);

}  // namespace weft
