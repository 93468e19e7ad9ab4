// main() of every Catch2 program, and a listener that reports each test case to tests/run.py. Catch2's own
// reporters count assertions, lose the case that a crash interrupts, and differ between 2.13 and 3.
// The listener writes to the file that WEFT_TEST_REPORT names, one line an event, fields divided by tabs:
// program catch2 | start NAME | pass NAME | fail NAME | skip NAME REASON
// WEFT_TEST_SEED is the default of --rng-seed (support/seed.h).
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string_view>

#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include "support/catch.h"

namespace {

#if WEFT_CATCH2_V3
using ListenerBase = Catch::EventListenerBase;
#else
using ListenerBase = Catch::TestEventListenerBase;
#endif

class ReportListener : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;

  void testRunStarting(const Catch::TestRunInfo& info) override {
    ListenerBase::testRunStarting(info);
    // Unbuffered and appending, so that forked children and crashes neither repeat nor lose a line.
    if (const char* path = std::getenv("WEFT_TEST_REPORT")) {
      fd_ = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    write_line("program", "catch2", "");
  }

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    ListenerBase::testCaseStarting(info);
    weft::test::skip_reason.clear();
    name_ = info.name;
    write_line("start", name_, "");
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ListenerBase::testCaseEnded(stats);
    if (stats.totals.testCases.failed > 0) {
      write_line("fail", name_, "");
    } else if (!weft::test::skip_reason.empty()) {
      write_line("skip", name_, weft::test::skip_reason);
    } else {
      write_line("pass", name_, "");
    }
  }

 private:
  void write_line(const char* event, std::string name, std::string detail) {
    if (fd_ < 0) return;
    std::string line = std::string(event) + '\t' + name + '\t' + detail;
    for (char& c : line) c = c == '\n' ? ' ' : c;
    line += '\n';
    if (write(fd_, line.data(), line.size()) < 0) fd_ = -1;
  }

  int fd_ = -1;
  std::string name_;
};

CATCH_REGISTER_LISTENER(ReportListener)

// Reads the default seed; it is 1 without WEFT_TEST_SEED. Returns false unless it is in the range of
// --rng-seed.
bool read_default_seed(uint32_t* seed) {
  const char* text = std::getenv("WEFT_TEST_SEED");
  if (text == nullptr) return true;
  const std::string_view word = text;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *seed);
  if (error == std::errc() && end == word.data() + word.size() && *seed > 0) return true;
  std::cerr << "WEFT_TEST_SEED is \"" << word << "\", expected a number from 1 to " << UINT32_MAX << '\n';
  return false;
}

}  // namespace

int main(int argc, char* argv[]) {
  Catch::Session session;
  session.configData().filenamesAsTags = true;  // [#test_x] selects the cases of test_x.cpp
  uint32_t seed = 1;
  if (!read_default_seed(&seed)) return 2;
  session.configData().rngSeed = seed;
  return session.run(argc, argv);
}
