// The flight record through the public header: written into the context's folder at a failure, and on
// request.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_flight {

namespace {

// A context with a temporary folder for flight records, and a communicator of one rank.
struct Alone {
  Alone() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-flight-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    parent = name;
    folder = parent / "made";
    const std::string path = folder.string();
    weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
    options.flight_path = path.c_str();
    REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
    weft_comm_options comm_options = WEFT_COMM_OPTIONS_INIT;
    comm_options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
    comm_options.size = 1;
    comm_options.all_gather = weft_test::gather;
    comm_options.all_gather_user_data = &member;
    REQUIRE(weft_comm_create(context, &comm_options, &comm, nullptr) == WEFT_OK);
  }
  ~Alone() {
    weft_comm_destroy(&comm);
    weft_context_destroy(&context);
    std::filesystem::remove_all(parent);
  }
  // Returns the text of the only file in the folder; empty if there is none.
  std::string record() const {
    std::ostringstream text;
    if (!std::filesystem::exists(folder)) return {};
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      text << entry.path().filename().string() << ": " << std::ifstream(entry.path()).rdbuf();
    }
    return text.str();
  }
  weft_test::Gathering gathering{1};
  weft_test::Member member{&gathering, 0};
  std::filesystem::path parent, folder;
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
};

}  // namespace

TEST_CASE("the first failure of a communicator is written into the context's folder, which is created") {
  Alone alone;
  CHECK(weft_barrier(alone.comm, nullptr, nullptr) == WEFT_OK);
  CHECK(alone.record().empty());
  CHECK(weft_comm_abort(alone.comm, "enough") == WEFT_OK);
  CHECK(weft_barrier(alone.comm, nullptr, nullptr) == WEFT_ERR_ABORTED);
  const std::string record = alone.record();
  INFO(record);
  CHECK(record.find("-rank0.json: ") != std::string::npos);
  CHECK(record.find("enough") != std::string::npos);
  CHECK(record.find("\"coll\":\"barrier\"") != std::string::npos);
  CHECK(record.find(".tmp") == std::string::npos);
}

TEST_CASE("a communicator that is only destroyed leaves no record") {
  Alone alone;
  CHECK(weft_barrier(alone.comm, nullptr, nullptr) == WEFT_OK);
  CHECK(weft_comm_destroy(&alone.comm) == WEFT_OK);
  CHECK(alone.record().empty());
}

TEST_CASE("a program can write its record at any time, and again") {
  Alone alone;
  for (int i = 0; i < 2; i++) {
    CHECK(weft_barrier(alone.comm, nullptr, nullptr) == WEFT_OK);
    CHECK(weft_flight_write(alone.comm, alone.folder.string().c_str()) == WEFT_OK);
  }
  const std::string record = alone.record();
  INFO(record);
  CHECK(record.find("\"completed\":2") != std::string::npos);
  CHECK(record.find("\"failure\"") == std::string::npos);
  CHECK(weft_flight_write(alone.comm, (alone.parent / "not" / "there").string().c_str()) == WEFT_ERR_SYSTEM);
  CHECK(weft_flight_write(alone.comm, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_flight_write(nullptr, "/tmp") == WEFT_ERR_ARG);
}

TEST_CASE("the record contains tagged messages in flight, with their tags") {
  Alone alone;
  float number = 0;
  weft_request* request = nullptr;
  CHECK(weft_recv_tagged(alone.comm, &number, 1, WEFT_DTYPE_F32, WEFT_ANY_SOURCE, 0xabc, nullptr, nullptr,
                         &request) == WEFT_OK);
  CHECK(weft_flight_write(alone.comm, alone.folder.string().c_str()) == WEFT_OK);
  std::string record = alone.record();
  INFO(record);
  CHECK(record.find("\"waiters\":0") != std::string::npos);
  CHECK(record.find("\"messages\":[{\"kind\":\"receive\",\"tag\":\"0000000000000abc\",\"dtype\":\"f32\","
                    "\"count\":1,\"state\":\"unmatched\"") != std::string::npos);
  weft_status waited = WEFT_OK;
  std::thread waiter([&] { waited = weft_request_wait(request, 60'000); });
  for (int looks = 0; looks < 6000 && record.find("\"waiters\":1") == std::string::npos; looks++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(weft_flight_write(alone.comm, alone.folder.string().c_str()) == WEFT_OK);
    record = alone.record();
  }
  CHECK(record.find("\"waiters\":1") != std::string::npos);
  CHECK(weft_request_cancel(request) == WEFT_OK);
  waiter.join();
  CHECK(waited == WEFT_ERR_CANCELLED);
  CHECK(weft_request_release(&request) == WEFT_OK);
}

TEST_CASE("the record contains a reducer's step, also after the reducer was bound to another communicator") {
  Alone alone;
  const int64_t count = 7;
  const weft_param param = {sizeof(weft_param), "a", WEFT_DTYPE_F32, 1, &count, nullptr, 0, 0, 0};
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  weft_reducer* reducer = nullptr;
  REQUIRE(weft_reducer_create(alone.comm, &options, &reducer, nullptr) == WEFT_OK);
  for (int i = 0; i < 2; i++) {
    CHECK(weft_flight_write(alone.comm, alone.folder.string().c_str()) == WEFT_OK);
    const std::string record = alone.record();
    INFO(record);
    CHECK(record.find("\"buckets\":1") != std::string::npos);
    CHECK(weft_reducer_rebind(reducer, alone.comm, nullptr) == WEFT_OK);
  }
  CHECK(weft_reducer_destroy(&reducer) == WEFT_OK);
}

}  // namespace capi_flight
