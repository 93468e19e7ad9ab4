// Backend modules through the C ABI: found, used, missing, of another version. WEFT_TEST_MODULES is the
// folder of the replacement modules.
#include <atomic>
#include <cstdlib>
#include <string>

#include "capi/ranks.h"
#include "support/catch.h"

namespace {

std::string folder() {
  const char* const path = std::getenv("WEFT_TEST_MODULES");
  return path == nullptr ? "tests/modules" : path;
}

weft_backend_info describe(const std::string& module_path, const std::string& name) {
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  options.module_path = module_path.c_str();
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
  uint64_t count = 0;
  REQUIRE(weft_backend_count(context, &count) == WEFT_OK);
  weft_backend_info found{};
  for (uint64_t i = 0; i < count; i++) {
    weft_backend_info info{};
    info.struct_size = sizeof info;
    REQUIRE(weft_backend_query(context, i, &info) == WEFT_OK);
    if (name == info.name) found = info;
  }
  weft_context_destroy(&context);
  return found;
}

}  // namespace

TEST_CASE("a missing module is unavailable, with the loader's reason") {
  const weft_backend_info info = describe("/nonexistent", "ucx");
  CHECK(info.is_module == 1);
  CHECK(info.available == 0);
  CHECK(std::string(info.reason).find("libweft-ucx.so") != std::string::npos);
}

TEST_CASE("a module of another version is unavailable, with the reason") {
  const weft_backend_info info = describe(folder() + "/other_version", "ucx");
  CHECK(info.available == 0);
  INFO(info.reason);
  CHECK(std::string(info.reason).find("another version") != std::string::npos);
}

TEST_CASE("an exception of a module becomes an error of the call") {
  const std::string path = folder() + "/throwing";
  const weft_backend_info asked = describe(path, "nccl");
  INFO(asked.reason);
  CHECK(asked.available == 0);
  CHECK(std::string(asked.reason).find("thrown by find") != std::string::npos);
  const std::string error =
      weft_test::run("ucx", 2, WEFT_PROGRESS_THREAD, path.c_str(), [](weft_test::Rank&) {});
  CHECK(error.find("thrown by make_transport") != std::string::npos);
}

TEST_CASE("a module's transport carries collectives") {
  CHECK(describe(folder(), "ucx").available == 1);
  const std::string path = folder();
  std::atomic<int> wrong{0};
  const std::string error =
      weft_test::run("ucx", 3, WEFT_PROGRESS_THREAD, path.c_str(), [&](weft_test::Rank& r) {
        int64_t value = r.rank + 1;
        if (weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_I64, WEFT_OP_PROD, nullptr, nullptr) !=
            WEFT_OK)
          wrong++;
        if (value != 6) wrong++;
        weft_comm_info info{};
        info.struct_size = sizeof info;
        if (weft_comm_query(r.comm, &info) != WEFT_OK || info.bytes_sent == 0) wrong++;
      });
  CHECK(error.empty());
  CHECK(wrong == 0);
}
