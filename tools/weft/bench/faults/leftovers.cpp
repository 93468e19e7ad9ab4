#include "leftovers.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace faults {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSharedMemory = "/dev/shm";

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored)) {
    names.insert(it->path().filename().string());
  }
  return names;
}

// True if any process that this one may inspect maps the file or has it open: then a concurrent run uses it.
bool in_use(const std::string& path) {
  std::error_code ignored;
  for (const std::string& process : names_in("/proc")) {
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream maps("/proc/" + process + "/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find(path) != std::string::npos) return true;
    }
    const std::string descriptors = "/proc/" + process + "/fd/";
    for (const std::string& fd : names_in(descriptors)) {
      if (fs::read_symlink(descriptors + fd, ignored) == path) return true;
    }
  }
  return false;
}

// Returns a process of this group that has not ended.
std::string member_of_group(pid_t group) {
  for (const std::string& process : names_in("/proc")) {
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file("/proc/" + process + "/stat");
    std::stringstream text;
    text << file.rdbuf();
    const std::string stat = text.str();
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos) continue;
    std::istringstream rest(stat.substr(name_end + 1));
    char state = 0;
    pid_t parent = 0, member_of = 0;
    rest >> state >> parent >> member_of;
    if (member_of == group && state != 'Z') return process;
  }
  return {};
}

}  // namespace

bool make_private_shared_memory() {
  // Private first: mounts made here must not appear in the namespace that this one was copied from.
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", kSharedMemory, "tmpfs", MS_NOSUID | MS_NODEV, nullptr) == 0;
}

Watch::Watch(std::string name, bool private_shm)
    : name_(std::move(name)),
      private_shm_(private_shm),
      shared_before_(private_shm ? names_in(kSharedMemory) : std::set<std::string>()) {
  folder_ = (fs::temp_directory_path() / (name_ + "-XXXXXX")).string();
  if (::mkdtemp(folder_.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), "mkdtemp " + folder_);
  }
}

Watch::~Watch() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void Watch::ended(pid_t pid) {
  if (const std::string left = member_of_group(pid); !left.empty()) processes_.push_back("process " + left);
  ::kill(-pid, SIGKILL);
}

std::vector<std::string> Watch::leftovers() const {
  std::vector<std::string> left = processes_;
  for (const std::string& file : names_in(folder_)) left.push_back("file " + file + " in TMPDIR");
  for (const std::string& file : private_shm_ ? names_in(kSharedMemory) : std::set<std::string>()) {
    const std::string path = kSharedMemory + ("/" + file);
    // Concurrent runs make files too, which no process has open for a moment before they are unlinked.
    if (shared_before_.contains(file) || in_use(path)) continue;
    ::poll(nullptr, 0, 100);
    if (fs::exists(path) && !in_use(path)) left.push_back(path);
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.find(name_ + "-") != std::string::npos || line.ends_with(name_))
      left.push_back("socket " + line);
  }
  std::ifstream segments("/proc/sysvipc/shm");
  std::string line;
  std::getline(segments, line);  // the heading
  while (std::getline(segments, line)) {
    std::istringstream fields(line);
    int64_t key = 0, id = 0, permissions = 0, size = 0, creator = 0;
    fields >> key >> id >> permissions >> size >> creator;
    if (pids_.contains(static_cast<pid_t>(creator))) {
      left.push_back("System V shared memory " + std::to_string(id));
    }
  }
  return left;
}

}  // namespace faults
