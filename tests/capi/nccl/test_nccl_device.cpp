// weft_comm_options.device: the device that a communicator over nccl uses.
#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "capi/fake_nccl.h"

namespace capi_nccl_device {

using namespace weft_test;

namespace {

constexpr int kThreadsDevice = 5;  // current device of every rank's thread

// A rank's result for its options.
struct Made {
  weft_status status = WEFT_OK;
  std::string error;
  std::string transports;
  int current = -1;  // the thread's current device afterwards
};

// Two ranks create a communicator. `body` runs if that succeeds.
std::array<Made, 2> make(
    const char* backend, const std::function<void(int rank, weft_comm_options*)>& configure,
    const std::function<void(int rank, weft_comm* comm)>& body = [](int, weft_comm*) {}) {
  Gathering gathering(2);
  std::array<Made, 2> made;
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++) {
    threads.emplace_back([&, r] {
      Made& mine = made[static_cast<size_t>(r)];
      Member member{&gathering, r};
      weft_error error = WEFT_ERROR_INIT;
      weft_context* context = nullptr;
      weft_comm* comm = nullptr;
      weft_context_create(nullptr, &context, &error);
      cudaSetDevice(kThreadsDevice);
      weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
      options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
      options.rank = r;
      options.size = 2;
      options.all_gather = gather;
      options.all_gather_user_data = &member;
      options.backend = backend;
      options.init_timeout_ms = options.op_timeout_ms = 20'000;
      configure(r, &options);
      mine.status = weft_comm_create(context, &options, &comm, &error);
      mine.error = error.text;
      if (mine.status == WEFT_OK) {
        weft_comm_info info{};
        info.struct_size = sizeof info;
        weft_comm_query(comm, &info);
        mine.transports = info.transports;
        body(r, comm);
      }
      cudaGetDevice(&mine.current);
      weft_comm_destroy(&comm);
      weft_context_destroy(&context);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return made;
}

void name_device(weft_comm_options* options, int device) {
  options->flags |= WEFT_COMM_DEVICE;
  options->device = device;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a communicator works on the device of its options, not on the thread's current one") {
  const FakeNccl fake;
  RankFailures failures;
  const auto sum = [&](int rank, weft_comm* comm) {
    const int device = rank + 2;
    const Stream stream(device);
    DeviceBuffer<float> values(1000, device);
    values.write(stream, [&](size_t i) { return static_cast<float>(rank + 1) * static_cast<float>(i); });
    const weft_coll_options options = on(stream);
    const weft_status status = weft_all_reduce(comm, values.get(), values.get(), 1000, WEFT_DTYPE_F32,
                                               WEFT_OP_SUM, &options, nullptr);
    failures.expect(status == WEFT_OK, error_of(comm));
    failures.expect(values.read(stream)[999] == 3 * 999.0f, "the sum");
    // A split inherits the device.
    cudaSetDevice(kThreadsDevice);
    weft_comm* part = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    failures.expect(weft_comm_split(comm, 0, rank, &part, &error) == WEFT_OK, error.text);
    weft_comm_info info{};
    info.struct_size = sizeof info;
    weft_comm_query(part, &info);
    failures.expect(has(info.transports, "on CUDA device " + std::to_string(device)), info.transports);
    weft_comm_destroy(&part);
  };
  const auto made =
      make("nccl", [](int rank, weft_comm_options* options) { name_device(options, rank + 2); }, sum);
  failures.check();
  for (const int rank : {0, 1}) {
    const Made& mine = made[static_cast<size_t>(rank)];
    INFO(mine.error << mine.transports);
    CHECK(mine.status == WEFT_OK);
    CHECK(has(mine.transports, "on CUDA device " + std::to_string(rank + 2)));
    CHECK(mine.current == kThreadsDevice);
  }
}

TEST_CASE("a device that one rank does not have is an error on every rank") {
  const FakeNccl fake;
  for (const char* const backend : {"nccl", "shm"}) {
    const auto made =
        make(backend, [](int rank, weft_comm_options* options) { name_device(options, rank == 1 ? 8 : 0); });
    INFO(made[0].error << '\n' << made[1].error);
    for (const Made& mine : made) {
      CHECK(mine.status == WEFT_ERR_ARG);
      CHECK(has(mine.error,
                "weft_comm_options.device is 8, but this process sees 8 CUDA devices: give 0 to 7"));
    }
    CHECK(has(made[0].error, "rank 1: "));
  }
}

TEST_CASE("a device without its flag, and one below 0, are refused") {
  const FakeNccl fake;
  auto made = make("nccl", [](int, weft_comm_options* options) { options->device = 3; });
  for (const Made& mine : made) {
    CHECK(mine.status == WEFT_ERR_ARG);
    CHECK(has(mine.error,
              "weft_comm_options.device is 3, but weft_comm_options.flags does not have WEFT_COMM_DEVICE"));
  }
  made = make("nccl", [](int, weft_comm_options* options) { name_device(options, -1); });
  for (const Made& mine : made) {
    CHECK(mine.status == WEFT_ERR_ARG);
    CHECK(has(mine.error, "weft_comm_options.device is -1; it must be 0 or more"));
  }
  made = make("nccl", [](int, weft_comm_options* options) { options->reserved2 = 1; });
  for (const Made& mine : made) CHECK(has(mine.error, "weft_comm_options.reserved2 is "));
}

}  // namespace capi_nccl_device
