// Bad input through the C ABI: every pointer, count, dtype, rank, size, flag and struct that a program can
// get wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"
#include "support/sanitized.h"

namespace capi_arguments {

namespace {

struct Solo {
  Solo() {
    weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
    options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
    options.size = 1;
    options.all_gather = weft_test::gather;
    options.all_gather_user_data = &member;
    REQUIRE(weft_context_create(nullptr, &context, nullptr) == WEFT_OK);
    weft_error error = WEFT_ERROR_INIT;
    const weft_status status = weft_comm_create(context, &options, &comm, &error);
    INFO(error.text);
    REQUIRE(status == WEFT_OK);
  }
  ~Solo() {
    weft_comm_destroy(&comm);
    weft_context_destroy(&context);
  }
  weft_test::Gathering gathering{1};
  weft_test::Member member{&gathering, 0};
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
};

}  // namespace

TEST_CASE("the last error of a thread has the text of calls that have no object's error") {
  Solo solo;
  void* memory = nullptr;
  CHECK(weft_comm_alloc(solo.comm, 0, &memory) == WEFT_ERR_ARG);
  CHECK(weft_comm_alloc(solo.comm, 64, &memory) == WEFT_OK);  // changes nothing
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_last_error(&error) == WEFT_ERR_ARG);
  CHECK(error.code == WEFT_ERR_ARG);
  CHECK(std::string(error.text).find("size_bytes") != std::string::npos);
  CHECK(weft_comm_free(solo.comm, memory) == WEFT_OK);
  weft_status other = WEFT_ERR_INTERNAL;
  std::thread([&] { other = weft_last_error(nullptr); }).join();
  CHECK(other == WEFT_OK);
  CHECK(weft_context_create(nullptr, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_last_error(&error) == WEFT_ERR_ARG);
  CHECK(std::string(error.text).find("NULL") != std::string::npos);
}

TEST_CASE("structs of other versions are read by their size, and unknown fields refused") {
  struct Newer {
    weft_context_options known;
    uint64_t unknown;
  } newer{};
  newer.known.struct_size = sizeof newer;
  weft_context* context = nullptr;
  CHECK(weft_context_create(&newer.known, &context, nullptr) == WEFT_OK);  // the unknown field is zero
  CHECK(weft_context_destroy(&context) == WEFT_OK);
  newer.unknown = 7;
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_context_create(&newer.known, &context, &error) == WEFT_ERR_ARG);
  CHECK(context == nullptr);
  CHECK(error.code == WEFT_ERR_ARG);
  CHECK(std::strlen(error.text) > 0);

  weft_context_options older = WEFT_CONTEXT_OPTIONS_INIT;
  older.struct_size = offsetof(weft_context_options, log);
  CHECK(weft_context_create(&older, &context, nullptr) == WEFT_OK);
  CHECK(weft_context_destroy(&context) == WEFT_OK);
  older.struct_size = 0;
  CHECK(weft_context_create(&older, &context, nullptr) == WEFT_ERR_ARG);
}

TEST_CASE("a heartbeat budget is long enough or infinite") {
  weft_test::Gathering gathering(1);
  weft_test::Member member{&gathering, 0};
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
  options.size = 1;
  options.all_gather = weft_test::gather;
  options.all_gather_user_data = &member;
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(nullptr, &context, nullptr) == WEFT_OK);
  weft_comm* comm = nullptr;
  for (const int64_t refused : {int64_t{1}, int64_t{99}, WEFT_TIMEOUT_POLL, INT64_MIN}) {
    options.heartbeat_timeout_ms = refused;
    weft_error error = WEFT_ERROR_INIT;
    CHECK(weft_comm_create(context, &options, &comm, &error) == WEFT_ERR_ARG);
    CHECK(std::string(error.text).find("heartbeat_timeout_ms") != std::string::npos);
    CHECK(comm == nullptr);
  }
  for (const int64_t taken : {int64_t{0}, int64_t{100}, WEFT_TIMEOUT_INFINITE, INT64_MAX}) {
    options.heartbeat_timeout_ms = taken;
    CHECK(weft_comm_create(context, &options, &comm, nullptr) == WEFT_OK);
    CHECK(weft_comm_destroy(&comm) == WEFT_OK);
  }
  CHECK(weft_context_destroy(&context) == WEFT_OK);
}

TEST_CASE("a hook's table is read by its size") {
  Solo solo;
  struct Newer {
    weft_hook_table known;
    void (*unknown)(void*);
  } newer{};
  newer.known.struct_size = sizeof newer;
  newer.known.name = "newer";
  newer.known.plan = [](void*, const weft_bucket*, weft_hook_plan*, char*) { return WEFT_OK; };
  newer.known.stage = [](void*, const weft_bucket*, weft_stage*, char*) { return WEFT_OK; };
  newer.known.free_user_data = [](void* calls) { ++*static_cast<int*>(calls); };
  int freed = 0;
  weft_hook* hook = nullptr;
  CHECK(weft_hook_create_custom(solo.context, nullptr, &freed, &hook) == WEFT_ERR_ARG);
  CHECK(weft_hook_create_custom(solo.context, &newer.known, &freed, &hook) == WEFT_OK);
  CHECK(weft_hook_destroy(&hook) == WEFT_OK);
  CHECK(freed == 1);
  newer.unknown = newer.known.free_user_data;
  CHECK(weft_hook_create_custom(solo.context, &newer.known, &freed, &hook) == WEFT_ERR_ARG);
  newer.known.struct_size = SIZE_MAX;
  CHECK(weft_hook_create_custom(solo.context, &newer.known, &freed, &hook) == WEFT_ERR_ARG);
  newer.known.struct_size = offsetof(weft_hook_table, plan);  // does not include plan
  CHECK(weft_hook_create_custom(solo.context, &newer.known, &freed, &hook) == WEFT_ERR_ARG);
  CHECK(freed == 1);
}

TEST_CASE("parameters of a newer and of an older header are read by their size") {
  Solo solo;
  struct Newer {
    weft_param known;
    uint64_t unknown;
  } params[2] = {};
  const int64_t shape = 3;
  for (Newer& param : params) {
    param.known.struct_size = sizeof param;
    param.known.name = &param == params ? "a" : "b";
    param.known.dtype = WEFT_DTYPE_F32;
    param.known.ndim = 1;
    param.known.shape = &shape;
  }
  weft_reducer_options options{};
  options.struct_size = sizeof options;
  options.params = &params[0].known;
  options.param_count = 2;  // param_size is not set: the first parameter's struct_size determines it
  weft_reducer* reducer = nullptr;
  CHECK(weft_reducer_create(solo.comm, &options, &reducer, nullptr) == WEFT_OK);
  CHECK(weft_reducer_destroy(&reducer) == WEFT_OK);
  options.param_size = sizeof(Newer);
  params[1].unknown = 1;
  CHECK(weft_reducer_create(solo.comm, &options, &reducer, nullptr) == WEFT_ERR_ARG);
  options.param_size = 4;
  CHECK(weft_reducer_create(solo.comm, &options, &reducer, nullptr) == WEFT_ERR_ARG);
}

TEST_CASE("a program compiled for an incompatible version is refused") {
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  weft_context* context = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  for (const uint32_t other : {20000u, 10000u, 800u, 1000u}) {  // 2.0, 1.0, 0.8, 0.10
    options.version = other;
    CHECK(weft_context_create(&options, &context, &error) == WEFT_ERR_VERSION);
  }
  CHECK(std::string(error.text) ==
        "the program was compiled with weft.h 0.10, this library is 0.9: compile it with this library's "
        "weft.h");
  options.version = 901;
  CHECK(weft_context_create(&options, &context, &error) == WEFT_OK);
  CHECK(weft_context_destroy(&context) == WEFT_OK);
}

TEST_CASE("after the end of its context a communicator's error names the context") {
  Solo solo;
  float value = 1;
  CHECK(weft_context_destroy(&solo.context) == WEFT_OK);
  CHECK(weft_all_reduce(solo.comm, &value, &value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr) ==
        WEFT_ERR_CANCELLED);
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_comm_error(solo.comm, &error) == WEFT_ERR_CANCELLED);
  CHECK(std::string(error.text) == "the context was destroyed on this rank");
}

TEST_CASE("wrong arguments of collectives are errors that change nothing") {
  Solo solo;
  float a[8] = {}, b[8] = {};
  const auto all_reduce = [&](const void* src, void* dst, uint64_t count, int32_t dtype, int32_t op) {
    return weft_all_reduce(solo.comm, src, dst, count, dtype, op, nullptr, nullptr);
  };
  CHECK(all_reduce(a, b, 8, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_OK);
  CHECK(weft_all_reduce(nullptr, a, b, 8, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(all_reduce(nullptr, b, 8, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);
  CHECK(all_reduce(a, nullptr, 8, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);
  CHECK(all_reduce(nullptr, nullptr, 0, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_OK);
  CHECK(all_reduce(a, b, UINT64_MAX, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);
  CHECK(all_reduce(a, b, 8, 0, WEFT_OP_SUM) == WEFT_ERR_ARG);
  CHECK(all_reduce(a, b, 8, 99, WEFT_OP_SUM) == WEFT_ERR_ARG);
  CHECK(all_reduce(a, b, 8, WEFT_DTYPE_F32, 0) == WEFT_ERR_ARG);
  CHECK(all_reduce(a, b, 8, WEFT_DTYPE_F32, 10) == WEFT_ERR_ARG);
  CHECK(all_reduce(a, b, 8, WEFT_DTYPE_F32, WEFT_OP_BAND) == WEFT_ERR_UNSUPPORTED);
  CHECK(all_reduce(a, b, 8, WEFT_DTYPE_I32, WEFT_OP_AVG) == WEFT_ERR_UNSUPPORTED);
  CHECK(all_reduce(a, b, 8, WEFT_DTYPE_F32, WEFT_OP_PREMUL_SUM) == WEFT_ERR_ARG);  // no factor
  weft_coll_options with_factor = WEFT_COLL_OPTIONS_INIT, with_reduction = WEFT_COLL_OPTIONS_INIT;
  weft_reduction reduction = WEFT_REDUCTION_INIT;
  with_factor.factor = 2;
  with_reduction.reduction = &reduction;
  for (const weft_coll_options* options : {&with_factor, &with_reduction}) {
    CHECK(weft_all_reduce(solo.comm, a, b, 8, WEFT_DTYPE_F32, WEFT_OP_SUM, options, nullptr) == WEFT_ERR_ARG);
  }
  CHECK(all_reduce(a, a + 1, 4, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);  // overlap
  CHECK(all_reduce(a, a, 8, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_OK);
  CHECK(weft_broadcast(solo.comm, a, 8, WEFT_DTYPE_F32, 1, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_broadcast(solo.comm, a, 8, WEFT_DTYPE_F32, -1, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_send(solo.comm, a, 8, WEFT_DTYPE_F32, 0, nullptr, nullptr) == WEFT_ERR_ARG);
  weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
  options.flags = 1;
  CHECK(weft_barrier(solo.comm, &options, nullptr) == WEFT_ERR_ARG);
  options = WEFT_COLL_OPTIONS_INIT;
  options.timeout_ms = -7;
  CHECK(weft_barrier(solo.comm, &options, nullptr) == WEFT_ERR_ARG);
  options = WEFT_COLL_OPTIONS_INIT;
  weft_stream stream = {sizeof(weft_stream), WEFT_DEVICE_CUDA, 4096, nullptr};
  options.stream = &stream;
  const weft_status no_device = weft_barrier(solo.comm, &options, nullptr);  // or no CUDA
  CHECK((no_device == WEFT_ERR_ARG || no_device == WEFT_ERR_UNAVAILABLE));
  stream.kind = 9;
  CHECK(weft_barrier(solo.comm, &options, nullptr) == WEFT_ERR_ARG);
  // None of these calls failed the communicator. weft_comm_error describes the last one.
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_comm_error(solo.comm, &error) == WEFT_OK);
  CHECK(error.code == WEFT_OK);
  CHECK(std::string(error.text) ==
        "weft_stream.kind is 9: allowed are WEFT_DEVICE_HOST (0), WEFT_DEVICE_CUDA (1)");
  CHECK(all_reduce(a, a + 1, 4, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);
  CHECK(weft_comm_error(solo.comm, &error) == WEFT_OK);
  CHECK(std::string(error.text).find("src and dst overlap") != std::string::npos);
  CHECK(weft_comm_abort(solo.comm, "enough") == WEFT_OK);
  CHECK(weft_comm_error(solo.comm, &error) == WEFT_ERR_ABORTED);
  CHECK(all_reduce(a, a + 1, 4, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);
  CHECK(weft_comm_error(solo.comm, &error) == WEFT_ERR_ABORTED);
  CHECK(std::string(error.text).find("enough") != std::string::npos);
}

TEST_CASE("buffers that are not aligned to their elements are refused") {
  Solo solo;
  alignas(8) unsigned char bytes[64] = {};
  weft_request* request = nullptr;
  for (const int32_t dtype : {WEFT_DTYPE_F16, WEFT_DTYPE_F32, WEFT_DTYPE_F64}) {
    CHECK(weft_all_reduce(solo.comm, bytes + 1, bytes + 1, 2, dtype, WEFT_OP_SUM, nullptr, nullptr) ==
          WEFT_ERR_ARG);
    CHECK(weft_all_reduce(solo.comm, bytes, bytes + 33, 2, dtype, WEFT_OP_SUM, nullptr, &request) ==
          WEFT_ERR_ARG);
    CHECK(weft_broadcast(solo.comm, bytes + 1, 2, dtype, 0, nullptr, nullptr) == WEFT_ERR_ARG);
    CHECK(weft_all_reduce(solo.comm, bytes, bytes, 2, dtype, WEFT_OP_SUM, nullptr, nullptr) == WEFT_OK);
  }
  CHECK(weft_all_reduce(solo.comm, bytes + 1, bytes + 1, 2, WEFT_DTYPE_U8, WEFT_OP_SUM, nullptr, nullptr) ==
        WEFT_OK);
}

TEST_CASE("NULL is an error where an object is needed, and fine where one is destroyed") {
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  weft_request* request = nullptr;
  CHECK(weft_context_destroy(&context) == WEFT_OK);
  CHECK(weft_comm_destroy(&comm) == WEFT_OK);
  CHECK(weft_request_release(&request) == WEFT_OK);
  CHECK(weft_context_destroy(nullptr) == WEFT_ERR_ARG);
  CHECK(weft_context_create(nullptr, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_comm_create(nullptr, nullptr, &comm, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_comm_rank(nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_request_wait(nullptr, 0) == WEFT_ERR_ARG);
  CHECK(weft_request_test(nullptr, nullptr) == WEFT_ERR_ARG);
}

TEST_CASE("arena memory: sizes, alignment, and pointers that are not from it") {
  Solo solo;
  void* memory = nullptr;
  CHECK(weft_comm_alloc(solo.comm, 0, &memory) == WEFT_ERR_ARG);
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_comm_error(solo.comm, &error) == WEFT_OK);
  CHECK(std::string(error.text) == "weft_comm_alloc: size_bytes is 0: allowed are 1 or more");
  CHECK(weft_comm_alloc(solo.comm, UINT64_MAX, &memory) == WEFT_ERR_NOMEM);
  REQUIRE(weft_comm_alloc(solo.comm, 100000, &memory) == WEFT_OK);
  CHECK(reinterpret_cast<uintptr_t>(memory) % 4096 == 0);
  const auto* bytes = static_cast<const unsigned char*>(memory);
  CHECK(std::vector<unsigned char>(bytes, bytes + 100000) == std::vector<unsigned char>(100000, 0));
  CHECK(weft_comm_free(solo.comm, static_cast<char*>(memory) + 8) == WEFT_ERR_ARG);
  CHECK(weft_comm_free(solo.comm, memory) == WEFT_OK);
  CHECK(weft_comm_free(solo.comm, memory) == WEFT_ERR_ARG);
  CHECK(weft_comm_free(solo.comm, nullptr) == WEFT_OK);
}

TEST_CASE("unavailable backends are listed with the reason, and a working communicator cannot be shrunk") {
  Solo solo;
  uint64_t count = 0;
  REQUIRE(weft_backend_count(solo.context, &count) == WEFT_OK);
  CHECK(count >= 2);
  for (uint64_t i = 0; i < count; i++) {
    weft_backend_info info{};
    info.struct_size = sizeof info;
    CHECK(weft_backend_query(solo.context, i, &info) == WEFT_OK);
    CHECK(std::strlen(info.name) > 0);
    CHECK(std::strlen(info.reason) > 0);
  }
  weft_backend_info info{};
  info.struct_size = sizeof info;
  CHECK(weft_backend_query(solo.context, count, &info) == WEFT_ERR_ARG);
  uint8_t supported = 0;
  CHECK(weft_capability(solo.context, "shm", WEFT_COLL_ALL_REDUCE, WEFT_DTYPE_BF16, WEFT_OP_SUM, 0,
                        &supported) == WEFT_OK);
  CHECK(supported == 1);
  CHECK(weft_capability(solo.context, "shm", WEFT_COLL_ALL_REDUCE, WEFT_DTYPE_F32, WEFT_OP_BXOR, 0,
                        &supported) == WEFT_OK);
  CHECK(supported == 0);
  CHECK(weft_capability(solo.context, "shm", WEFT_COLL_SPARSE_ALL_REDUCE, WEFT_DTYPE_C64, WEFT_OP_SUM, 0,
                        &supported) == WEFT_OK);
  CHECK(supported == 0);
  CHECK(weft_capability(solo.context, "nothing", WEFT_COLL_BARRIER, WEFT_DTYPE_U8, 0, 0, &supported) ==
        WEFT_ERR_ARG);
  weft_comm* survivors = nullptr;
  CHECK(weft_comm_shrink(solo.comm, nullptr, nullptr, nullptr) == WEFT_ERR_ARG);
  weft_shrink_options options = WEFT_SHRINK_OPTIONS_INIT;
  options.flags = 1u << 20;
  CHECK(weft_comm_shrink(solo.comm, &options, &survivors, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_comm_shrink(solo.comm, nullptr, &survivors, nullptr) == WEFT_ERR_STATE);
  CHECK(survivors == nullptr);
}

TEST_CASE("a forked child gets an error on every inherited object, and can make its own") {
  Solo solo;
  weft_request* request = nullptr;
  REQUIRE(weft_barrier(solo.comm, nullptr, &request) == WEFT_OK);
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "none";
  table.plan = [](void*, const weft_bucket*, weft_hook_plan*, char*) { return WEFT_OK; };
  table.stage = [](void*, const weft_bucket*, weft_stage*, char*) { return WEFT_OK; };
  weft_hook* hook = nullptr;
  REQUIRE(weft_hook_create_custom(solo.context, &table, nullptr, &hook) == WEFT_OK);
  const int64_t shape = 4;
  const weft_param param = {sizeof param, "p", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0};
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  weft_reducer* reducer = nullptr;
  REQUIRE(weft_reducer_create(solo.comm, &options, &reducer, nullptr) == WEFT_OK);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int failures = 0;
    int32_t rank = 0;
    failures += weft_comm_rank(solo.comm, &rank) != WEFT_ERR_FORKED;
    failures += weft_barrier(solo.comm, nullptr, nullptr) != WEFT_ERR_FORKED;
    weft_comm* made = nullptr;
    failures += weft_comm_create(solo.context, nullptr, &made, nullptr) != WEFT_ERR_FORKED;
    uint8_t done = 0;
    failures += weft_request_test(request, &done) != WEFT_ERR_FORKED;
    failures += weft_request_wait(request, 1000) != WEFT_ERR_FORKED;
    failures += weft_reducer_begin(reducer, nullptr) != WEFT_ERR_FORKED;
    failures += weft_reducer_finish(reducer, nullptr) != WEFT_ERR_FORKED;
    failures += weft_request_release(&request) != WEFT_OK;
    failures += weft_reducer_destroy(&reducer) != WEFT_OK;
    failures += weft_hook_destroy(&hook) != WEFT_OK;
    failures += weft_comm_destroy(&solo.comm) != WEFT_OK;
    failures += weft_context_destroy(&solo.context) != WEFT_OK;
    if (!weft::test::kThreadSanitizer) {  // unsupported by the thread sanitizer
      weft_context* own = nullptr;
      failures += weft_context_create(nullptr, &own, nullptr) != WEFT_OK;
      failures += weft_context_destroy(&own) != WEFT_OK;
    }
    _exit(failures);
  }
  int state = 0;
  REQUIRE(waitpid(child, &state, 0) == child);
  CHECK(WIFEXITED(state));
  CHECK(WEXITSTATUS(state) == 0);
  // The parent process is not affected.
  CHECK(weft_request_wait(request, 0) == WEFT_OK);
  CHECK(weft_barrier(solo.comm, nullptr, nullptr) == WEFT_OK);
  CHECK(weft_request_release(&request) == WEFT_OK);
  CHECK(weft_reducer_destroy(&reducer) == WEFT_OK);
  CHECK(weft_hook_destroy(&hook) == WEFT_OK);
}

TEST_CASE("inside a callback only calls that read, test, release and abort are allowed") {
  Solo solo;
  weft_request* request = nullptr;
  float value = 1.0f;
  struct Seen {
    weft_comm* comm;
    weft_context* context;
    weft_status barrier = WEFT_OK, query = WEFT_OK, destroy = WEFT_OK;
    bool reads = false;
    bool called = false;
  } seen{solo.comm, solo.context};
  REQUIRE(weft_all_reduce(solo.comm, &value, &value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, &request) ==
          WEFT_OK);
  REQUIRE(weft_request_wait(request, 0) == WEFT_OK);
  REQUIRE(weft_request_on_complete(
              request,
              [](void* data, weft_status) {
                auto* s = static_cast<Seen*>(data);
                s->called = true;
                s->barrier = weft_barrier(s->comm, nullptr, nullptr);
                weft_comm_info info{};
                info.struct_size = sizeof info;
                s->query = weft_comm_query(s->comm, &info);
                s->destroy = weft_context_destroy(&s->context);
                int32_t rank = -1;
                int32_t size = -1;
                weft_error error = WEFT_ERROR_INIT;
                s->reads = weft_comm_rank(s->comm, &rank) == WEFT_OK && rank == 0 &&
                           weft_comm_size(s->comm, &size) == WEFT_OK && size == 1 &&
                           weft_comm_error(s->comm, &error) == WEFT_OK;
              },
              &seen) == WEFT_OK);
  // The request is already complete. The callback runs here or, if the lane still holds the request, on the
  // callback thread; destroying the communicator waits for it.
  weft_request_release(&request);
  weft_comm_destroy(&solo.comm);
  CHECK(seen.called);
  CHECK(seen.barrier == WEFT_ERR_STATE);
  CHECK(seen.query == WEFT_ERR_STATE);
  CHECK(seen.destroy == WEFT_ERR_STATE);
  CHECK(seen.reads);
}

TEST_CASE("norms, owned slices and gathers check their arguments, and errors name the required option") {
  Solo solo;
  const int64_t shape = 4;
  float value[4] = {}, gradient[4] = {3, 0, 4, 0};
  weft_param param = WEFT_PARAM_INIT;
  param.name = "p";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 1;
  param.shape = &shape;
  param.parameter = value;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  weft_norms norms{};
  norms.struct_size = sizeof norms;
  double each = 0;
  uint64_t count = 0;
  weft_slice slice{};
  CHECK(weft_reducer_norms(nullptr, &norms, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_reducer_owned(nullptr, 0, nullptr, &count) == WEFT_ERR_ARG);
  CHECK(weft_reducer_gather_params(nullptr, nullptr) == WEFT_ERR_ARG);
  weft_reducer* reducer = nullptr;
  REQUIRE(weft_reducer_create(solo.comm, &options, &reducer, nullptr) == WEFT_OK);
  CHECK(weft_reducer_norms(reducer, &norms, nullptr) == WEFT_ERR_STATE);
  CHECK(weft_reducer_owned(reducer, 0, nullptr, &count) == WEFT_ERR_STATE);
  CHECK(weft_reducer_gather_params(reducer, nullptr) == WEFT_ERR_STATE);
  weft_tensor tensor = WEFT_TENSOR_INIT;
  tensor.struct_size = 3;
  CHECK(weft_reducer_ready_tensor(reducer, 0, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_reducer_ready_tensor(reducer, 0, &tensor, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_reducer_destroy(&reducer) == WEFT_OK);

  options.flags = WEFT_REDUCER_OWN_WHOLE;
  CHECK(weft_reducer_create(solo.comm, &options, &reducer, nullptr) == WEFT_ERR_ARG);
  options.flags = WEFT_REDUCER_OWN_WHOLE | WEFT_REDUCER_SHARDED | WEFT_REDUCER_NORMS;
  REQUIRE(weft_reducer_create(solo.comm, &options, &reducer, nullptr) == WEFT_OK);
  REQUIRE(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
  REQUIRE(weft_reducer_ready(reducer, 0, gradient, nullptr) == WEFT_OK);
  REQUIRE(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
  CHECK(weft_reducer_norms(reducer, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_reducer_norms(reducer, &norms, &each) == WEFT_OK);
  CHECK(norms.total == 5);
  CHECK(each == 5);
  CHECK(weft_reducer_owned(reducer, 0, nullptr, nullptr) == WEFT_ERR_ARG);
  count = 1;
  CHECK(weft_reducer_owned(reducer, 0, &slice, &count) == WEFT_OK);
  CHECK(count == 1);
  CHECK(slice.count == 4);
  weft_gather_options gather = WEFT_GATHER_OPTIONS_INIT;
  gather.flags = 1;
  CHECK(weft_reducer_gather_params(reducer, &gather) == WEFT_ERR_ARG);
  // The next call fails on all ranks.
  CHECK(weft_reducer_gather_params(reducer, nullptr) == WEFT_ERR_MISMATCH);
  gather.flags = 0;
  gather.timeout_ms = -2;
  CHECK(weft_reducer_gather_params(reducer, &gather) == WEFT_ERR_ARG);
  CHECK(weft_reducer_gather_params(reducer, nullptr) == WEFT_ERR_MISMATCH);
  CHECK(weft_reducer_gather_params(reducer, nullptr) == WEFT_OK);
  CHECK(weft_reducer_wait_param(reducer, 0, 0) == WEFT_OK);
  CHECK(weft_reducer_destroy(&reducer) == WEFT_OK);
}

namespace {

// A rank with two reducers. Returns the errors of their calls when one field of the options is wrong.
struct Refusals {
  Refusals() {
    param.name = "p";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &shape;
    param.parameter = value;
    options.params = &param;
    options.param_count = 1;
    REQUIRE(weft_reducer_create(solo.comm, &options, &plain, nullptr) == WEFT_OK);
    options.flags = WEFT_REDUCER_SHARDED | WEFT_REDUCER_UNEVEN;
    REQUIRE(weft_reducer_create(solo.comm, &options, &sharded, nullptr) == WEFT_OK);
    options.flags = 0;
  }
  ~Refusals() {
    weft_reducer_destroy(&plain);
    weft_reducer_destroy(&sharded);
  }

  std::string context(weft_context_options wrong) {
    weft_context* made = nullptr;
    return said(weft_context_create(&wrong, &made, &error));
  }
  std::string comm(void (*change)(weft_comm_options&)) {
    weft_comm_options wrong = WEFT_COMM_OPTIONS_INIT;
    wrong.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
    wrong.size = 1;
    wrong.all_gather = weft_test::gather;
    wrong.all_gather_user_data = &solo.member;
    change(wrong);
    weft_comm* made = nullptr;
    return said(weft_comm_create(solo.context, &wrong, &made, &error));
  }
  std::string shrink(uint64_t flags, int64_t timeout_ms) {
    weft_shrink_options wrong = WEFT_SHRINK_OPTIONS_INIT;
    wrong.flags = flags;
    wrong.timeout_ms = timeout_ms;
    weft_comm* made = nullptr;
    return said(weft_comm_shrink(solo.comm, &wrong, &made, &error));
  }
  std::string collective(int32_t dtype, int32_t op, uint64_t flags = 0, int64_t timeout_ms = 0,
                         int32_t stream = WEFT_DEVICE_HOST) {
    weft_coll_options wrong = WEFT_COLL_OPTIONS_INIT;
    const weft_stream on = {sizeof(weft_stream), stream, 0, nullptr};
    wrong.flags = flags;
    wrong.timeout_ms = timeout_ms;
    wrong.stream = &on;
    const weft_status status = weft_all_reduce(solo.comm, value, value, 4, dtype, op, &wrong, nullptr);
    weft_comm_error(solo.comm, &error);
    return said(status);
  }
  std::string root(int32_t wrong) {
    const weft_status status = weft_broadcast(solo.comm, value, 4, WEFT_DTYPE_F32, wrong, nullptr, nullptr);
    weft_comm_error(solo.comm, &error);
    return said(status);
  }
  std::string create(void (*change)(weft_reducer_options&, weft_param&)) {
    weft_reducer_options wrong = options;
    weft_param other = param;
    wrong.params = &other;
    change(wrong, other);
    weft_reducer* made = nullptr;
    return said(weft_reducer_create(solo.comm, &wrong, &made, &error));
  }
  std::string of(weft_reducer* reducer, weft_status status) {
    weft_reducer_error(reducer, &error);
    return said(status);
  }
  std::string said(weft_status status) const {
    CHECK(status == WEFT_ERR_ARG);
    return error.text;
  }

  Solo solo;
  float value[4] = {};
  int64_t shape = 4;
  weft_param param = WEFT_PARAM_INIT;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  weft_reducer *plain = nullptr, *sharded = nullptr;
  weft_error error = WEFT_ERROR_INIT;
};

std::string with_begin(Refusals& r, uint64_t flags) {
  weft_begin_options wrong = WEFT_BEGIN_OPTIONS_INIT;
  wrong.flags = flags;
  return r.of(r.plain, weft_reducer_begin(r.plain, &wrong));
}
std::string with_finish(Refusals& r, uint64_t flags, double clip_norm) {
  weft_finish_options wrong = WEFT_FINISH_OPTIONS_INIT;
  wrong.flags = flags;
  wrong.clip_norm = clip_norm;
  CHECK(weft_reducer_begin(r.plain, nullptr) == WEFT_OK);
  std::string text = r.of(r.plain, weft_reducer_finish(r.plain, &wrong));
  CHECK(weft_reducer_ready(r.plain, 0, r.value, nullptr) == WEFT_OK);
  CHECK(weft_reducer_finish(r.plain, nullptr) == WEFT_OK);
  return text;
}
std::string with_gather(Refusals& r, uint64_t flags, int64_t timeout_ms) {
  weft_gather_options wrong = WEFT_GATHER_OPTIONS_INIT;
  wrong.flags = flags;
  wrong.timeout_ms = timeout_ms;
  std::string text = r.of(r.sharded, weft_reducer_gather_params(r.sharded, &wrong));
  (void)weft_reducer_gather_params(r.sharded, nullptr);  // fails as well, on all ranks
  return text;
}
std::string with_join(Refusals& r, uint64_t flags, int64_t timeout_ms) {
  weft_join_options wrong = WEFT_JOIN_OPTIONS_INIT;
  wrong.finish_flags = flags;
  wrong.timeout_ms = timeout_ms;
  return r.of(r.sharded, weft_reducer_join(r.sharded, &wrong, nullptr));
}
std::string with_broadcast(Refusals& r, uint64_t flags, int64_t timeout_ms, int32_t root) {
  weft_broadcast_options wrong = WEFT_BROADCAST_OPTIONS_INIT;
  wrong.flags = flags;
  wrong.timeout_ms = timeout_ms;
  wrong.root = root;
  return r.said(weft_reducer_broadcast(r.plain, &wrong, &r.error));
}
std::string with_replan(Refusals& r, int32_t planner) {
  weft_replan_options wrong = WEFT_REPLAN_OPTIONS_INIT;
  wrong.planner = planner;
  return r.said(weft_reducer_replan(r.plain, &wrong, &r.error));
}
weft_context_options context_with(int32_t progress, int32_t log_level, uint64_t flags = 0) {
  weft_context_options wrong = WEFT_CONTEXT_OPTIONS_INIT;
  wrong.progress = progress;
  wrong.log_level = log_level;
  wrong.flags = flags;
  return wrong;
}

constexpr uint64_t kNoFlag = uint64_t{1} << 40;
constexpr const char* kMs = "milliseconds above 0, 0 for the default, and WEFT_TIMEOUT_INFINITE (-1)";

}  // namespace

TEST_CASE("an argument that is not allowed is named, with its value and what is allowed") {
  struct Case {
    const char* field;
    const char* value;
    const char* allowed;
    std::string (*call)(Refusals&);
  };
  using R = Refusals;
  const Case cases[] = {
      {"weft_context_options.progress", "is 7", "WEFT_PROGRESS_THREAD (1), WEFT_PROGRESS_CALLER (2)",
       [](R& r) { return r.context(context_with(7, 0)); }},
      {"weft_context_options.log_level", "is -3", "WEFT_LOG_OFF (0) to WEFT_LOG_DEBUG (4)",
       [](R& r) { return r.context(context_with(0, -3)); }},
      {"weft_context_options.flags", "0x10000000000", "WEFT_CONTEXT_STREAM_WAITS (0x2)",
       [](R& r) { return r.context(context_with(0, 0, kNoFlag)); }},
      {"weft_comm_options.flags", "0x10000000000", "WEFT_COMM_STORE_EXTERNAL (0x1), WEFT_COMM_DEVICE (0x2)",
       [](R& r) { return r.comm([](weft_comm_options& o) { o.flags = kNoFlag; }); }},
      {"weft_comm_options.bootstrap", "is 9", "WEFT_BOOTSTRAP_CALLBACK (2), WEFT_BOOTSTRAP_UNIQUE_ID (3)",
       [](R& r) { return r.comm([](weft_comm_options& o) { o.bootstrap = 9; }); }},
      {"weft_comm_options.init_timeout_ms", "is -5", kMs,
       [](R& r) { return r.comm([](weft_comm_options& o) { o.init_timeout_ms = -5; }); }},
      {"weft_comm_options.op_timeout_ms", "is -2", kMs,
       [](R& r) { return r.comm([](weft_comm_options& o) { o.op_timeout_ms = -2; }); }},
      {"weft_comm_options.heartbeat_timeout_ms", "is 99", "100 milliseconds and more",
       [](R& r) { return r.comm([](weft_comm_options& o) { o.heartbeat_timeout_ms = 99; }); }},
      {"weft_comm_options.size", "is 0", "1 to 65536",
       [](R& r) { return r.comm([](weft_comm_options& o) { o.size = 0; }); }},
      {"weft_comm_options.rank", "is 1", "0 to 0",
       [](R& r) { return r.comm([](weft_comm_options& o) { o.rank = 1; }); }},
      {"weft_shrink_options.flags", "0x8", "WEFT_SHRINK_LAST_OF_TWO (0x1)",
       [](R& r) { return r.shrink(8, 0); }},
      {"weft_shrink_options.timeout_ms", "is -2", kMs, [](R& r) { return r.shrink(0, -2); }},
      {"dtype", "is 99", "WEFT_DTYPE_U8 (1), WEFT_DTYPE_I8 (2)",
       [](R& r) { return r.collective(99, WEFT_OP_SUM); }},
      {"op", "is 77", "WEFT_OP_SUM (1) to WEFT_OP_USER (10)",
       [](R& r) { return r.collective(WEFT_DTYPE_F32, 77); }},
      {"weft_coll_options.flags", "0x3", "it must be 0",
       [](R& r) { return r.collective(WEFT_DTYPE_F32, WEFT_OP_SUM, 3); }},
      {"weft_coll_options.timeout_ms", "is -7", kMs,
       [](R& r) { return r.collective(WEFT_DTYPE_F32, WEFT_OP_SUM, 0, -7); }},
      {"weft_stream.kind", "is 5", "WEFT_DEVICE_HOST (0), WEFT_DEVICE_CUDA (1)",
       [](R& r) { return r.collective(WEFT_DTYPE_F32, WEFT_OP_SUM, 0, 0, 5); }},
      {"root", "is 3", "0 to 0", [](R& r) { return r.root(3); }},
      {"weft_reducer_options.flags", "0x10000000000", "WEFT_REDUCER_UNEVEN (0x4)",
       [](R& r) { return r.create([](weft_reducer_options& o, weft_param&) { o.flags = kNoFlag; }); }},
      {"weft_reducer_options.mode", "is 77", "WEFT_GRADIENT_COPY (1), WEFT_GRADIENT_VIEW (2)",
       [](R& r) { return r.create([](weft_reducer_options& o, weft_param&) { o.mode = 77; }); }},
      {"weft_reducer_options.divide_by", "is 99", "WEFT_DIVIDE_WORLD (0), WEFT_DIVIDE_ACTIVE (1)",
       [](R& r) { return r.create([](weft_reducer_options& o, weft_param&) { o.divide_by = 99; }); }},
      {"weft_reducer_options.accumulation", "is 3",
       "WEFT_ACCUMULATION_PROGRAM (1), WEFT_ACCUMULATION_REDUCER (2)",
       [](R& r) { return r.create([](weft_reducer_options& o, weft_param&) { o.accumulation = 3; }); }},
      {"weft_reducer_options.buffers_root", "is 8", "0 to 0 and WEFT_ROOT_LAST_ACTIVE (-1)",
       [](R& r) { return r.create([](weft_reducer_options& o, weft_param&) { o.buffers_root = 8; }); }},
      {"weft_reducer_options.reduce_dtype", "is 1", "WEFT_DTYPE_BF16 (10), WEFT_DTYPE_F32 (11)",
       [](R& r) { return r.create([](weft_reducer_options& o, weft_param&) { o.reduce_dtype = 1; }); }},
      {"weft_reducer_options.timeout_ms", "is -2", kMs,
       [](R& r) { return r.create([](weft_reducer_options& o, weft_param&) { o.timeout_ms = -2; }); }},
      {"weft_param.flags", "0x20", "WEFT_PARAM_SPARSE (0x1), WEFT_PARAM_STATE_ONLY (0x2)",
       [](R& r) { return r.create([](weft_reducer_options&, weft_param& p) { p.flags = 32; }); }},
      {"dtype", "66", "WEFT_DTYPE_U8 (1) to WEFT_DTYPE_C128 (14)",
       [](R& r) { return r.create([](weft_reducer_options&, weft_param& p) { p.dtype = 66; }); }},
      {"weft_begin_options.flags", "0x10000000000", "WEFT_BEGIN_LOCAL (0x1)",
       [](R& r) { return with_begin(r, kNoFlag | WEFT_BEGIN_LOCAL); }},
      {"weft_finish_options.flags", "0x10000000000", "WEFT_FINISH_COMMIT (0x1)",
       [](R& r) { return with_finish(r, kNoFlag, 0); }},
      {"weft_finish_options.clip_norm", "is -1", "finite numbers above 0",
       [](R& r) { return with_finish(r, 0, -1); }},
      {"weft_gather_options.flags", "0x1", "it must be 0", [](R& r) { return with_gather(r, 1, 0); }},
      {"weft_gather_options.timeout_ms", "is -2", kMs, [](R& r) { return with_gather(r, 0, -2); }},
      {"weft_join_options.finish_flags", "0x2", "WEFT_FINISH_COMMIT (0x1)",
       [](R& r) { return with_join(r, 3, 0); }},
      {"weft_join_options.timeout_ms", "is -2", kMs, [](R& r) { return with_join(r, 0, -2); }},
      {"weft_broadcast_options.flags", "0x10", "WEFT_BROADCAST_BUFFERS (0x4)",
       [](R& r) { return with_broadcast(r, 16, 0, 0); }},
      {"weft_broadcast_options.timeout_ms", "is -2", kMs, [](R& r) { return with_broadcast(r, 0, -2, 0); }},
      {"weft_broadcast_options.root", "is 4", "0 to 0 and WEFT_ROOT_LAST_ACTIVE (-1)",
       [](R& r) { return with_broadcast(r, 0, 0, 4); }},
      {"weft_replan_options.planner", "is 12", "WEFT_PLANNER_LIMITS (1), WEFT_PLANNER_MODEL (2)",
       [](R& r) { return with_replan(r, 12); }},
      {"timeout_ms", "is -3", "WEFT_TIMEOUT_INFINITE (-1), and WEFT_TIMEOUT_POLL (-2)",
       [](R& r) { return r.of(r.plain, weft_reducer_wait_param(r.plain, 0, -3)); }},
  };
  Refusals refusals;
  for (const Case& each : cases) {
    const std::string text = each.call(refusals);
    INFO(text);
    for (const char* const part : {each.field, each.value, each.allowed}) {
      INFO(part);
      CHECK(text.find(part) != std::string::npos);
    }
    CHECK(text.find(": ") != std::string::npos);
  }
}

}  // namespace capi_arguments
