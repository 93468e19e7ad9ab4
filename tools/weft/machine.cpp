#include "machine.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/cores.h"

namespace {

// Returns the value behind "key ...:" in a file of such lines.
std::string field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find_first_of(":=");
    const size_t start = line.find_first_not_of(" \t\"", colon + 1);
    if (colon == std::string::npos || start == std::string::npos) continue;
    return line.substr(start, line.find_last_not_of("\" ") + 1 - start);
  }
  return "";
}

}  // namespace

std::string weft_version_text() {
  const uint32_t version = weft_version();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::vector<weft_backend_info> known_backends(weft_context* context) {
  std::vector<weft_backend_info> known;
  uint64_t count = 0;
  weft_backend_count(context, &count);
  for (uint64_t i = 0; i < count; ++i) {
    weft_backend_info info = WEFT_BACKEND_INFO_INIT;
    if (weft_backend_query(context, i, &info) == WEFT_OK) known.push_back(info);
  }
  return known;
}

int64_t soft_limit(int resource) {
  rlimit value{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &value) != 0) return kUnknown;
  return value.rlim_cur == RLIM_INFINITY ? kUnlimited : static_cast<int64_t>(value.rlim_cur);
}

std::string try_cross_memory() {
  volatile int target = 41;
  const pid_t sibling = ::fork();
  if (sibling < 0) return std::strerror(errno);
  if (sibling == 0) {
    ::pause();
    ::_exit(0);
  }
  const pid_t reader = ::fork();
  if (reader == 0) {
    int copy = 0;
    iovec mine{&copy, sizeof copy};
    iovec theirs{const_cast<int*>(&target), sizeof copy};
    const ssize_t got = ::process_vm_readv(sibling, &mine, 1, &theirs, 1, 0);
    ::_exit(got == static_cast<ssize_t>(sizeof copy) && copy == 41 ? 0 : errno);
  }
  int status = 0;
  const bool waited = reader > 0 && ::waitpid(reader, &status, 0) == reader;
  ::kill(sibling, SIGKILL);
  ::waitpid(sibling, nullptr, 0);
  if (!waited || !WIFEXITED(status)) return "not tested: a test process failed";
  return WEXITSTATUS(status) == 0 ? kWorks : std::strerror(WEXITSTATUS(status));
}

std::string try_memfd() {
  const int memfd = static_cast<int>(::syscall(SYS_memfd_create, "weft_try", 0));
  if (memfd < 0) return std::strerror(errno);
  ::close(memfd);
  return kWorks;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t number_in(const std::string& path) {
  const std::string line = first_line(path);
  char* end = nullptr;
  const long long number = std::strtoll(line.c_str(), &end, 10);
  return end == line.c_str() ? kUnknown : number;
}

std::vector<std::string> cpu_features() {
  static const std::set<std::string> known = {"sse2",    "ssse3",    "sse4_1",   "sse4_2",      "avx",
                                              "avx2",    "fma",      "f16c",     "erms",        "fsrm",
                                              "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16",
                                              "asimd",   "asimdhp",  "sve",      "sve2",        "bf16"};
  std::string flags = field("/proc/cpuinfo", "flags");
  if (flags.empty()) flags = field("/proc/cpuinfo", "Features");
  std::vector<std::string> features;
  std::istringstream words(flags);
  for (std::string word; words >> word;) {
    if (known.count(word) != 0) features.push_back(word);
  }
  return features;
}

nlohmann::json describe_machine() {
  utsname system{};
  ::uname(&system);
  const weft::Bytes allowed = weft::allowed_cores();
  return {{"cpu", field("/proc/cpuinfo", "model name")},
          {"architecture", system.machine},
          {"cores", allowed.empty() ? -1 : static_cast<int64_t>(weft::count_cores(allowed))},
          {"online_cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE)},
          {"kernel", std::string(system.sysname) + " " + system.release},
          {"system", field("/etc/os-release", "PRETTY_NAME")},
          {"weft", weft_version_text()},
          {"compiler", __VERSION__}};
}
