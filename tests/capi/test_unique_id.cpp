// weft_unique_id_create: ranks that get rank 0's bytes over the program's own means create a communicator.
#include <weft/weft.h>

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.h"

namespace capi_unique_id {
namespace {

using Id = std::array<unsigned char, WEFT_UNIQUE_ID_BYTES>;

struct Context {
  Context() {
    weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
    REQUIRE(weft_context_create(&options, &handle, nullptr) == WEFT_OK);
  }
  ~Context() { CHECK(weft_context_destroy(&handle) == WEFT_OK); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Id make() const {
    Id id{};
    weft_error error = WEFT_ERROR_INIT;
    const weft_status made = weft_unique_id_create(handle, id.data(), &error);
    INFO(error.text);
    REQUIRE(made == WEFT_OK);
    return id;
  }
  weft_context* handle = nullptr;
};

weft_comm_options options_for(const Id& id, int rank, int size) {
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  options.bootstrap = WEFT_BOOTSTRAP_UNIQUE_ID;
  options.rank = rank;
  options.size = size;
  options.unique_id = id.data();
  return options;
}

// Creates a communicator, sums the ranks' numbers and destroys it. Returns an error's text; empty: none.
std::string sum_of(weft_context* context, const Id& id, int rank, int size) {
  const weft_comm_options options = options_for(id, rank, size);
  weft_comm* comm = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  if (weft_comm_create(context, &options, &comm, &error) != WEFT_OK) return error.text;
  std::string wrong;
  int32_t mine = rank, sum = 0;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  if (weft_all_reduce(comm, &mine, &sum, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, nullptr) != WEFT_OK)
    wrong = "all_reduce failed";
  else if (sum != size * (size - 1) / 2)
    wrong = "the sum is " + std::to_string(sum);
  else if (weft_comm_query(comm, &info) != WEFT_OK || info.authenticated != (size > 1 ? 1 : 0))
    wrong = "the members did not prove that they hold the key";
  if (weft_comm_destroy(&comm) != WEFT_OK) wrong += "; destroy failed";
  return wrong;
}

void check_meet(const std::vector<weft_context*>& contexts, const Id& id) {
  std::vector<std::string> wrong(contexts.size());
  std::vector<std::thread> ranks;
  const int size = static_cast<int>(contexts.size());
  for (int r = 0; r < size; r++) {
    const auto at = static_cast<size_t>(r);
    ranks.emplace_back([&, r, at] { wrong[at] = sum_of(contexts[at], id, r, size); });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(wrong == std::vector<std::string>(contexts.size()));
}

// Returns the text of the error that weft_comm_create returns as WEFT_ERR_ARG.
std::string refusal(weft_context* context, const weft_comm_options& options) {
  weft_comm* comm = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_comm_create(context, &options, &comm, &error) == WEFT_ERR_ARG);
  CHECK(comm == nullptr);
  return error.text;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("ranks meet by a unique id, and by several that were made before") {
  const Context zero, one, two;
  const Id first = zero.make(), second = zero.make(), alone = zero.make();
  CHECK(first != second);
  check_meet({zero.handle, one.handle, two.handle}, second);
  check_meet({zero.handle, one.handle}, first);
  check_meet({zero.handle}, alone);
}

TEST_CASE("bytes that are not rank 0's unique id are refused") {
  const Context context, other;
  const Id id = context.make();
  for (const size_t byte : {size_t{0}, size_t{20}, id.size() / 2, id.size() - 1}) {
    Id changed = id;
    changed[byte] ^= 4;
    INFO("byte " << byte);
    CHECK(
        contains(refusal(context.handle, options_for(changed, 1, 2)), "weft_comm_options.unique_id is not"));
  }
  CHECK(contains(refusal(context.handle, options_for(Id{}, 1, 2)), "are no invitation"));
  weft_comm_options options = options_for(id, 0, 2);
  options.unique_id = nullptr;
  CHECK(contains(refusal(context.handle, options), "weft_comm_options.unique_id"));
  options = options_for(id, 0, 2);
  options.secret = "a secret of the job";
  options.secret_bytes = 19;
  CHECK(contains(refusal(context.handle, options), "a key of its own"));
  options = options_for(id, 2, 2);
  CHECK(contains(refusal(context.handle, options), "weft_comm_options.rank is 2"));

  CHECK(contains(refusal(other.handle, options_for(id, 0, 2)), "is not of this context"));
  check_meet({context.handle, other.handle}, id);
  CHECK(contains(refusal(context.handle, options_for(id, 0, 2)), "has created a communicator before"));

  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_unique_id_create(context.handle, nullptr, &error) == WEFT_ERR_ARG);
  Id made{};
  CHECK(weft_unique_id_create(nullptr, made.data(), nullptr) == WEFT_ERR_ARG);
}

TEST_CASE("a unique id whose context is destroyed leads nowhere, and the error names rank 0") {
  Id id{};
  {
    const Context context;
    id = context.make();
  }
  const Context context;
  weft_comm_options options = options_for(id, 1, 2);
  options.init_timeout_ms = 200;
  weft_comm* comm = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_comm_create(context.handle, &options, &comm, &error) == WEFT_ERR_TIMEOUT);
  REQUIRE(error.failed_count == 1);
  CHECK(error.failed_ranks[0] == 0);
  INFO(error.text);
  CHECK(contains(error.text, "rank 0's invitation names tcp://"));
}

}  // namespace capi_unique_id
