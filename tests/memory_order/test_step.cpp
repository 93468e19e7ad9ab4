// A reducer's step: threads mark gradients as ready while others open, launch and end the step.
#include <vector>

#include "audit.h"
#include "comm/departures.h"
#include "comm/first_failure.h"
#include "reducer/bucket/copy_factor.h"
#include "reducer/step/readiness.h"
#include "support/catch.h"
#include "transport/request.h"

namespace weft {
namespace {

using model::require;
using model::run;

template <class Condition>
void wait_for(const Condition& condition) {
  for (uint32_t round = 0; !condition(); round++) model::clock().relax(round);
}

Plan one_bucket(size_t params) {
  Plan plan;
  plan.buckets.resize(1);
  for (size_t i = 0; i < params; i++) {
    plan.buckets[0].params.push_back(static_cast<uint32_t>(i));
    plan.bucket_of.push_back(0);
  }
  return plan;
}

// Two threads mark a gradient each; the launching thread reads both once the bucket is full, and opens the
// next step.
void synchronised_steps(bool unless_last) {
  const Plan plan = one_bucket(2);
  Readiness readiness(plan);
  int opened = 0, gradients[2] = {};
  const auto all_are = [&](uint32_t stamp) {
    return gradients[0] == static_cast<int>(stamp) && gradients[1] == static_cast<int>(stamp);
  };
  const auto mark = [&](uint64_t param) {
    for (uint32_t stamp = 1; stamp <= 2; stamp++) {
      wait_for([&] { return readiness.step().open() && readiness.step().stamp() == stamp; });
      require(opened == static_cast<int>(stamp), "what open() publishes");
      if (readiness.use(param, stamp) != Use::kLast) require(false, "the use is refused");
      gradients[param] = static_cast<int>(stamp);
      if (unless_last && readiness.arrive_unless_last(0)) continue;
      if (unless_last) require(all_are(stamp), "the last one does not see all gradients");
      readiness.arrive(0);
    }
  };
  run({[&] {
         for (uint32_t stamp = 1; stamp <= 2; stamp++) {
           opened = static_cast<int>(stamp);
           readiness.open(stamp, false);
           wait_for([&] { return readiness.full(0); });
           require(all_are(stamp), "a full bucket lacks a gradient");
         }
       },
       [&] { mark(0); }, [&] { mark(1); }});
}

// Two threads use a parameter; the one with the last use reads what both have added.
void uses() {
  const Plan plan = one_bucket(1);
  Readiness readiness(plan);
  int added[2] = {};
  readiness.open(1, false);
  const auto use = [&](int i) {
    added[i] = 1;
    if (readiness.use(0, 1, 2) == Use::kLast) require(added[0] + added[1] == 2, "a use is missing");
  };
  run({[&] { use(0); }, [&] { use(1); }});
  require(readiness.uses(0, 1) == 2, "a use is not counted");
}

// A local step is closed while a thread copies a gradient: either the copy is refused, or it is awaited.
void local_step() {
  const Plan plan = one_bucket(1);
  Readiness readiness(plan);
  int gradient = 0;
  readiness.open(1, true);
  const auto copy = [&] {
    const StepWord step = readiness.step();
    if (!step.open() || readiness.use(0, step.stamp()) != Use::kLast || !readiness.enter(0, step)) return;
    gradient = 1;
    readiness.leave(0);
  };
  run({[&] {
         readiness.close();
         wait_for([&] { return !readiness.copying(0); });
         gradient = 2;
         readiness.open(2, true);
       },
       copy});
}

// A local step is closed and opened again for a thread that still copies a gradient. Its copy is awaited when
// the step is closed for good.
void reopened_step() {
  const Plan plan = one_bucket(1);
  Readiness readiness(plan);
  int gradient = 0;
  readiness.open(1, true);
  run({[&] {
         readiness.close();
         if (readiness.copying(0)) readiness.reopen();
         readiness.close();
         wait_for([&] { return !readiness.copying(0); });
         gradient = 2;
       },
       [&] {
         const StepWord step = readiness.step();
         if (!step.open() || readiness.use(0, step.stamp()) != Use::kLast || !readiness.enter(0, step))
           return;
         gradient = 1;
         readiness.leave(0);
       }});
}

// One thread leaves a parameter out or claims it while the other one marks it: only one gets it.
void claims(bool leaves_out) {
  const Plan plan = one_bucket(1);
  Readiness readiness(plan);
  int owner = 0;
  readiness.open(1, false);
  const auto own = [&](bool got) {
    if (!got) return;
    owner++;
    readiness.arrive(0);
  };
  run({[&] { own(readiness.use(0, 1) == Use::kLast); },
       [&] { own(leaves_out ? readiness.leave_out(0, 1) : readiness.claim(0, 1)); },
       [&] {
         wait_for([&] { return readiness.full(0); });
         require(owner == 1, "owners");
       }});
}

// After a failed step no thread touches the bucket once the step has settled.
void settling() {
  const Plan plan = one_bucket(2);
  Readiness readiness(plan);
  int gradient = 0;
  readiness.open(1, false);
  run({[&] {
         if (readiness.use(0, 1) != Use::kLast) return;
         gradient = 1;
         readiness.arrive(0);
       },
       [&] {
         wait_for([&] { return readiness.claimed(0, 1); });
         wait_for([&] { return readiness.settled(); });
         require(gradient == 1, "settled too early");
         gradient = 2;
       }});
}

// A lane completes requests, whose submitter then reads the buffer and uses the request again.
void requests() {
  Request request;
  std::mutex mutex;
  Request* queued = nullptr;
  int buffer = 0;
  run({[&] {
         for (int i = 1; i <= 2; i++) {
           request.reset();
           {
             const std::lock_guard lock(mutex);
             queued = &request;
           }
           const Waiter waiter(request);
           wait_for([&] { return request.done(); });
           require(buffer == i && request.result.ok() && request.moved_bytes == 8, "what done() publishes");
         }
       },
       [&] {
         for (int i = 1; i <= 2; i++) {
           Request* taken = nullptr;
           wait_for([&] {
             const std::lock_guard lock(mutex);
             return (taken = std::exchange(queued, nullptr)) != nullptr;
           });
           buffer = i;
           taken->moved_bytes = 8;
           (void)taken->waiters.load(std::memory_order_relaxed);
           taken->complete({});
         }
       }});
}

// One of two failures is kept; a thread that sees that there is one sees what was done before.
void failures() {
  FirstFailure failure;
  int before = 0;
  const auto fail = [&](int by) { failure.set({}, [&] { before = by; }); };
  run({[&] { fail(1); }, [&] { fail(2); }, [&] { require(!failure.failed() || before != 0, "before()"); }});
}

void departures() {
  Departures departures(2);
  int last_words = 0;
  run({[&] {
         last_words = 1;
         departures.set_departed(1);
         departures.set_gone(1);
       },
       [&] {
         if (departures.any()) require(departures.departed(1), "any() without a rank");
         if (departures.departed(1)) require(last_words == 1, "departed() before the last words");
       },
       [&] {
         if (departures.gone(1))
           require(departures.departed(1) && last_words == 1, "gone() before departed()");
       }});
}

// The engine publishes a step's factor; a copy multiplies by it, and marks its parameter.
void copy_factors() {
  const Plan plan = one_bucket(1);
  Readiness readiness(plan);
  CopyFactor factor(1);
  PlannedBucket bucket;
  bucket.params = {0};
  bucket.offsets = {0};
  bucket.count = 1;
  run({[&] {
         for (uint32_t stamp = 1; stamp <= 2; stamp++) {
           readiness.open(stamp, false);
           factor.know(stamp, stamp + 1);
           wait_for([&] { return readiness.full(0); });
           (void)factor.range(bucket, 0, stamp).done;
         }
       },
       [&] {
         for (uint32_t stamp = 1; stamp <= 2; stamp++) {
           wait_for([&] { return readiness.step().open() && readiness.step().stamp() == stamp; });
           if (readiness.use(0, stamp) != Use::kLast) require(false, "the use is refused");
           const double factored = factor.take(0, stamp);
           require(factored == 1 || factored == stamp + 1, "another step's factor");
           readiness.arrive(0);
         }
       }});
}

TEST_CASE("a reducer's step is correct under the C++ memory model, and needs its orders") {
  model::audit(
      {{"uses", uses, 4, 4},
       {"claims", [] { claims(false); }, 3, 3},
       {"left out", [] { claims(true); }, 3, 3},
       {"local step", local_step, 4, 4},
       {"reopened step", reopened_step, 4, 3},
       {"settling", settling, 4, 4},
       {"requests", requests, 3, 3},
       {"failures", failures, 3, 3},
       {"departures", departures, 4, 4},
       {"factors", copy_factors, 3, 3},
       {"synchronised steps", [] { synchronised_steps(false); }, 2, 2},
       {"steps that count the last gradient apart", [] { synchronised_steps(true); }, 2, 2}},
      {"lib/comm/departures.h", "lib/comm/first_failure.h", "lib/reducer/bucket/copy_factor.h",
       "lib/reducer/bucket/copy_factor.cpp", "lib/reducer/step/readiness.h", "lib/transport/request.h"});
}

}  // namespace
}  // namespace weft
