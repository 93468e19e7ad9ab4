// Stages of a program's own hook that run, or never return, while everything around them fails or ends.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_hook_stages {

using weft_test::Findings;
using weft_test::Rank;

namespace {

constexpr int64_t kCount = 1000;

// A hook's data on one rank. Its stages return when `release` is set.
struct User {
  bool holds = true;
  bool pends = false;  // the stages then return pending
  float* buffer = nullptr;
  std::atomic<bool> begun{false}, release{false}, returned{false}, freed{false};
};

bool until(const std::atomic<bool>& flag) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!flag && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return flag;
}

// A barrier for ranks inside their stages: what one of them does next finds every stage started.
class RankBarrier {
 public:
  explicit RankBarrier(int ranks) : missing_(ranks) {}
  bool arrive(const User& user) {
    if (!until(user.begun)) return false;
    if (--missing_ == 0) all_ = true;
    return until(all_);
  }

 private:
  std::atomic<int> missing_;
  std::atomic<bool> all_{false};
};

weft_hook* make_hook(weft_context* context, User* user) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "slow";
  table.plan = [](void*, const weft_bucket* bucket, weft_hook_plan* plan, char*) {
    plan->scratch_bytes = 256;
    plan->collective_count = 1;
    plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
    plan->collectives[0].dtype = bucket->dtype;
    plan->collectives[0].op = WEFT_OP_AVG;
    plan->collectives[0].count = bucket->count;
    return WEFT_OK;
  };
  table.stage = [](void* data, const weft_bucket* bucket, weft_stage* stage, char*) {
    auto& u = *static_cast<User*>(data);
    if (stage->index != 0 || !u.holds) return WEFT_OK;
    u.begun = true;
    while (!u.release) std::this_thread::yield();
    std::memset(bucket->buffer, 0, bucket->count * sizeof(float));  // the buffers are still valid
    std::memset(bucket->scratch, 0, bucket->scratch_bytes);
    u.buffer = static_cast<float*>(bucket->buffer);
    stage->pending = u.pends ? 1 : 0;
    u.returned = true;
    return WEFT_OK;
  };
  table.free_user_data = [](void* data) { static_cast<User*>(data)->freed = true; };
  weft_hook* hook = nullptr;
  weft_hook_create_custom(context, &table, user, &hook);
  return hook;
}

weft_reducer* make_reducer(weft_comm* comm, weft_hook* hook, int64_t timeout_ms = 0) {
  const weft_param param = {sizeof param, "p", WEFT_DTYPE_F32, 1, &kCount, nullptr, 0, 0, 0};
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  options.hook = hook;
  options.timeout_ms = timeout_ms;
  weft_reducer* reducer = nullptr;
  weft_reducer_create(comm, &options, &reducer, nullptr);
  return reducer;
}

// Runs a step up to its finish.
bool begin(weft_reducer* reducer, std::vector<float>& gradient, float value) {
  gradient.assign(kCount, value);
  return weft_reducer_begin(reducer, nullptr) == WEFT_OK &&
         weft_reducer_ready(reducer, 0, gradient.data(), nullptr) == WEFT_OK;
}

}  // namespace

TEST_CASE(
    "abort by another thread ends a finish that waits for a stage; rebind waits until it has returned") {
  for (const char* backend : {"loopback", "shm"}) {
    Findings findings;
    RankBarrier begun(2);
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      weft_comm* second = nullptr;
      findings.expect(weft_comm_split(r.comm, 0, r.rank, &second, nullptr) == WEFT_OK);
      User user;
      weft_hook* hook = make_hook(r.context, &user);
      weft_reducer* reducer = make_reducer(r.comm, hook);
      std::vector<float> gradient;
      findings.expect(begin(reducer, gradient, 1));
      findings.expect(begun.arrive(user));
      std::thread aborter([&] {
        if (r.rank == 0) findings.expect(weft_comm_abort(r.comm, "enough") == WEFT_OK);
      });
      findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_ABORTED);
      aborter.join();
      // While the stage runs, rebinding to another communicator and saving the hook are refused.
      weft_error why = WEFT_ERROR_INIT;
      findings.expect(weft_reducer_rebind(reducer, second, &why) == WEFT_ERR_STATE);
      findings.expect(std::strstr(why.text, "a stage of hook 'slow' has not returned") != nullptr);
      user.release = true;
      user.holds = false;
      findings.expect(weft_reducer_rebind(reducer, second, nullptr) == WEFT_OK);
      findings.expect(begin(reducer, gradient, static_cast<float>(r.rank)));
      findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
      findings.expect(gradient == std::vector<float>(kCount, 0.5f));
      findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
      findings.expect(weft_hook_destroy(&hook) == WEFT_OK);
      findings.expect(user.freed);
      weft_comm_destroy(&second);
    });
    INFO(backend);
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("an abandoned stage that then returns pending keeps its bucket and blocks a rebind") {
  Findings findings;
  RankBarrier begun(2);
  const std::string error = weft_test::run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    weft_comm* second = nullptr;
    findings.expect(weft_comm_split(r.comm, 0, r.rank, &second, nullptr) == WEFT_OK);
    User user;
    user.pends = true;
    weft_hook* hook = make_hook(r.context, &user);
    weft_reducer* reducer = make_reducer(r.comm, hook, 100);
    std::vector<float> gradient;
    findings.expect(begin(reducer, gradient, 1));
    findings.expect(begun.arrive(user));
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_TIMEOUT);
    user.release = true;
    findings.expect(until(user.returned));
    weft_error why = WEFT_ERROR_INIT;
    findings.expect(weft_reducer_rebind(reducer, second, &why) == WEFT_ERR_STATE);
    findings.expect(std::strstr(why.text, "a stage of hook 'slow' was given up before") != nullptr);
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
    // The thread that works on the stage does not know of the failure.
    std::fill_n(user.buffer, kCount, 7.0f);
    weft_reducer* next = make_reducer(second, hook);
    user.holds = false;
    findings.expect(begin(next, gradient, 1));
    std::fill_n(user.buffer, kCount, 8.0f);
    findings.expect(weft_reducer_finish(next, nullptr) == WEFT_OK);
    findings.expect(gradient == std::vector<float>(kCount, 1));
    findings.expect(weft_reducer_destroy(&next) == WEFT_OK);
    findings.expect(weft_hook_destroy(&hook) == WEFT_OK);
    weft_comm_destroy(&second);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("while a stage does not return, other hooks of the context work") {
  Findings findings;
  RankBarrier begun(2);
  const std::string error = weft_test::run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    weft_comm* second = nullptr;
    findings.expect(weft_comm_split(r.comm, 0, r.rank, &second, nullptr) == WEFT_OK);
    User user;
    weft_hook* hook = make_hook(r.context, &user);
    weft_reducer* reducer = make_reducer(r.comm, hook, 100);
    std::vector<float> gradient;
    findings.expect(begin(reducer, gradient, 1));
    findings.expect(begun.arrive(user));
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_TIMEOUT);
    for (const char* name : {"int8", "mine"}) {
      User quick;
      quick.holds = false;
      weft_hook* other = std::strcmp(name, "mine") == 0 ? make_hook(r.context, &quick) : nullptr;
      if (other == nullptr) weft_hook_create(r.context, name, nullptr, &other);
      weft_reducer* works = make_reducer(second, other);
      std::vector<float> own;
      findings.expect(begin(works, own, 3));
      findings.expect(weft_reducer_finish(works, nullptr) == WEFT_OK);
      findings.expect(own == std::vector<float>(kCount, 3));
      findings.expect(weft_reducer_destroy(&works) == WEFT_OK);
      findings.expect(weft_hook_destroy(&other) == WEFT_OK);
    }
    user.release = true;
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
    findings.expect(weft_hook_destroy(&hook) == WEFT_OK);
    weft_comm_destroy(&second);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("a stage that does not return blocks no other reducer, even if no thread waits for its own") {
  Findings findings;
  RankBarrier begun(2);
  const std::string error = weft_test::run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    weft_comm* second = nullptr;
    findings.expect(weft_comm_split(r.comm, 0, r.rank, &second, nullptr) == WEFT_OK);
    User user, quick;
    quick.holds = false;
    weft_hook* hook = make_hook(r.context, &user);
    weft_hook* other = make_hook(r.context, &quick);
    weft_reducer* reducer = make_reducer(r.comm, hook);
    weft_reducer* works = make_reducer(second, other, 20'000);
    std::vector<float> gradient, own;
    findings.expect(begin(reducer, gradient, 1));
    findings.expect(begun.arrive(user));
    findings.expect(begin(works, own, 3));
    findings.expect(weft_reducer_finish(works, nullptr) == WEFT_OK);
    findings.expect(own == std::vector<float>(kCount, 3));
    user.release = true;
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    findings.expect(gradient == std::vector<float>(kCount, 0));
    for (weft_reducer* one : {reducer, works}) findings.expect(weft_reducer_destroy(&one) == WEFT_OK);
    for (weft_hook* one : {hook, other}) findings.expect(weft_hook_destroy(&one) == WEFT_OK);
    weft_comm_destroy(&second);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("a step that exceeds its deadline behind another hook's stage reports that") {
  Findings findings;
  RankBarrier begun(2);
  const std::string error = weft_test::run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    weft_comm* second = nullptr;
    findings.expect(weft_comm_split(r.comm, 0, r.rank, &second, nullptr) == WEFT_OK);
    User user, quick;
    quick.holds = false;
    weft_hook* hook = make_hook(r.context, &user);
    weft_hook* other = make_hook(r.context, &quick);
    weft_reducer* reducer = make_reducer(r.comm, hook);
    weft_reducer* hurried = make_reducer(second, other, 100);
    std::vector<float> gradient, own;
    findings.expect(begin(reducer, gradient, 1));
    findings.expect(begun.arrive(user));
    findings.expect(begin(hurried, own, 3));
    weft_error why = WEFT_ERROR_INIT;
    findings.expect(weft_reducer_finish(hurried, nullptr) == WEFT_ERR_TIMEOUT);
    findings.expect(weft_reducer_error(hurried, &why) == WEFT_ERR_TIMEOUT);
    findings.expect(std::strstr(why.text, "waits until another stage or call of a hook") != nullptr);
    user.release = true;
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    for (weft_reducer* one : {reducer, hurried}) findings.expect(weft_reducer_destroy(&one) == WEFT_OK);
    for (weft_hook* one : {hook, other}) findings.expect(weft_hook_destroy(&one) == WEFT_OK);
    weft_comm_destroy(&second);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("a hook serves its own context alone") {
  Findings findings;
  const std::string error = weft_test::run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    weft_context* another = nullptr;
    findings.expect(weft_context_create(nullptr, &another, nullptr) == WEFT_OK);
    User user;
    weft_hook* hook = make_hook(another, &user);
    findings.expect(make_reducer(r.comm, hook) == nullptr);
    weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
    weft_error why = WEFT_ERROR_INIT;
    params.inner = hook;
    params.error = &why;
    weft_hook* around = nullptr;
    findings.expect(weft_hook_create(r.context, "fp16", &params, &around) == WEFT_ERR_ARG);
    findings.expect(std::strstr(why.text, "weft_hook_params.inner belongs to another context") != nullptr);
    findings.expect(weft_hook_destroy(&hook) == WEFT_OK);
    findings.expect(weft_context_destroy(&another) == WEFT_OK);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("a context may be destroyed while a stage runs, and waits for it") {
  Findings findings;
  RankBarrier begun(2);
  const std::string error = weft_test::run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    User user;
    weft_hook* hook = make_hook(r.context, &user);
    weft_reducer* reducer = make_reducer(r.comm, hook);
    std::vector<float> gradient;
    findings.expect(begin(reducer, gradient, 1));
    findings.expect(begun.arrive(user));
    std::thread releaser([&] {
      while (weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK) {
      }
      user.release = true;  // the context is being destroyed meanwhile
    });
    findings.expect(weft_context_destroy(&r.context) == WEFT_OK);
    releaser.join();
    findings.expect(weft_reducer_finish(reducer, nullptr) != WEFT_OK);
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
    findings.expect(weft_hook_destroy(&hook) == WEFT_OK);
    findings.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
    findings.expect(user.freed);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("everything can be destroyed although a stage never returns, within the time that callbacks have") {
  Findings findings;
  RankBarrier begun(2);
  User users[2];
  const auto began = std::chrono::steady_clock::now();
  const std::string error = weft_test::run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    User& user = users[r.rank];
    weft_hook* hook = make_hook(r.context, &user);
    weft_reducer* reducer = make_reducer(r.comm, hook, 100);
    std::vector<float> gradient;
    findings.expect(begin(reducer, gradient, 1));
    findings.expect(begun.arrive(user));
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_TIMEOUT);
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
    findings.expect(weft_hook_destroy(&hook) == WEFT_OK);
    findings.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
    findings.expect(weft_context_destroy(&r.context) == WEFT_OK);
    findings.expect(!user.freed);
  });
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(30));
  for (User& user : users) {
    user.release = true;
    CHECK(until(user.freed));
  }
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("a child that is forked while a stage runs gets errors, and the parent continues") {
  Findings findings;
  RankBarrier begun(1);
  const std::string error = weft_test::run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    User user;
    weft_hook* hook = make_hook(r.context, &user);
    weft_reducer* reducer = make_reducer(r.comm, hook);
    std::vector<float> gradient;
    findings.expect(begin(reducer, gradient, 1));
    findings.expect(begun.arrive(user));
    const pid_t child = fork();
    if (child == 0) {
      int failures = 0;
      uint64_t size = 0;
      failures += weft_reducer_finish(reducer, nullptr) != WEFT_ERR_FORKED;
      failures += weft_hook_save(hook, nullptr, &size, nullptr) != WEFT_ERR_FORKED;
      failures += weft_reducer_destroy(&reducer) != WEFT_OK;
      failures += weft_hook_destroy(&hook) != WEFT_OK;
      failures += weft_comm_destroy(&r.comm) != WEFT_OK;
      failures += weft_context_destroy(&r.context) != WEFT_OK;
      _exit(failures);
    }
    int state = -1;
    findings.expect(child > 0 && waitpid(child, &state, 0) == child);
    findings.expect(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    user.release = true;
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
    findings.expect(weft_hook_destroy(&hook) == WEFT_OK);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("only a hook with work to do has a thread, and none in caller mode") {
  struct Case {
    const char* hook;
    int32_t mode;
    int threads;
  };
  for (const Case& c : {Case{"allreduce", WEFT_PROGRESS_THREAD, 0}, Case{"noop", WEFT_PROGRESS_THREAD, 0},
                        Case{"int8", WEFT_PROGRESS_THREAD, 1}, Case{"int8", WEFT_PROGRESS_CALLER, 0}}) {
    INFO(c.hook << " mode " << c.mode);
    std::atomic<int> threads{0};
    weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
    options.progress = c.mode;
    options.thread_start = [](void* data, const char* name) {
      if (std::strcmp(name, "weft-worker") == 0) (*static_cast<std::atomic<int>*>(data))++;
    };
    options.thread_start_user_data = &threads;
    Rank r;
    REQUIRE(weft_context_create(&options, &r.context, nullptr) == WEFT_OK);
    weft_test::Gathering gathering(1);
    weft_test::Member member{&gathering, 0};
    weft_comm_options comm_options = WEFT_COMM_OPTIONS_INIT;
    comm_options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
    comm_options.size = 1;
    comm_options.all_gather = weft_test::gather;
    comm_options.all_gather_user_data = &member;
    comm_options.backend = "loopback";
    REQUIRE(weft_comm_create(r.context, &comm_options, &r.comm, nullptr) == WEFT_OK);
    weft_hook* hook = nullptr;
    REQUIRE(weft_hook_create(r.context, c.hook, nullptr, &hook) == WEFT_OK);
    weft_reducer* reducer = make_reducer(r.comm, hook);
    std::vector<float> gradient;
    CHECK(begin(reducer, gradient, 1));
    CHECK(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    CHECK(weft_reducer_destroy(&reducer) == WEFT_OK);
    CHECK(weft_hook_destroy(&hook) == WEFT_OK);
    CHECK(weft_comm_destroy(&r.comm) == WEFT_OK);
    CHECK(weft_context_destroy(&r.context) == WEFT_OK);
    CHECK(threads == c.threads);
  }
}

}  // namespace capi_hook_stages
