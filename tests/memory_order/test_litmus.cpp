// The explorer's own tests: outcomes that the C++ standard allows are found, and those that it forbids are
// not.
#include <array>
#include <atomic>
#include <set>

#include "explorer.h"
#include "support/catch.h"

namespace weft::model {
namespace {

using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

struct Litmus {
  std::atomic<int> x{0}, y{0};
  int plain = 0;
  std::array<int, 4> r{-1, -1, -1, -1};
};

// Returns true if some execution ends with these results.
bool can_end(const std::vector<std::function<void(Litmus&)>>& threads, const std::array<int, 4>& results) {
  const Result result = explore(
      [&] {
        Litmus memory;
        std::vector<std::function<void()>> bodies;
        for (const auto& thread : threads) bodies.push_back([&] { thread(memory); });
        run(bodies);
        require(memory.r != results, "found");
      },
      {5});
  CHECK(result.complete);
  CHECK((result.passed || result.failure == "found"));
  return !result.passed;
}

template <std::memory_order kStore, std::memory_order kLoad>
bool message_passing() {
  return can_end({[](Litmus& m) {
                    m.x.store(1, memory_order_relaxed);
                    m.y.store(1, kStore);
                  },
                  [](Litmus& m) {
                    m.r[0] = m.y.load(kLoad);
                    m.r[1] = m.x.load(memory_order_relaxed);
                  }},
                 {1, 0, -1, -1});
}

template <std::memory_order kStore, std::memory_order kLoad>
bool store_buffering() {
  return can_end({[](Litmus& m) {
                    m.x.store(1, kStore);
                    m.r[0] = m.y.load(kLoad);
                  },
                  [](Litmus& m) {
                    m.y.store(1, kStore);
                    m.r[1] = m.x.load(kLoad);
                  }},
                 {0, 0, -1, -1});
}

TEST_CASE("message passing needs a release and an acquire") {
  CHECK_FALSE(message_passing<memory_order_release, memory_order_acquire>());
  CHECK(message_passing<memory_order_relaxed, memory_order_acquire>());
  CHECK(message_passing<memory_order_release, memory_order_relaxed>());
}

TEST_CASE("store buffering is forbidden for sequentially consistent operations only") {
  CHECK_FALSE(store_buffering<memory_order_seq_cst, memory_order_seq_cst>());
  CHECK(store_buffering<memory_order_release, memory_order_acquire>());
  CHECK(store_buffering<memory_order_seq_cst, memory_order_acquire>());
  CHECK(store_buffering<memory_order_release, memory_order_seq_cst>());
}

template <std::memory_order kStore>
bool buffering_with_update() {
  return can_end({[](Litmus& m) {
                    m.x.store(1, kStore);
                    m.r[0] = m.y.load(memory_order_seq_cst);
                  },
                  [](Litmus& m) {
                    m.y.store(1, memory_order_seq_cst);
                    m.r[1] = m.x.exchange(2, memory_order_seq_cst);
                  }},
                 {0, 0, -1, -1});
}

TEST_CASE("an update may come before a store that was executed earlier") {
  CHECK_FALSE(buffering_with_update<memory_order_seq_cst>());
  CHECK(buffering_with_update<memory_order_release>());
}

template <std::memory_order kFence>
bool fenced_buffering() {
  return can_end({[](Litmus& m) {
                    m.x.store(1, memory_order_relaxed);
                    std::atomic_thread_fence(kFence);
                    m.r[0] = m.y.load(memory_order_relaxed);
                  },
                  [](Litmus& m) {
                    m.y.store(1, memory_order_relaxed);
                    std::atomic_thread_fence(kFence);
                    m.r[1] = m.x.load(memory_order_relaxed);
                  }},
                 {0, 0, -1, -1});
}

TEST_CASE("fences order as the standard says") {
  CHECK_FALSE(fenced_buffering<memory_order_seq_cst>());
  CHECK(fenced_buffering<memory_order_acq_rel>());
  const auto passing = [](auto store_fence, auto load_fence) {
    return can_end({[=](Litmus& m) {
                      m.x.store(1, memory_order_relaxed);
                      store_fence();
                      m.y.store(1, memory_order_relaxed);
                    },
                    [=](Litmus& m) {
                      m.r[0] = m.y.load(memory_order_relaxed);
                      load_fence();
                      m.r[1] = m.x.load(memory_order_relaxed);
                    }},
                   {1, 0, -1, -1});
  };
  const auto release = [] { std::atomic_thread_fence(memory_order_release); };
  const auto acquire = [] { std::atomic_thread_fence(memory_order_acquire); };
  const auto none = [] {};
  CHECK_FALSE(passing(release, acquire));
  CHECK(passing(none, acquire));
  CHECK(passing(release, none));
}

TEST_CASE("stores of two threads may be ordered against their execution") {
  const auto stores = [](auto order) {
    return can_end({[=](Litmus& m) {
                      m.x.store(1, order);
                      m.y.store(2, order);
                    },
                    [=](Litmus& m) {
                      m.y.store(1, order);
                      m.x.store(2, order);
                    },
                    [](Litmus& m) {
                      m.r[0] = m.x.load(memory_order_acquire);
                      m.r[1] = m.x.load(memory_order_acquire);
                      m.r[2] = m.y.load(memory_order_acquire);
                      m.r[3] = m.y.load(memory_order_acquire);
                    }},
                   {2, 1, 2, 1});
  };
  CHECK(stores(memory_order_relaxed));
  CHECK_FALSE(stores(memory_order_seq_cst));
}

TEST_CASE("reads of one word never go back") {
  CHECK_FALSE(can_end({[](Litmus& m) { m.x.store(1, memory_order_relaxed); },
                       [](Litmus& m) {
                         m.r[0] = m.x.load(memory_order_relaxed);
                         m.r[1] = m.x.load(memory_order_relaxed);
                       }},
                      {1, 0, -1, -1}));
}

TEST_CASE("a release sequence continues through updates, and not through stores") {
  const auto sequence = [](bool update) {
    return can_end({[=](Litmus& m) {
                      m.x.store(1, memory_order_relaxed);
                      m.y.store(1, memory_order_release);
                      if (!update) m.y.store(2, memory_order_relaxed);
                    },
                    [=](Litmus& m) {
                      if (update) m.y.fetch_add(1, memory_order_relaxed);
                    },
                    [](Litmus& m) {
                      m.r[0] = m.y.load(memory_order_acquire);
                      m.r[1] = m.x.load(memory_order_relaxed);
                    }},
                   {2, 0, -1, -1});
  };
  CHECK_FALSE(sequence(true));
  CHECK(sequence(false));
}

TEST_CASE("two readers see independent stores in one order only if all is sequentially consistent") {
  const auto readers = [](auto order) {
    return can_end({[](Litmus& m) { m.x.store(1, memory_order_seq_cst); },
                    [](Litmus& m) { m.y.store(1, memory_order_seq_cst); },
                    [=](Litmus& m) {
                      m.r[0] = m.x.load(order);
                      m.r[1] = m.y.load(order);
                    },
                    [=](Litmus& m) {
                      m.r[2] = m.y.load(order);
                      m.r[3] = m.x.load(order);
                    }},
                   {1, 0, 1, 0});
  };
  CHECK_FALSE(readers(memory_order_seq_cst));
  CHECK(readers(memory_order_acquire));
}

TEST_CASE("an unordered plain access is a data race") {
  const auto publish = [](auto order) {
    return explore([=] {
             Litmus m;
             run({[&] {
                    m.plain = 1;
                    m.x.store(1, order);
                  },
                  [&] {
                    if (m.x.load(memory_order_acquire) == 1) m.plain = 2;
                  }});
           })
        .failure;
  };
  CHECK(publish(memory_order_release) == "");
  CHECK(publish(memory_order_relaxed).find("data race") == 0);
}

TEST_CASE("a lost wake-up ends in threads that cannot continue") {
  const auto wakes = [](bool announces) {
    return explore([=] {
             std::atomic<uint32_t> word{0};
             std::atomic<bool> sleeping{false};
             run({[&] {
                    sleeping.store(true, announces ? memory_order_seq_cst : memory_order_release);
                    if (word.load(memory_order_seq_cst) == 0) clock().sleep(word, 0, UINT64_MAX);
                  },
                  [&] {
                    word.store(1, memory_order_seq_cst);
                    if (sleeping.load(memory_order_seq_cst)) clock().wake_all(word);
                  }});
           })
        .failure;
  };
  CHECK(wakes(true) == "");
  CHECK(wakes(false) == "no thread can continue");
}

}  // namespace
}  // namespace weft::model
