// weft_metrics_text, and the files of WEFT_METRICS.
#include <sys/stat.h>
#include <unistd.h>
#include <weft/weft.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ranks.h"
#include "support/catch.h"

namespace capi_metrics {
namespace {

using weft_test::Findings;
using weft_test::Rank;

std::string text_of(weft_context* context) {
  uint64_t size = 0;
  if (weft_metrics_text(context, nullptr, &size) != WEFT_OK) return "";
  std::string text(size + 4096, '\0');
  size = text.size();
  if (weft_metrics_text(context, text.data(), &size) != WEFT_OK) return "";
  text.resize(size - 1);
  return text;
}

// Returns the value of the first sample that begins with `name` and contains `label`; -1 if there is none.
double value_of(const std::string& text, const std::string& name, const std::string& label = "") {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + "{", 0) != 0 || line.find(label) == line.npos) continue;
    return std::atof(line.substr(line.rfind(' ') + 1).c_str());
  }
  return -1;
}

// Each line is a comment, or a name, labels in braces and a number; a metric's samples follow its TYPE. No
// series occurs twice.
bool is_exposition(const std::string& text) {
  std::istringstream lines(text);
  std::set<std::string> series;
  std::string type;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# HELP ", 0) == 0 || line.rfind("# weft process ", 0) == 0) continue;
    if (line.rfind("# TYPE ", 0) == 0) {
      type = line.substr(7, line.find(' ', 7) - 7);
      continue;
    }
    char* end = nullptr;
    const size_t space = line.rfind(' ');
    if (space == line.npos || line.rfind(type, 0) != 0 || line.find('{') == line.npos) return false;
    std::strtod(line.c_str() + space + 1, &end);
    if (*end != '\0' || !series.insert(line.substr(0, space)).second) return false;
  }
  return !text.empty() && text.back() == '\n';
}

// A reducer of one parameter that has made some steps.
struct Trained {
  Trained(Rank& rank, Findings& findings, int steps) {
    const int64_t shape = 1000;
    weft_param param = WEFT_PARAM_INIT;
    param.name = "weight";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &shape;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    findings.expect(weft_reducer_create(rank.comm, &options, &reducer, nullptr) == WEFT_OK);
    for (int i = 0; i < steps; i++) {
      findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
      findings.expect(weft_reducer_ready(reducer, 0, gradient, nullptr) == WEFT_OK);
      findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    }
  }
  weft_reducer* reducer = nullptr;
  float gradient[1000] = {};
};

struct Folder {
  Folder() { REQUIRE(::mkdtemp(path) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  char path[40] = "/tmp/weft-test-metrics-XXXXXX";
};

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

TEST_CASE("the metrics of a context equal the statistics of its reducers and communicators") {
  Findings findings;
  const std::string failed = weft_test::run("shm", 2, WEFT_PROGRESS_THREAD, nullptr, [&](Rank& rank) {
    Trained trained(rank, findings, 20);
    weft_reducer_stats stats = WEFT_REDUCER_STATS_INIT;
    findings.expect(weft_reducer_query(trained.reducer, &stats) == WEFT_OK);
    weft_comm_info info = WEFT_COMM_INFO_INIT;
    findings.expect(weft_comm_query(rank.comm, &info) == WEFT_OK);
    const std::string text = text_of(rank.context);
    findings.expect(is_exposition(text));
    const auto is = [&](const char* name, const char* label, double wanted) {
      const double value = value_of(text, name, label);
      findings.expect(std::abs(value - wanted) <= 1e-6 * std::abs(wanted));
    };
    is("weft_reducer_steps_total", "result=\"synchronised\"", 20);
    is("weft_reducer_steps_total", "result=\"failed\"", 0);
    is("weft_reducer_step_seconds_count", "", 20);
    is("weft_reducer_step_seconds", "quantile=\"0.5\"", static_cast<double>(stats.step_p50_ns) * 1e-9);
    is("weft_reducer_exposed_seconds", "quantile=\"0.99\"", static_cast<double>(stats.exposed_p99_ns) * 1e-9);
    is("weft_reducer_bytes_total", "form=\"sent\"", static_cast<double>(stats.sent_bytes));
    is("weft_reducer_bytes_total", "form=\"plain\"", static_cast<double>(stats.plain_bytes));
    is("weft_reducer_memory_bytes", "part=\"buckets\"", static_cast<double>(stats.bucket_bytes));
    is("weft_comm_ranks", "backend=\"shm\"", 2);
    is("weft_comm_failed", "", 0);
    is("weft_comm_operations_total", "", static_cast<double>(info.operations));
    is("weft_comm_bytes_total", "way=\"shared\"", static_cast<double>(info.bytes_shared));
    findings.expect(text.find("rank=\"" + std::to_string(rank.rank) + "\"") != text.npos);
    // The mean is the sum over the number; the statistics round it down to nanoseconds.
    const double mean = value_of(text, "weft_reducer_step_seconds_sum") / 20;
    findings.expect(std::abs(mean - static_cast<double>(stats.mean_step_ns) * 1e-9) < 2e-9);

    findings.expect(weft_reducer_destroy(&trained.reducer) == WEFT_OK);
    findings.expect(value_of(text_of(rank.context), "weft_reducer_steps_total", "synchronised") == 20);
  });
  CHECK(failed.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("each reducer of a communicator has its own series, before and after it is destroyed") {
  Findings findings;
  const std::string failed = weft_test::run("shm", 2, WEFT_PROGRESS_THREAD, nullptr, [&](Rank& rank) {
    Trained first(rank, findings, 3);
    Trained second(rank, findings, 4);
    const auto counts = [&](const std::string& text, const std::string& steps) {
      return text.find("result=\"synchronised\"} " + steps + "\n") != text.npos;
    };
    std::string text = text_of(rank.context);
    findings.expect(is_exposition(text) && counts(text, "3") && counts(text, "4"));
    findings.expect(weft_reducer_destroy(&first.reducer) == WEFT_OK);
    Trained third(rank, findings, 5);
    text = text_of(rank.context);
    findings.expect(is_exposition(text) && counts(text, "3") && counts(text, "4") && counts(text, "5"));
    findings.expect(weft_reducer_destroy(&second.reducer) == WEFT_OK);
    findings.expect(weft_reducer_destroy(&third.reducer) == WEFT_OK);
  });
  CHECK(failed.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("weft_metrics_text refuses null pointers, and says how large the buffer must be") {
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(nullptr, &context, nullptr) == WEFT_OK);
  uint64_t size = 0;
  CHECK(weft_metrics_text(nullptr, nullptr, &size) == WEFT_ERR_ARG);
  CHECK(weft_metrics_text(context, nullptr, nullptr) == WEFT_ERR_ARG);
  REQUIRE(weft_metrics_text(context, nullptr, &size) == WEFT_OK);
  CHECK(size == 1);  // there is nothing to describe yet
  char text[1] = {'x'};
  size = 1;
  CHECK(weft_metrics_text(context, text, &size) == WEFT_OK);
  CHECK(text[0] == '\0');
  size = 0;
  CHECK(weft_metrics_text(context, text, &size) == WEFT_ERR_ARG);
  CHECK(size == 1);
  CHECK(weft_context_destroy(&context) == WEFT_OK);
}

TEST_CASE(
    "WEFT_METRICS keeps a file of each context, complete at any time and with the last numbers at the end") {
  const Folder folder;
  ::setenv("WEFT_METRICS", folder.path, 1);
  ::setenv("WEFT_METRICS_SECONDS", "1", 1);
  ::setenv("WEFT_JOB", "a job/..", 1);
  Findings findings;
  const std::string failed = weft_test::run("shm", 2, WEFT_PROGRESS_THREAD, nullptr, [&](Rank& rank) {
    Trained trained(rank, findings, 5);
    ::sleep(2);
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
      if (entry.path().extension() != ".prom") continue;
      files++;
      const std::string text = content_of(entry.path());
      findings.expect(is_exposition(text) && value_of(text, "weft_reducer_steps_total", "synchronised") == 5);
    }
    findings.expect(files == 2);
    findings.expect(weft_barrier(rank.comm, nullptr, nullptr) == WEFT_OK);
    findings.expect(weft_reducer_destroy(&trained.reducer) == WEFT_OK);
    Trained again(rank, findings, 7);
    findings.expect(weft_reducer_destroy(&again.reducer) == WEFT_OK);
  });
  CHECK(failed.empty());
  CHECK(findings.wrong == 0);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    INFO(entry.path());
    CHECK(entry.path().filename().string().rfind("weft-a_job_..-rank0", 0) == 0);
    const std::string text = content_of(entry.path());
    CHECK(text.find("result=\"synchronised\"} 7\n") != std::string::npos);
    CHECK(is_exposition(text));
    CHECK(value_of(text, "weft_comm_failed") == 0);
    files++;
  }
  CHECK(files == 2);
  ::unsetenv("WEFT_METRICS");
  ::unsetenv("WEFT_METRICS_SECONDS");
  ::unsetenv("WEFT_JOB");
}

TEST_CASE("a folder that takes no files is an error at first, and later a line of the log") {
  Folder folder;
  weft_context* context = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  ::setenv("WEFT_METRICS", "/nowhere/metrics", 1);
  CHECK(weft_context_create(nullptr, &context, &error) == WEFT_ERR_SYSTEM);
  CHECK(std::string(error.text).find("/nowhere/metrics/weft-") != std::string::npos);
  CHECK(std::string(error.text).find("WEFT_METRICS") != std::string::npos);
  for (const char* wrong : {"0", "x", "3601"}) {
    ::setenv("WEFT_METRICS_SECONDS", wrong, 1);
    CHECK(weft_context_create(nullptr, &context, &error) == WEFT_ERR_ARG);
    CHECK(std::string(error.text).find("from 1 to 3600") != std::string::npos);
  }
  ::setenv("WEFT_METRICS", folder.path, 1);
  ::setenv("WEFT_METRICS_SECONDS", "1", 1);
  std::atomic<int> lines{0};
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  options.log = [](void* user_data, int32_t, const char* line) {
    if (std::string(line).find("metrics: cannot create") != std::string::npos)
      static_cast<std::atomic<int>*>(user_data)->fetch_add(1);
  };
  options.log_user_data = &lines;
  REQUIRE(weft_context_create(&options, &context, &error) == WEFT_OK);
  std::filesystem::remove_all(folder.path);
  for (int i = 0; i < 100 && lines == 0; i++) ::usleep(100'000);
  ::usleep(1'500'000);
  CHECK(lines == 1);
  CHECK(weft_context_destroy(&context) == WEFT_OK);
  ::unsetenv("WEFT_METRICS");
  ::unsetenv("WEFT_METRICS_SECONDS");
}

// Creates a context with WEFT_METRICS, and destroys it once its file is there.
void write_metrics(const char* folder) {
  ::setenv("WEFT_METRICS", folder, 1);
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(nullptr, &context, nullptr) == WEFT_OK);
  CHECK(weft_context_destroy(&context) == WEFT_OK);
  ::unsetenv("WEFT_METRICS");
}

TEST_CASE("a context removes the metrics that processes of the past have left, and nothing else") {
  const Folder folder;
  const std::filesystem::path in = folder.path;
  const auto write = [&](const std::string& name, const std::string& text, int64_t age) {
    std::ofstream(in / name) << text;
    std::filesystem::last_write_time(
        in / name, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(age));
  };
  write_metrics(folder.path);
  const std::string own = content_of(std::filesystem::directory_iterator(folder.path)->path());
  REQUIRE(own.rfind("# weft process ", 0) == 0);
  std::istringstream fields(own.substr(15));
  std::string pid, start, space, boot;
  fields >> pid >> start >> space >> boot;
  const auto process = [](const auto&... words) {
    std::string line = "# weft process";
    ((line += " " + words), ...);
    return line + "\n";
  };
  const std::string died = process(pid, std::string("1"), space, boot);  // the process's number was reused
  const std::string elsewhere = process(pid, std::string("1"), space, std::string("another-boot"));
  write("weft-1-rank0.prom", died, 400);
  write("weft-1-rank0.prom.1.tmp", "", 400);
  write("weft-2-rank0.prom", elsewhere, 8000);
  const std::vector<std::string> left = {"weft-3-rank0.prom",      "weft-4-rank0.prom", "weft-5-rank0.prom",
                                         "weft-6-rank0.prom",      "other-1.prom",      "weft-1-rank0.json",
                                         "weft-1-rank0.prom.2.tmp"};
  write(left[0], process(pid, start, space, boot), 8000);  // it runs
  write(left[1], died, 100);                               // its last numbers may not have been read
  write(left[2], elsewhere, 400);                          // it may run
  write(left[3], "# another program\n", 8000);
  write(left[4], died, 8000);
  write(left[5], died, 8000);
  write(left[6], "", 100);
  write_metrics(folder.path);
  for (const char* gone : {"weft-1-rank0.prom", "weft-1-rank0.prom.1.tmp", "weft-2-rank0.prom"}) {
    INFO(gone);
    CHECK_FALSE(std::filesystem::exists(in / gone));
  }
  for (const std::string& name : left) {
    INFO(name);
    CHECK(std::filesystem::exists(in / name));
  }
}

TEST_CASE("a file system that hangs delays a context by a second, and is a line of the log") {
  // The library opens a file beside the one that it replaces. A FIFO there lets it wait for a reader.
  const Folder folder;
  ::setenv("WEFT_JOB", "hanging", 1);
  for (int number = 0; number < 64; number++) {  // a process numbers its files
    const std::string name = "weft-hanging-rank0" + (number == 0 ? "" : "-" + std::to_string(number));
    const auto beside =
        std::filesystem::path(folder.path) / (name + ".prom." + std::to_string(::getpid()) + ".tmp");
    REQUIRE(::mkfifo(beside.c_str(), 0600) == 0);
  }
  ::setenv("WEFT_METRICS", folder.path, 1);
  std::atomic<int> lines{0};
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  options.log = [](void* user_data, int32_t, const char* line) {
    if (std::string(line).find("could not be written within 1000 ms (WEFT_METRICS)") != std::string::npos)
      static_cast<std::atomic<int>*>(user_data)->fetch_add(1);
  };
  options.log_user_data = &lines;
  weft_context* context = nullptr;
  const auto begun = std::chrono::steady_clock::now();
  REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
  const auto passed = std::chrono::steady_clock::now() - begun;
  CHECK(passed >= std::chrono::milliseconds(900));
  CHECK(passed < std::chrono::seconds(10));
  CHECK(lines == 1);
  CHECK(weft_context_destroy(&context) == WEFT_OK);
  ::unsetenv("WEFT_METRICS");
  ::unsetenv("WEFT_JOB");
}

}  // namespace
}  // namespace capi_metrics
