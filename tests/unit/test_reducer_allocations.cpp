// A step in steady state allocates nothing. Its own program, because it replaces operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include "reducer_rig.h"
#include "shm/backend.h"

namespace {

thread_local bool counting = false;
std::atomic<uint64_t> allocations{0};

}  // namespace

void* operator new(size_t size) {
  if (counting) allocations++;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

using namespace weft;
using namespace weft::test;

TEST_CASE("a steady-state step allocates nothing") {
  const Model model(mixed_params());
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    RanksOptions options;
    options.mode = Engine::Mode::kCaller;  // all of it happens on this thread
    options.backend = &shm::backend();
    const auto failures = run_threads(
        2,
        [&](Rank& self) {
          std::unique_ptr<Reducer> reducer;
          self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.mode = mode}), "create");
          if (!reducer) return;
          Gradients gradients(model);
          for (int step = 0; step < 20; step++) {
            // Queues have grown to what they need by then.
            counting = step >= 10 && self.rank == 0;
            bool ok = reducer->begin(nullptr).ok();
            for (size_t i = 0; i < model.size(); i++) {
              ok &= reducer->ready(i, mode == WEFT_GRADIENT_COPY ? gradients[i] : nullptr, nullptr).ok();
            }
            ok &= reducer->finish({}).ok();
            counting = false;
            self.expect(ok, "step");
          }
        },
        options);
    check(failures);
    CHECK(allocations.exchange(0) == 0);
  }
}
