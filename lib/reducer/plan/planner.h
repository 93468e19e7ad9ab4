// Chooses bucket boundaries by a model of a step instead of by size. The model uses the times at which
// gradients become ready and the cost of a collective by size. Large buckets save the fixed cost of
// collectives, but a gradient that waits for the rest of a large bucket is sent late. Pure functions, so one
// rank computes and the others take its plan. Used for re-plans (replan.cpp). Threads: values; one thread at
// a time.
#pragma once

#include <cstdint>
#include <vector>

#include "reducer/manifest/manifest.h"
#include "reducer/plan/plan.h"
#include "reducer/plan/ready_order.h"

namespace weft {

// The cost of collectives, measured at some sizes. Interpolated linearly between them; beyond the last two it
// is extrapolated.
class TransferCost {
 public:
  struct Point {
    uint64_t bytes = 0;
    uint64_t ns = 0;
  };
  // The points may be in any order; at least one. A larger size never costs less than a smaller one.
  explicit TransferCost(std::vector<Point> points);
  uint64_t ns(uint64_t bytes) const;

 private:
  std::vector<Point> points_;  // ascending in both
};

// Returns the time from the last gradient to the end of the last bucket. Buckets are communicated one after
// the other in launch order, each once its last gradient is ready.
uint64_t exposed_ns(const Plan& plan, const ReadyTimes& ready, const TransferCost& cost);

// Returns a plan that launches buckets as they become ready and whose exposed time is the smallest in the
// model. For gradients of one dtype on one device it is optimal. It never exposes more than make_plan's plan
// with these limits and the same order. Among equals, the plan with fewer buckets wins.
Plan plan_by_model(const Manifest& manifest, const std::vector<uint64_t>& limits, const ReadyTimes& ready,
                   const TransferCost& cost);

}  // namespace weft
