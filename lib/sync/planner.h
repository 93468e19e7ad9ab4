// Where buckets begin and end by a model of a step, instead of by their size: from when gradients become
// ready and what a collective of so many bytes costs. Large buckets save what every collective costs; a
// gradient that waits for the rest of a large bucket travels late. Pure functions, so one rank computes and
// the others take its plan. Used where a reducer re-plans (replan.cpp). Threads: values; one thread at a
// time.
#pragma once

#include <cstdint>
#include <vector>

#include "sync/manifest.h"
#include "sync/plan.h"
#include "sync/ready_order.h"

namespace weft {

// What collectives cost, measured at some sizes: linear between them, and beyond the last two as there.
class TransferCost {
 public:
  struct Point {
    uint64_t bytes = 0;
    uint64_t ns = 0;
  };
  // Of any order. A larger one never counts as cheaper than a smaller one. At least one.
  explicit TransferCost(std::vector<Point> points);
  uint64_t ns(uint64_t bytes) const;

 private:
  std::vector<Point> points_;  // ascending in both
};

// How long after the last gradient the last bucket is through: buckets travel one after the other in the
// order of launch, each from when its last gradient is ready.
uint64_t exposed_ns(const Plan& plan, const ReadyTimes& ready, const TransferCost& cost);

// What is launched first of what is ready.
enum class LaunchOrder {
  kReadiness,    // what was ready first
  kFirstNeeded,  // the bucket with the first parameter of the list: the next forward pass begins there
};

// Of plans that launch buckets in the order in which they become ready, the one of which the model says that
// it exposes least; with gradients of one dtype on one device it is the least there is. Never one that
// exposes more than make_plan's with these limits and the same order; of equals that with fewer buckets.
// kFirstNeeded: no bucket of several parameters is larger than the last limit, so that there is something to
// choose from; of the best such plan the buckets are launched in first_needed's order, which exposes as much.
Plan plan_by_model(const Manifest& manifest, const std::vector<uint64_t>& limits, const ReadyTimes& ready,
                   const TransferCost& cost, LaunchOrder order = LaunchOrder::kReadiness);

// The same buckets, launched in another order: whenever one is through, of those that are ready by then the
// one whose first parameter comes first in the list; if none is, the next one that becomes ready. The network
// is never idle while a bucket waits, so the last one is through no later than in any other order.
Plan first_needed(const Plan& plan, const ReadyTimes& ready, const TransferCost& cost);

}  // namespace weft
