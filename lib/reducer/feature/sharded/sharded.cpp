#include "reducer/feature/sharded/sharded.h"

#include "reducer/feature/sharded/gather_calls.h"

namespace weft {

const StepFeature kSharded{.flag = {WEFT_NAMED(WEFT_REDUCER_SHARDED)}, .before_step = end_owed_gather};

}  // namespace weft
