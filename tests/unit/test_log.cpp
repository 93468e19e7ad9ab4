// lib/base/log: what the environment adds to the program's log.
#include "base/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "environment/config.h"
#include "support/catch.h"

namespace unit_log {
namespace {

using namespace weft;

// A folder that the destructor removes.
struct Folder {
  Folder() { REQUIRE(::mkdtemp(path) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  char path[32] = "/tmp/weft-test-log-XXXXXX";
};

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct Received {
  std::vector<std::string> lines;
  Log::Sink sink() {
    return [this](LogLevel, const char* line) { lines.emplace_back(line); };
  }
};

TEST_CASE("a log file receives the lines of its level, beside the program's function") {
  const Folder folder;
  const std::string path = std::string(folder.path) + "/rank0.log";
  Received received;
  {
    Log log(received.sink(), LogLevel::kError);
    LogSettings settings;
    settings.level = LogLevel::kInfo;
    settings.file = path;
    settings.origin = "node%07 rank 0 process 12";
    REQUIRE(log.add(settings).ok());
    CHECK(log.enabled(LogLevel::kInfo));
    CHECK(!log.enabled(LogLevel::kDebug));
    log.error("first");
    log.info("second");
    log.debug("third");
  }
  CHECK(received.lines == std::vector<std::string>{"first"});
  const std::vector<std::string> lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].find(" node%07 rank 0 process 12 weft error: first") != std::string::npos);
  CHECK(lines[1].find(" weft info: second") != std::string::npos);
}

TEST_CASE("without a file the program's function receives more lines, and nothing else is written") {
  Received received;
  Log log(received.sink(), LogLevel::kWarn);
  LogSettings settings;
  settings.level = LogLevel::kInfo;
  REQUIRE(log.add(settings).ok());
  log.info("told");
  log.debug("not told");
  CHECK(received.lines == std::vector<std::string>{"told"});
  settings.level = LogLevel::kError;  // never fewer lines than the program asked for
  REQUIRE(log.add(settings).ok());
  log.info("still told");
  CHECK(received.lines.size() == 2);
}

TEST_CASE("a log file takes a limited number of lines a second and counts the rest") {
  const Folder folder;
  const std::string path = std::string(folder.path) + "/log";
  Log log;
  LogSettings settings;
  settings.level = LogLevel::kInfo;
  settings.file = path;
  REQUIRE(log.add(settings).ok());
  constexpr int kLines = 10 * Log::kMostLines;
  for (int i = 0; i < kLines; i++) log.info("a line");
  CHECK(lines_of(path).size() < kLines / 2);
  ::sleep(1);
  log.info("later");
  bool counted = false;
  for (const std::string& line : lines_of(path))
    counted |= line.find("lines were left out") != std::string::npos;
  CHECK(counted);
}

TEST_CASE("lines that were left out at the end of a log are counted too") {
  const Folder folder;
  LogSettings settings;
  settings.level = LogLevel::kInfo;
  settings.file = std::string(folder.path) + "/log";
  {
    Log log;
    REQUIRE(log.add(settings).ok());
    for (int i = 0; i < 2 * Log::kMostLines; i++) log.info("a line");
  }
  CHECK(lines_of(settings.file).back().find("lines were left out") != std::string::npos);
}

TEST_CASE("programs that a process starts do not inherit its log file") {
  const Folder folder;
  LogSettings settings;
  settings.level = LogLevel::kInfo;
  for (const uint64_t rotate_bytes : {0, 64 << 10}) {
    settings.file = std::string(folder.path) + "/log" + std::to_string(rotate_bytes);
    settings.rotate_bytes = rotate_bytes;
    Log log;
    REQUIRE(log.add(settings).ok());
    int found = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (std::filesystem::read_symlink(entry.path(), error) != settings.file) continue;
      found++;
      CHECK((::fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC) != 0);
    }
    CHECK(found == 1);
  }
}

TEST_CASE("a log file that is a FIFO or a folder is refused by name") {
  const Folder folder;
  const std::string fifo = std::string(folder.path) + "/fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  for (const auto& [file, kind] : {std::pair<std::string, std::string>(fifo, "FIFO"),
                                   std::pair<std::string, std::string>(folder.path, "folder")}) {
    Log log;
    LogSettings settings;
    settings.level = LogLevel::kInfo;
    settings.file = file;
    const Status status = log.add(settings);
    CHECK(status.code() == Code::kArg);
    CHECK(status.text().find("WEFT_LOG_FILE " + file + " is a " + kind) != std::string::npos);
  }
}

TEST_CASE("a log file begins anew at its size, and three older files are kept") {
  const Folder folder;
  const std::string path = std::string(folder.path) + "/log";
  Log log;
  LogSettings settings;
  settings.level = LogLevel::kInfo;
  settings.file = path;
  settings.rotate_bytes = 64 << 10;
  REQUIRE(log.add(settings).ok());
  for (int i = 0; i < Log::kMostLines; i++) log.info(std::string(4096, 'x'));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    CHECK(std::filesystem::file_size(entry) <= settings.rotate_bytes);
    files++;
  }
  CHECK(files == 4);
}

TEST_CASE("a log file that cannot be opened is an error that names it, and a full disk loses lines alone") {
  Log log;
  LogSettings settings;
  settings.level = LogLevel::kInfo;
  settings.file = "/nowhere/log";
  const Status status = log.add(settings);
  CHECK(status.code() == Code::kSystem);
  CHECK(status.text().find("WEFT_LOG_FILE /nowhere/log") != std::string::npos);
  settings.file = "/dev/full";
  REQUIRE(log.add(settings).ok());
  log.info("lost");
}

TEST_CASE("the variables of the log are parsed, and their errors list what is allowed") {
  Settings settings;
  LogSettings log;
  REQUIRE(parse_log(settings, 3, &log).ok());
  CHECK(log.level == LogLevel::kOff);
  settings.log_file = "/x/%h.%r.%p.100%%";
  REQUIRE(parse_log(settings, 3, &log).ok());
  CHECK(log.level == LogLevel::kWarn);
  char host[256] = "";
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  CHECK(log.file == std::string("/x/") + host + ".3." + std::to_string(::getpid()) + ".100%");
  REQUIRE(parse_log(settings, -1, &log).ok());
  CHECK(log.file.find(".-.") != std::string::npos);
  settings.log = "debug";
  settings.log_rotate = "2M";
  REQUIRE(parse_log(settings, 3, &log).ok());
  CHECK(log.level == LogLevel::kDebug);
  CHECK(log.rotate_bytes == uint64_t{2} << 20);

  const auto error_of = [&](std::string Settings::* setting, const char* text) {
    Settings wrong;
    wrong.*setting = text;
    return parse_log(wrong, 0, &log).text();
  };
  CHECK(error_of(&Settings::log, "verbose").find("off, error, warn, info or debug") != std::string::npos);
  CHECK(error_of(&Settings::log_file, "a%q").find("h (host)") != std::string::npos);
  CHECK(error_of(&Settings::log_file, "a%").find("h (host)") != std::string::npos);
  for (const char* size : {"1", "x", "63K", "2000M", "-1"}) {
    INFO(size);
    CHECK(error_of(&Settings::log_rotate, size).find("64K to 1024M") != std::string::npos);
  }
}

}  // namespace
}  // namespace unit_log
