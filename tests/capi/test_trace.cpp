// WEFT_TRACE.
#include <unistd.h>
#include <weft/weft.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "ranks.h"
#include "support/catch.h"

namespace capi_trace {
namespace {

using weft_test::Findings;
using weft_test::Rank;

// A folder that WEFT_TRACE names.
struct Folder {
  Folder() {
    REQUIRE(::mkdtemp(path) != nullptr);
    ::setenv("WEFT_TRACE", path, 1);
    ::setenv("WEFT_JOB", "a job/..", 1);
  }
  ~Folder() {
    ::unsetenv("WEFT_TRACE");
    ::unsetenv("WEFT_JOB");
    std::filesystem::remove_all(path);
  }
  char path[40] = "/tmp/weft-test-trace-XXXXXX";

  // Returns the content of all its files, and their number.
  std::string content(int* files) const {
    std::stringstream content;
    *files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      INFO(entry.path());
      CHECK(entry.path().filename().string().rfind("weft-a_job_..-rank0", 0) == 0);
      CHECK(entry.path().extension() == ".json");
      content << std::ifstream(entry.path()).rdbuf();
      (*files)++;
    }
    return content.str();
  }
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) count++;
  return count;
}

void reduce(Rank& rank, Findings& findings) {
  float value = 1;
  findings.expect(weft_all_reduce(rank.comm, &value, &value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                                  nullptr) == WEFT_OK);
}

TEST_CASE("WEFT_TRACE writes a trace of each context when it is destroyed") {
  const Folder folder;
  Findings findings;
  int files = 0;
  const std::string failed = weft_test::run("shm", 2, WEFT_PROGRESS_THREAD, nullptr, [&](Rank& rank) {
    for (int i = 0; i < 3; i++) reduce(rank, findings);
  });
  CHECK(failed.empty());
  CHECK(findings.wrong == 0);
  const std::string content = folder.content(&files);
  CHECK(files == 2);
  CHECK(count_of(content, "\"name\":\"all_reduce\"") == 6);
  // Rank 1 may have left before it knew its own.
  CHECK(count_of(content, "\"clock_offset_ns\"") >= 1);
}

TEST_CASE("the program's own trace replaces that of WEFT_TRACE") {
  const Folder folder;
  Findings findings;
  int files = 0;
  const std::string failed = weft_test::run("shm", 2, WEFT_PROGRESS_THREAD, nullptr, [&](Rank& rank) {
    reduce(rank, findings);
    findings.expect(weft_trace_start(rank.context, 0) == WEFT_OK);
    reduce(rank, findings);
    findings.expect(weft_trace_stop(rank.context) == WEFT_OK);
    const std::string path =
        std::string(folder.path) + "/weft-a_job_..-rank0-own" + std::to_string(rank.rank) + ".json";
    findings.expect(weft_trace_write(rank.context, path.c_str()) == WEFT_OK);
  });
  CHECK(failed.empty());
  CHECK(findings.wrong == 0);
  const std::string content = folder.content(&files);
  CHECK(files == 4);
  CHECK(count_of(content, "\"name\":\"all_reduce\"") == 2);
}

TEST_CASE("a folder of WEFT_TRACE that takes no files is an error of weft_context_create") {
  ::setenv("WEFT_TRACE", "/nowhere/traces", 1);
  weft_context* context = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_context_create(nullptr, &context, &error) == WEFT_ERR_SYSTEM);
  CHECK(std::string(error.text).find("/nowhere/traces/weft-") != std::string::npos);
  ::unsetenv("WEFT_TRACE");
}

}  // namespace
}  // namespace capi_trace
