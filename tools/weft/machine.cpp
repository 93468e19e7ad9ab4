#include "machine.h"

#include <sys/utsname.h>
#include <unistd.h>
#include <weft/weft.h>

#include <fstream>
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

std::string version_text() {
  const uint32_t version = weft_version();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
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
          {"weft", version_text()},
          {"compiler", __VERSION__}};
}
