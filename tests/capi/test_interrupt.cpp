// weft_context_options.interrupt: it ends every blocking call, on the call's own thread, and nothing else.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_interrupt {

namespace {

using weft_test::kBackends;
using weft_test::kModes;
using weft_test::Rank;
using Time = std::chrono::steady_clock::time_point;

constexpr int64_t kPlentyMs = 10'000;  // for work that takes milliseconds on an idle machine
constexpr uint64_t kCount = 1000;

Time now() {
  return std::chrono::steady_clock::now();
}

int64_t ms_since(Time start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(now() - start).count();
}

template <class Done>
bool within(int64_t ms, Done&& done) {
  for (const Time start = now(); !done();) {
    if (ms_since(start) > ms) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A rank's interrupt callback. Once armed, it requests the interrupt from its second call on.
struct Asked {
  explicit Asked(bool is_armed = false) : armed(is_armed) {}
  std::atomic<bool> armed;
  std::mutex mutex;
  std::set<std::thread::id> threads;  // guarded by mutex, like the members below
  int calls = 0;
  Time first, yes;
  weft_comm* comm = nullptr;  // for calls from inside the callback
  weft_status inside = WEFT_OK;

  static int32_t ask(void* user_data) {
    auto& self = *static_cast<Asked*>(user_data);
    if (!self.armed) return 0;
    const std::lock_guard lock(self.mutex);
    self.threads.insert(std::this_thread::get_id());
    if (self.comm != nullptr) self.inside = weft_barrier(self.comm, nullptr, nullptr);
    if (self.calls++ == 0) self.first = now();
    if (self.calls == 2) self.yes = now();
    return self.calls >= 2 ? 1 : 0;
  }
};

// The objects that a rank's test case uses.
struct Case;
struct Environment {
  Rank& r;
  std::vector<float> from = std::vector<float>(4 * kCount, 1), to = std::vector<float>(4 * kCount);
  std::vector<float> gradient = std::vector<float>(kCount, 1), value = std::vector<float>(kCount, 1);
  int64_t shape = kCount;
  weft_param param = WEFT_PARAM_INIT;
  weft_reducer* reducer = nullptr;
  weft_averager* averager = nullptr;
  weft_request* request = nullptr;
  weft_comm* other = nullptr;

  explicit Environment(Rank& rank) : r(rank) {
    param.name = "weight";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &shape;
    param.parameter = value.data();
  }
  ~Environment() {
    weft_request_release(&request);
    weft_reducer_destroy(&reducer);
    weft_averager_destroy(&averager);
    weft_comm_destroy(&other);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  weft_status create_reducer(uint64_t flags = 0, uint32_t check_interval = 0,
                             weft_planner replan = WEFT_PLANNER_DEFAULT) {
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    options.flags = flags;
    options.check_interval = check_interval;
    options.replan = replan;
    weft_error error = WEFT_ERROR_INIT;
    return weft_reducer_create(r.comm, &options, &reducer, &error);
  }
  weft_status create_averager() {
    weft_average_level level{};
    level.struct_size = sizeof level;
    level.period = 1;
    weft_averager_options options = WEFT_AVERAGER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    options.levels = &level;
    options.level_count = 1;
    return weft_averager_create(r.comm, &options, &averager, nullptr);
  }
  weft_status begin_and_ready() {
    const weft_status begun = weft_reducer_begin(reducer, nullptr);
    return begun != WEFT_OK ? begun : weft_reducer_ready(reducer, 0, gradient.data(), nullptr);
  }
  weft_status step() {
    const weft_status ready = begin_and_ready();
    return ready != WEFT_OK ? ready : weft_reducer_finish(reducer, nullptr);
  }
  // Fails the communicator on all ranks, and waits until this rank has noticed.
  weft_status fail() {
    if (r.rank == 0) weft_comm_abort(r.comm, nullptr);
    return within(kPlentyMs, [&] { return weft_comm_error(r.comm, nullptr) != WEFT_OK; }) ? WEFT_OK
                                                                                          : WEFT_ERR_TIMEOUT;
  }
};

using Call = std::function<weft_status(Environment&)>;
struct Case {
  const char* name;
  Call prepare;  // on all ranks
  Call blocks;   // called on rank 0 only
  bool aborts = true;
};

weft_status nothing(Environment& /*e*/) {
  return WEFT_OK;
}

std::vector<Case> cases() {
  std::vector<Case> all = {
      {"all_reduce", nothing,
       [](Environment& e) {
         return weft_all_reduce(e.r.comm, e.from.data(), e.to.data(), kCount, WEFT_DTYPE_F32, WEFT_OP_SUM,
                                nullptr, nullptr);
       }},
      {"all_reduce of 4 bytes", nothing,
       [](Environment& e) {
         return weft_all_reduce(e.r.comm, e.from.data(), e.to.data(), 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                                nullptr);
       }},
      {"recv", nothing,
       [](Environment& e) {
         return weft_recv(e.r.comm, e.to.data(), kCount, WEFT_DTYPE_F32, 1, nullptr, nullptr);
       }},
      {"recv_tagged", nothing,
       [](Environment& e) {
         return weft_recv_tagged(e.r.comm, e.to.data(), kCount, WEFT_DTYPE_F32, WEFT_ANY_SOURCE, 7, nullptr,
                                 nullptr, nullptr);
       },
       false},
      {"send_tagged", nothing,
       [](Environment& e) {
         e.from.resize(10'000);
         return weft_send_tagged(e.r.comm, e.from.data(), 10'000, WEFT_DTYPE_F32, 1, 7, nullptr, nullptr);
       },
       false},
      {"all_gather_v", nothing,
       [](Environment& e) {
         const uint64_t counts[] = {3, 5};
         return weft_all_gather_v(e.r.comm, e.from.data(), e.to.data(), counts, nullptr, WEFT_DTYPE_F32,
                                  nullptr, nullptr);
       }},
      {"barrier", nothing, [](Environment& e) { return weft_barrier(e.r.comm, nullptr, nullptr); }},
      {"group_end", nothing,
       [](Environment& e) {
         weft_group_begin(e.r.comm);
         weft_recv(e.r.comm, e.to.data(), kCount, WEFT_DTYPE_F32, 1, nullptr, nullptr);
         return weft_group_end(e.r.comm, nullptr);
       }},
      {"comm_split", nothing,
       [](Environment& e) { return weft_comm_split(e.r.comm, 0, 0, &e.other, nullptr); }},
      {"comm_shrink", [](Environment& e) { return e.fail(); },
       [](Environment& e) { return weft_comm_shrink(e.r.comm, nullptr, &e.other, nullptr); }, false},
      {"request_wait", nothing,
       [](Environment& e) {
         weft_barrier(e.r.comm, nullptr, &e.request);
         return weft_request_wait(e.request, 0);
       },
       false},
      {"reducer_create", nothing, [](Environment& e) { return e.create_reducer(); }},
      {"reducer_begin that compares values", [](Environment& e) { return e.create_reducer(0, 1); },
       [](Environment& e) { return weft_reducer_begin(e.reducer, nullptr); }},
      {"reducer_begin that re-plans",
       [](Environment& e) {
         const weft_status created = e.create_reducer(0, 0, WEFT_PLANNER_LIMITS);
         return created != WEFT_OK ? created : e.step();
       },
       [](Environment& e) { return weft_reducer_begin(e.reducer, nullptr); }},
      {"reducer_finish", [](Environment& e) { return e.create_reducer(); },
       [](Environment& e) { return e.step(); }},
      {"reducer_wait_param",
       [](Environment& e) {
         const weft_status created = e.create_reducer();
         return created != WEFT_OK || e.r.rank != 0 ? created : e.begin_and_ready();
       },
       [](Environment& e) { return weft_reducer_wait_param(e.reducer, 0, 0); }, false},
      {"reducer_join", [](Environment& e) { return e.create_reducer(WEFT_REDUCER_UNEVEN); },
       [](Environment& e) { return weft_reducer_join(e.reducer, nullptr, nullptr); }},
      {"reducer_check", [](Environment& e) { return e.create_reducer(); },
       [](Environment& e) { return weft_reducer_check(e.reducer, nullptr); }},
      {"reducer_broadcast", [](Environment& e) { return e.create_reducer(); },
       [](Environment& e) { return weft_reducer_broadcast(e.reducer, nullptr, nullptr); }},
      {"reducer_replan",
       [](Environment& e) {
         const weft_status created = e.create_reducer();
         return created != WEFT_OK ? created : e.step();
       },
       [](Environment& e) { return weft_reducer_replan(e.reducer, nullptr, nullptr); }},
      {"reducer_finish that commits", [](Environment& e) { return e.create_reducer(WEFT_REDUCER_RETAIN); },
       [](Environment& e) { return e.step(); }},
      {"wait_param of a gather",
       [](Environment& e) {
         const weft_status created = e.create_reducer(WEFT_REDUCER_SHARDED);
         return created != WEFT_OK ? created : e.step();
       },
       [](Environment& e) { return weft_reducer_wait_param(e.reducer, 0, 0); }, false},
      {"reducer_fail", [](Environment& e) { return e.create_reducer(); },
       [](Environment& e) {
         const weft_status begun = weft_reducer_begin(e.reducer, nullptr);
         return begun != WEFT_OK ? begun : weft_reducer_fail(e.reducer, "a bad batch");
       }},
      {"averager_create", nothing, [](Environment& e) { return e.create_averager(); }},
      {"averager_step", [](Environment& e) { return e.create_averager(); },
       [](Environment& e) { return weft_averager_step(e.averager, nullptr, nullptr); }},
  };
  return all;
}

// Rank 0 blocks in the case's call, which rank 1 never makes. Returns the failure.
std::string interrupt(const char* backend, int32_t progress, const Case& one) {
  Asked asked;
  std::atomic<bool> over{false};
  std::mutex mutex;
  std::string wrong;
  const auto expect = [&](bool ok, const std::string& what) {
    if (ok) return;
    const std::lock_guard lock(mutex);
    wrong += std::string(one.name) + " over " + backend + ": " + what + "; ";
  };
  const auto body = [&](Rank& r) {
    Environment e(r);
    expect(one.prepare(e) == WEFT_OK, "not prepared");
    weft_error error = WEFT_ERROR_INIT;
    if (r.rank == 0) {
      asked.comm = r.comm;
      asked.armed = true;
      const Time start = now();
      const weft_status status = one.blocks(e);
      const Time end = now();
      asked.armed = false;
      over = true;
      const std::lock_guard lock(asked.mutex);
      expect(status == WEFT_ERR_INTERRUPTED, std::string("it returns ") + weft_status_string(status));
      expect(asked.calls >= 2 && end - asked.yes < std::chrono::milliseconds(1500),
             "it does not end at once after " + std::to_string(asked.calls) + " questions");
      expect(asked.first - start < std::chrono::milliseconds(1000), "it asks late");
      expect(asked.threads == std::set<std::thread::id>{std::this_thread::get_id()},
             "another thread than the blocked one asks");
      expect(asked.inside == WEFT_ERR_STATE, "the callback may block");
    } else {
      expect(within(kPlentyMs * 3, [&] { return over.load(); }), "it does not return");
    }
    if (!one.aborts) {
      const bool worked = std::strcmp(one.name, "comm_shrink") != 0;
      if (worked && r.rank == 0)
        expect(weft_comm_error(r.comm, &error) == WEFT_OK, "the communicator failed");
      if (r.rank == 0)
        weft_comm_abort(r.comm, nullptr);  // ends the operations that still run, so that
                                           // nothing waits for them
      return;
    }
    expect(within(kPlentyMs, [&] { return weft_comm_error(r.comm, &error) != WEFT_OK; }),
           "rank " + std::to_string(r.rank) + " does not learn it");
    expect(error.code == WEFT_ERR_INTERRUPTED && error.failed_count == 1 && error.failed_ranks[0] == 0 &&
               std::strstr(error.text, "rank 0: the program interrupted") != nullptr,
           "rank " + std::to_string(r.rank) + " is told: " + error.text);
    expect((error.evidence == WEFT_EVIDENCE_REPORT) == (r.rank != 0), "evidence");
  };
  wrong += weft_test::run(
      backend, 2, progress, nullptr, body, [](Rank&) {}, 0,
      [&](int rank, weft_context_options& options) {
        if (rank != 0) return;
        options.interrupt = Asked::ask;
        options.interrupt_user_data = &asked;
      });
  return wrong;
}

}  // namespace

TEST_CASE("an interrupt ends every blocking call, and names the rank to the others") {
  for (const char* backend : kBackends) {
    for (const int32_t progress : kModes) {
      for (const Case& one : cases()) CHECK(interrupt(backend, progress, one) == "");
    }
  }
}

TEST_CASE("operations whose waits were interrupted continue") {
  for (const char* backend : kBackends) {
    Asked asked;
    weft_test::Findings findings;
    std::atomic<bool> over{false};
    const auto body = [&](Rank& r) {
      float value = 1;
      weft_request* request = nullptr;
      if (r.rank == 0) {
        findings.expect(weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                                        &request) == WEFT_OK);
        asked.armed = true;
        findings.expect(weft_request_wait(request, 0) == WEFT_ERR_INTERRUPTED);
        over = true;
        // The callback requests an interrupt from now on. Calls that need not wait do not invoke it.
        uint8_t done = 0;
        findings.expect(
            within(kPlentyMs, [&] { return weft_request_test(request, &done) == WEFT_OK && done != 0; }));
        findings.expect(weft_request_wait(request, 0) == WEFT_OK);
      } else {
        findings.expect(within(kPlentyMs, [&] { return over.load(); }));
        findings.expect(weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                                        nullptr) == WEFT_OK);
      }
      findings.expect(value == 2);
      weft_request_release(&request);
    };
    const std::string error = weft_test::run(
        backend, 2, WEFT_PROGRESS_THREAD, nullptr, body, [](Rank&) {}, 0,
        [&](int rank, weft_context_options& options) {
          if (rank != 0) return;
          options.interrupt = Asked::ask;
          options.interrupt_user_data = &asked;
        });
    CHECK(error == "");
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("an interrupt ends comm_create, whichever process serves the store") {
  for (const int32_t rank : {0, 1}) {
    Asked asked(true);
    weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
    context_options.interrupt = Asked::ask;
    context_options.interrupt_user_data = &asked;
    weft_context* context = nullptr;
    REQUIRE(weft_context_create(&context_options, &context, nullptr) == WEFT_OK);
    const std::string store =
        "unix:@weft-interrupt-" + std::to_string(::getpid()) + "-" + std::to_string(rank);
    weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
    options.bootstrap = WEFT_BOOTSTRAP_STORE;
    options.rank = rank;
    options.size = 2;
    options.store = store.c_str();
    weft_comm* comm = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    CHECK(weft_comm_create(context, &options, &comm, &error) == WEFT_ERR_INTERRUPTED);
    CHECK(now() - asked.yes < std::chrono::milliseconds(1500));
    CHECK(std::string(error.text).find("the program interrupted the call") != std::string::npos);
    CHECK(comm == nullptr);
    CHECK(weft_context_destroy(&context) == WEFT_OK);
  }
}

TEST_CASE("ranks that wait in comm_create get an error that names the interrupted rank") {
  Asked asked(true);
  const std::string store = "unix:@weft-interrupt-" + std::to_string(::getpid());
  weft_status statuses[2] = {};
  weft_error errors[2] = {WEFT_ERROR_INIT, WEFT_ERROR_INIT};
  std::vector<std::thread> ranks;
  for (const int r : {0, 1}) {
    ranks.emplace_back([&, r] {
      weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
      if (r == 1) {
        context_options.interrupt = Asked::ask;
        context_options.interrupt_user_data = &asked;
      }
      weft_context* context = nullptr;
      weft_context_create(&context_options, &context, nullptr);
      weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
      options.bootstrap = WEFT_BOOTSTRAP_STORE;
      options.rank = r;
      options.size = 3;  // rank 2 never starts
      options.store = store.c_str();
      weft_comm* comm = nullptr;
      statuses[r] = weft_comm_create(context, &options, &comm, &errors[r]);
      weft_comm_destroy(&comm);
      weft_context_destroy(&context);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(statuses[1] == WEFT_ERR_INTERRUPTED);
  CHECK(statuses[0] == WEFT_ERR_INTERRUPTED);
  CHECK(std::string(errors[0].text).find("rank 1: the program interrupted") != std::string::npos);
  CHECK((errors[0].failed_count == 1 && errors[0].failed_ranks[0] == 1));
}

TEST_CASE("an interrupt ends a destroy that waits for a callback, and the object is destroyed") {
  for (const bool of_context : {false, true}) {
    Asked asked;
    struct Stuck {
      std::atomic<bool> registered{false}, begun{false}, release{false}, returned{false};
    } stuck;
    weft_test::Findings findings;
    const auto body = [&](Rank& r) {
      if (r.rank == 1) {
        findings.expect(within(kPlentyMs, [&] { return stuck.registered.load(); }));
        weft_barrier(r.comm, nullptr, nullptr);
        return;
      }
      weft_request* request = nullptr;
      weft_barrier(r.comm, nullptr, &request);
      weft_request_on_complete(
          request,
          [](void* data, weft_status /*status*/) {
            auto& s = *static_cast<Stuck*>(data);
            s.begun = true;
            within(kPlentyMs * 3, [&] { return s.release.load(); });
            s.returned = true;
          },
          &stuck);
      stuck.registered = true;
      findings.expect(within(kPlentyMs, [&] { return stuck.begun.load(); }));
      weft_request_release(&request);
      asked.armed = true;
      const Time start = now();
      const weft_status status = of_context ? weft_context_destroy(&r.context) : weft_comm_destroy(&r.comm);
      findings.expect(status == WEFT_ERR_INTERRUPTED);
      findings.expect(ms_since(start) < 3000);
      findings.expect(of_context ? r.context == nullptr : r.comm == nullptr);
      stuck.release = true;
      findings.expect(within(kPlentyMs, [&] { return stuck.returned.load(); }));
    };
    const std::string error = weft_test::run(
        "loopback", 2, WEFT_PROGRESS_THREAD, nullptr, body, [](Rank&) {}, 0,
        [&](int rank, weft_context_options& options) {
          if (rank != 0) return;
          options.interrupt = Asked::ask;
          options.interrupt_user_data = &asked;
        });
    CHECK(error == "");
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("calls from a log callback are refused, and change nothing") {
  struct Log {
    std::atomic<weft_request*> request{nullptr};
    std::atomic<int> calls{0}, allowed{0};
    static void write(void* user_data, int32_t /*level*/, const char* /*line*/) {
      auto& self = *static_cast<Log*>(user_data);
      weft_request* request = self.request.load();
      if (request == nullptr) return;
      self.calls++;
      uint8_t done = 0;
      if (weft_request_test(request, &done) != WEFT_ERR_STATE) self.allowed++;
      if (weft_request_release(&request) != WEFT_ERR_STATE || request == nullptr) self.allowed++;
    }
  } log;
  weft_test::Findings findings;
  const auto body = [&](Rank& r) {
    weft_request* request = nullptr;
    weft_barrier(r.comm, nullptr, &request);
    if (r.rank == 0) {
      log.request = request;
      weft_comm_abort(r.comm, "for its line of log");
      log.request = nullptr;
    }
    weft_request_wait(request, 0);
    findings.expect(weft_request_release(&request) == WEFT_OK && request == nullptr);
  };
  const std::string error = weft_test::run(
      "loopback", 2, WEFT_PROGRESS_THREAD, nullptr, body, [](Rank&) {}, 0,
      [&](int rank, weft_context_options& options) {
        if (rank != 0) return;
        options.log = Log::write;
        options.log_user_data = &log;
        options.log_level = WEFT_LOG_ERROR;
      });
  CHECK(error == "");
  CHECK(findings.wrong == 0);
  CHECK(log.calls > 0);
  CHECK(log.allowed == 0);
}

}  // namespace capi_interrupt
