// Bad input through the C ABI: every pointer, count, dtype, rank, size, flag and struct that a program can
// get wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"
#include "support/sanitized.h"

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

TEST_CASE("the init functions know the library's defaults, not the program's facts") {
  weft_context_options context;
  CHECK(weft_context_options_init(&context, sizeof context) == WEFT_OK);
  CHECK(context.struct_size == sizeof context);
  CHECK(context.version == 0);
  weft_reducer_options reducer;
  CHECK(weft_reducer_options_init(&reducer, sizeof reducer) == WEFT_OK);
  CHECK(reducer.param_size == 0);
  struct Newer {
    weft_comm_options known;
    uint64_t unknown;
  } newer;
  newer.unknown = 7;
  CHECK(weft_comm_options_init(&newer.known, sizeof newer) == WEFT_OK);
  CHECK(newer.known.struct_size == sizeof newer);
  CHECK(newer.unknown == 0);
  CHECK(weft_comm_options_init(nullptr, sizeof newer) == WEFT_ERR_ARG);
  CHECK(weft_comm_options_init(&newer.known, 0) == WEFT_ERR_ARG);
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
  newer.known.struct_size = offsetof(weft_hook_table, plan);  // reaches no plan
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
  weft_reducer_options options;
  REQUIRE(weft_reducer_options_init(&options, sizeof options) == WEFT_OK);
  options.params = &params[0].known;
  options.param_count = 2;  // param_size is not said: the first parameter says it
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
  CHECK(std::string(error.text) == "the program was compiled with weft.h 0.10, this library is 0.9");
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
  CHECK(all_reduce(a, a + 1, 4, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);     // overlap
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
  // None of this failed the communicator, which says what was wrong with the last one.
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_comm_error(solo.comm, &error) == WEFT_OK);
  CHECK(error.code == WEFT_OK);
  CHECK(std::string(error.text) == "unknown kind of stream 9");
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

TEST_CASE("backends are listed with why they are not available, and what works is not shrunk") {
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
    if (!weft::test::kThreadSanitizer) {  // it does not support threads in the child of a threaded process
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
  // The parent goes on.
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
  // Complete already: it may run here or, if the lane has not let go of the request yet, on the callback
  // thread; destroying the communicator waits for it.
  weft_request_release(&request);
  weft_comm_destroy(&solo.comm);
  CHECK(seen.called);
  CHECK(seen.barrier == WEFT_ERR_STATE);
  CHECK(seen.query == WEFT_ERR_STATE);
  CHECK(seen.destroy == WEFT_ERR_STATE);
  CHECK(seen.reads);
}

TEST_CASE(
    "norms, owned slices and gathers check their arguments, and say what a reducer must be created with") {
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
  weft_reduced_piece piece{};
  CHECK(weft_reducer_reduced_view(nullptr, 0, nullptr, &count) == WEFT_ERR_ARG);
  CHECK(weft_reducer_norms(nullptr, &norms, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_reducer_owned(nullptr, 0, nullptr, &count) == WEFT_ERR_ARG);
  CHECK(weft_reducer_gather_params(nullptr, nullptr) == WEFT_ERR_ARG);
  weft_reducer* reducer = nullptr;
  REQUIRE(weft_reducer_create(solo.comm, &options, &reducer, nullptr) == WEFT_OK);
  CHECK(weft_reducer_norms(reducer, &norms, nullptr) == WEFT_ERR_STATE);
  CHECK(weft_reducer_owned(reducer, 0, nullptr, &count) == WEFT_ERR_STATE);
  CHECK(weft_reducer_gather_params(reducer, nullptr) == WEFT_ERR_STATE);
  CHECK(weft_reducer_reduced_view(reducer, 0, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_reducer_reduced_view(reducer, 0, &piece, &count) == WEFT_ERR_STATE);
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
  // The next call fails on all ranks alike.
  CHECK(weft_reducer_gather_params(reducer, nullptr) == WEFT_ERR_MISMATCH);
  gather.flags = 0;
  gather.timeout_ms = -2;
  CHECK(weft_reducer_gather_params(reducer, &gather) == WEFT_ERR_ARG);
  CHECK(weft_reducer_gather_params(reducer, nullptr) == WEFT_ERR_MISMATCH);
  CHECK(weft_reducer_gather_params(reducer, nullptr) == WEFT_OK);
  CHECK(weft_reducer_wait_param(reducer, 0, 0) == WEFT_OK);
  CHECK(weft_reducer_destroy(&reducer) == WEFT_OK);
}
