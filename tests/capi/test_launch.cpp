// weft_launch_query, and where the ranks of a communicator run.
#include <unistd.h>
#include <weft/weft.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "ranks.h"
#include "support/catch.h"

namespace capi_launch {
namespace {

using weft_test::Findings;
using weft_test::Rank;

using Pairs = std::vector<std::pair<const char*, const char*>>;

// Sets variables while it lives, and hides the launcher's that the tests run under.
class Environment {
 public:
  explicit Environment(Pairs variables) : set_(std::move(variables)) {
    for (const auto& [name, value] : set_) ::setenv(name, value, 1);
  }
  ~Environment() {
    for (const auto& [name, value] : set_) ::unsetenv(name);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const Pairs set_;
};

TEST_CASE("weft_launch_query reads a process's place without a communicator") {
  const Environment variables(
      {{"WEFT_RANK", "5"}, {"WEFT_SIZE", "8"}, {"WEFT_LOCAL_RANK", "1"}, {"WEFT_LOCAL_SIZE", "4"}});
  weft_launch_info info = WEFT_LAUNCH_INFO_INIT;
  weft_error error = WEFT_ERROR_INIT;
  REQUIRE(weft_launch_query(&info, &error) == WEFT_OK);
  CHECK(info.rank == 5);
  CHECK(info.size == 8);
  CHECK(info.local_rank == 1);
  CHECK(info.local_size == 4);
  CHECK(info.host_index == -1);
  CHECK(info.host_count == 0);
  CHECK(std::string(info.launcher) == "weft");
}

TEST_CASE("weft_launch_query refuses contradicting variables, a null pointer and a wrong size") {
  weft_launch_info info = WEFT_LAUNCH_INFO_INIT;
  weft_error error = WEFT_ERROR_INIT;
  {
    const Environment variables(Pairs{{"WEFT_RANK", "8"}, {"WEFT_SIZE", "8"}});
    CHECK(weft_launch_query(&info, &error) == WEFT_ERR_ARG);
    CHECK(std::string(error.text).find("WEFT_RANK is 8") != std::string::npos);
    CHECK(weft_launch_query(&info, nullptr) == WEFT_ERR_ARG);
  }
  const Environment variables(Pairs{{"WEFT_SIZE", "1"}});
  CHECK(weft_launch_query(nullptr, &error) == WEFT_ERR_ARG);
  CHECK(weft_launch_query(&info, nullptr) == WEFT_OK);
  info.struct_size = 0;
  CHECK(weft_launch_query(&info, &error) == WEFT_ERR_ARG);
}

TEST_CASE("a communicator knows each rank's place among the ranks of its host") {
  constexpr int kSize = 5;
  const Environment variables(Pairs{{"WEFT_HOSTS", "7,3,7,7,3"}});
  struct Place {
    int32_t local_rank, local_size, host_index;
  };
  constexpr Place kPlaces[kSize] = {{0, 3, 0}, {0, 2, 1}, {1, 3, 0}, {2, 3, 0}, {1, 2, 1}};
  Findings findings;
  const std::string failed =
      weft_test::run("loopback", kSize, WEFT_PROGRESS_THREAD, nullptr, [&](Rank& rank) {
        weft_comm_info info = WEFT_COMM_INFO_INIT;
        findings.expect(weft_comm_query(rank.comm, &info) == WEFT_OK);
        const Place& place = kPlaces[rank.rank];
        findings.expect(info.local_rank == place.local_rank && info.local_size == place.local_size);
        findings.expect(info.host_index == place.host_index && info.host_count == 2);
        // In a part of the communicator the numbers are those of its own ranks.
        weft_comm* part = nullptr;
        weft_error error = WEFT_ERROR_INIT;
        findings.expect(weft_comm_split(rank.comm, rank.rank < 3 ? 0 : WEFT_COLOR_NONE, 0, &part, &error) ==
                        WEFT_OK);
        if (part == nullptr) return;
        findings.expect(weft_comm_query(part, &info) == WEFT_OK && info.host_count == 2);
        findings.expect(info.local_size == (rank.rank == 1 ? 1 : 2));
        findings.expect(weft_comm_destroy(&part) == WEFT_OK);
      });
  CHECK(failed.empty());
  CHECK(findings.wrong == 0);
}

// Returns "rank 1 is process 4711 on node07", with this process.
std::string place_of(int rank) {
  char host[256] = "";
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  return "rank " + std::to_string(rank) + " is process " + std::to_string(::getpid()) + " on " + host;
}

TEST_CASE("the error of a failed communicator names the host and the process of each rank at fault, once") {
  Findings findings;
  const std::string place = place_of(1);
  const std::string failed = weft_test::run("shm", 3, WEFT_PROGRESS_THREAD, nullptr, [&](Rank& rank) {
    if (rank.rank == 1) {
      findings.expect(weft_comm_abort(rank.comm, "the loss is NaN") == WEFT_OK);
    } else {
      findings.expect(weft_barrier(rank.comm, nullptr, nullptr) == WEFT_ERR_ABORTED);
    }
    weft_error error = WEFT_ERROR_INIT;
    weft_comm_error(rank.comm, &error);
    const std::string text = error.text;
    const size_t at = text.find(place);
    findings.expect(text.find("the loss is NaN") != text.npos && at != text.npos);
    findings.expect(at == text.npos || text.find(place, at + 1) == text.npos);
  });
  CHECK(failed.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("errors of a reducer name the host and the process of each rank at fault") {
  Findings findings;
  const std::string place = place_of(1);
  const std::string failed = weft_test::run("shm", 2, WEFT_PROGRESS_THREAD, nullptr, [&](Rank& rank) {
    const auto names_it = [&](const weft_error& error) {
      findings.expect(std::string(error.text).find(place) != std::string::npos);
    };
    int64_t shape = 8 + rank.rank;  // differs
    weft_param param = WEFT_PARAM_INIT;
    param.name = "weight";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &shape;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    weft_reducer* reducer = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    findings.expect(weft_reducer_create(rank.comm, &options, &reducer, &error) == WEFT_ERR_MISMATCH);
    names_it(error);
    shape = 8;
    findings.expect(weft_reducer_create(rank.comm, &options, &reducer, &error) == WEFT_OK);
    if (reducer == nullptr) return;
    float gradient[8] = {};
    findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
    if (rank.rank == 1) {
      findings.expect(weft_reducer_fail(reducer, "the loss is NaN") == WEFT_OK);
    } else {
      findings.expect(weft_reducer_ready(reducer, 0, gradient, nullptr) == WEFT_OK);
      findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_STEP_FAILED);
    }
    findings.expect(weft_reducer_error(reducer, &error) == WEFT_ERR_STEP_FAILED);
    names_it(error);
    findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
  });
  CHECK(failed.empty());
  CHECK(findings.wrong == 0);
}

}  // namespace
}  // namespace capi_launch
