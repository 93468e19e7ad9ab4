// The ucx module of this build through the C ABI, in a process that has not loaded UCX before.
// WEFT_TEST_MODULES is its folder.
#include <dlfcn.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace {

const char* folder() {
  const char* const path = std::getenv("WEFT_TEST_MODULES");
  return path == nullptr ? "." : path;
}

using Handler = void (*)(int);

Handler handler_of(int number) {
  struct sigaction action{};
  sigaction(number, nullptr, &action);
  return action.sa_handler;
}

void of_the_program(int) {}

}  // namespace

// Returns the first bytes of functions that memory hooks patch.
std::vector<char> code() {
  std::vector<char> bytes;
  for (const char* name : {"mmap", "munmap", "mremap", "shmat", "shmdt", "brk", "sbrk", "madvise"}) {
    const void* const function = dlsym(RTLD_DEFAULT, name);
    const auto* const begin = static_cast<const char*>(function);
    if (function != nullptr) bytes.insert(bytes.end(), begin, begin + 16);
  }
  return bytes;
}

TEST_CASE("loading UCX leaves the program's signal handlers, memory functions and environment as they are") {
  const std::vector<char> code_before = code();
  signal(SIGUSR2, of_the_program);
  signal(SIGFPE, of_the_program);
  std::vector<Handler> before;
  for (int number = 1; number < NSIG; number++) before.push_back(handler_of(number));
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  options.module_path = folder();
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
  uint64_t count = 0;
  bool available = false;
  REQUIRE(weft_backend_count(context, &count) == WEFT_OK);
  for (uint64_t i = 0; i < count; i++) {
    weft_backend_info info{};
    info.struct_size = sizeof info;
    REQUIRE(weft_backend_query(context, i, &info) == WEFT_OK);
    if (std::strcmp(info.name, "ucx") != 0) continue;
    available = info.available != 0;
    INFO(info.reason);
    CHECK(available);
    CHECK(std::string(info.reason).find("UCX 1.") == 0);
  }
  weft_context_destroy(&context);
  CHECK(available);
  CHECK(code() == code_before);
  CHECK(std::getenv("UCX_MEM_EVENTS") == nullptr);
  for (int number = 1; number < NSIG; number++) {
    INFO("signal " << number);
    CHECK(handler_of(number) == before[static_cast<size_t>(number - 1)]);
  }
}

TEST_CASE("ucx counts the bytes that it moves") {
  std::atomic<int> wrong{0};
  const std::string error = weft_test::run("ucx", 3, WEFT_PROGRESS_THREAD, folder(), [&](weft_test::Rank& r) {
    std::vector<float> data(100'000, 1.0f);
    if (weft_all_reduce(r.comm, data.data(), data.data(), data.size(), WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                        nullptr) != WEFT_OK)
      wrong++;
    if (data.front() != 3.0f || data.back() != 3.0f) wrong++;
    weft_comm_info info{};
    info.struct_size = sizeof info;
    if (weft_comm_query(r.comm, &info) != WEFT_OK || std::strcmp(info.backend, "ucx") != 0) wrong++;
    // Two thirds of the vector are sent twice, in both directions.
    if (info.bytes_sent < 500'000 || info.bytes_received < 500'000 || info.bytes_shared != 0) wrong++;
  });
  CHECK(error.empty());
  CHECK(wrong == 0);
}
