// lib/hook/hook_table and stage_gate: a program's function table as a hook, and stages that complete later.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "engine/callbacks.h"
#include "engine/engine.h"
#include "hook/hook_table.h"
#include "support/catch.h"

namespace unit_hook_table {

using namespace weft;

namespace {

struct User {
  std::vector<std::string> calls;
  std::string state = "seven";
  weft_status answer = WEFT_OK;
  std::string message;
  bool inside = false;
  int freed = 0;

  weft_status called(const char* what, char* out) {
    calls.emplace_back(what);
    inside = Callbacks::inside();
    std::memcpy(out, message.data(), std::min<size_t>(message.size(), kHookMessageBytes));
    return answer;
  }
};

User& user(void* data) {
  return *static_cast<User*>(data);
}

weft_hook_table table() {
  weft_hook_table t{};
  t.struct_size = sizeof t;
  t.name = "mine";
  t.plan = [](void* u, const weft_bucket*, weft_hook_plan*, char* m) { return user(u).called("plan", m); };
  t.stage = [](void* u, const weft_bucket*, weft_stage*, char* m) { return user(u).called("stage", m); };
  return t;
}

weft_hook_table full_table() {
  weft_hook_table t = table();
  t.replan = [](void* u, uint64_t, char* m) { return user(u).called("replan", m); };
  t.join = [](void* u, const weft_bucket*, char* m) { return user(u).called("join", m); };
  t.rebind = [](void* u, int32_t, int32_t, char* m) { return user(u).called("rebind", m); };
  t.save = [](void* u, void* buffer, uint64_t* size, char* m) {
    const std::string& state = user(u).state;
    if (buffer != nullptr) std::memcpy(buffer, state.data(), std::min<uint64_t>(*size, state.size()));
    *size = state.size();
    return user(u).called("save", m);
  };
  t.load = [](void* u, const void* buffer, uint64_t size, char* m) {
    user(u).state.assign(static_cast<const char*>(buffer), size);
    return user(u).called("load", m);
  };
  t.free_user_data = [](void* u) { user(u).freed++; };
  return t;
}

std::shared_ptr<Hook> made(const weft_hook_table& t, User* u) {
  std::shared_ptr<Hook> hook;
  REQUIRE(make_hook_table(t, u, &hook).ok());
  return hook;
}

}  // namespace

TEST_CASE("a hook's table must have a name, plan and stage") {
  std::shared_ptr<Hook> hook;
  User u;
  weft_hook_table t = full_table();
  t.name = "";
  CHECK(make_hook_table(t, &u, &hook).code() == Code::kArg);
  const std::string long_name(300, 'x');
  t.name = long_name.c_str();
  CHECK(make_hook_table(t, &u, &hook).code() == Code::kArg);
  t = full_table();
  t.stage = nullptr;
  CHECK(make_hook_table(t, &u, &hook).text().find("weft_hook_table.stage is NULL") != std::string::npos);
  CHECK(u.freed == 0);  // on failure user_data stays the caller's
  t = full_table();
  CHECK(make_hook_table(t, &u, &hook).ok());
  hook.reset();
  CHECK(u.freed == 1);
}

TEST_CASE("functions of the table that are not set are not needed") {
  User u;
  const auto hook = made(table(), &u);
  CHECK(hook->name() == "mine");
  CHECK(hook->replan(3).ok());
  CHECK(hook->join({}).ok());
  CHECK(hook->rebind(0, 2).ok());
  Bytes state;
  CHECK(hook->save(&state).ok());
  CHECK(state.empty());
  CHECK(u.calls.empty());
}

TEST_CASE("flags of the table say what else the hook takes, and unknown ones are refused by name") {
  User u;
  weft_hook_table t = table();
  CHECK(!made(t, &u)->takes_sparse());
  CHECK(!made(t, &u)->takes_shares());
  t.flags = WEFT_HOOK_SHARES;
  CHECK(!made(t, &u)->takes_sparse());
  CHECK(made(t, &u)->takes_shares());
  t.flags = 4;
  std::shared_ptr<Hook> hook;
  CHECK(make_hook_table(t, &u, &hook).text().find("WEFT_HOOK_SHARES (0x2)") != std::string::npos);
}

TEST_CASE("every function of the table is called, marked as a callback") {
  User u;
  const auto hook = made(full_table(), &u);
  weft_hook_plan plan{};
  weft_stage stage{};
  REQUIRE(hook->plan({}, &plan).ok());
  REQUIRE(hook->stage({}, &stage).ok());
  REQUIRE(hook->replan(1).ok());
  REQUIRE(hook->join({}).ok());
  REQUIRE(hook->rebind(1, 2).ok());
  CHECK(u.calls == std::vector<std::string>{"plan", "stage", "replan", "join", "rebind"});
  CHECK(u.inside);
  CHECK(!Callbacks::inside());
}

TEST_CASE("state is saved by asking for its size first, and loaded") {
  User u;
  const auto hook = made(full_table(), &u);
  Bytes state;
  REQUIRE(hook->save(&state).ok());
  u.state = "other";
  REQUIRE(hook->load(state).ok());
  CHECK(u.state == "seven");
}

TEST_CASE("a failure carries the hook's name, its message and the code, also without a terminating zero") {
  User u;
  const auto hook = made(full_table(), &u);
  u.answer = WEFT_ERR_NOMEM;
  u.message = "no room for P";
  weft_stage stage{};
  Status status = hook->stage({}, &stage);
  CHECK(status.code() == Code::kHook);
  CHECK(status.text() ==
        cat("hook 'mine' failed in stage: no room for P (", code_name(Code::kNoMemory), ")"));
  u.message = std::string(kHookMessageBytes, 'z');
  status = hook->stage({}, &stage);
  CHECK(status.text().find(std::string(kHookMessageBytes, 'z')) != std::string::npos);
  u.message.clear();
  CHECK(hook->stage({}, &stage).text().find("no message") != std::string::npos);
}

TEST_CASE("a pending stage is completed once, from any thread, by its own generation only") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  User u;
  const auto hook = made(table(), &u);
  StageWaiter waiter(engine);
  const uint64_t first = hook->gate().open(&waiter);
  CHECK(!waiter.done());
  complete_stage(*hook, {0, 0, first + 1}, WEFT_OK);
  CHECK(!waiter.done());
  std::thread other([&] { complete_stage(*hook, {0, 0, first}, WEFT_ERR_STATE, "no memory"); });
  CHECK(engine.wait([&] { return waiter.done(); }, Deadline::after(clock, 20'000, 0)));
  other.join();
  CHECK(waiter.result().code() == Code::kHook);
  CHECK(waiter.result().text().find("completed its stage with an error: no memory (") != std::string::npos);

  const uint64_t second = hook->gate().open(&waiter);
  complete_stage(*hook, {0, 0, first}, WEFT_OK);  // too late
  CHECK(!waiter.done());
  hook->gate().close(second);
  complete_stage(*hook, {0, 0, second}, WEFT_OK);  // after it was abandoned
  CHECK(!waiter.done());
}

}  // namespace unit_hook_table
