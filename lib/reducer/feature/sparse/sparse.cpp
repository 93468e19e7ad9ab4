#include "reducer/feature/sparse/sparse.h"

namespace weft {

const StepFeature kSparse{.planner = sparse_planner,
                          .copies = add_sparse_copies,
                          .works = add_scale_work,
                          .stages = add_sparse_stages};

}  // namespace weft
