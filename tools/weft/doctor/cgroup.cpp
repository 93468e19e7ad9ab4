#include "cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace doctor {
namespace {

namespace fs = std::filesystem;

bool has_word(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string each; std::getline(words, each, ',');) {
    if (each == word) return true;
  }
  return false;
}

// Returns the group's path in the hierarchy of version 1 that has the controller, else in that of version 2.
std::string group_path(const std::string& controller, bool* version_1) {
  std::ifstream groups("/proc/self/cgroup");
  std::string unified;
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/path" or "0::/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    *version_1 = has_word(controllers, controller);
    if (*version_1) return path;
    if (controllers.empty()) unified = path;
  }
  return unified;
}

struct Mount {
  std::string root;  // the group that is mounted
  std::string at;
};

Mount find_mount(const std::string& controller, bool version_1) {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, device, word, type, source, options;
    Mount mount;
    words >> id >> parent >> device >> mount.root >> mount.at;
    while (words >> word && word != "-") continue;
    words >> type >> source >> options;
    if (version_1 ? type == "cgroup" && has_word(options, controller) : type == "cgroup2") return mount;
  }
  return {};
}

}  // namespace

std::vector<std::string> cgroup_folders(const std::string& controller) {
  bool version_1 = false;
  std::string path = group_path(controller, &version_1);
  const Mount mount = find_mount(controller, version_1);
  if (mount.at.empty()) return {};
  if (mount.root != "/" && path.starts_with(mount.root)) path.erase(0, mount.root.size());
  std::error_code error;
  fs::path folder = mount.at + (path == "/" ? "" : path);
  if (!fs::is_directory(folder, error)) folder = mount.at;  // the group is not visible in this container
  std::vector<std::string> folders;
  for (;; folder = folder.parent_path()) {
    folders.push_back(folder.string());
    if (folder == mount.at || !folder.has_relative_path()) return folders;
  }
}

}  // namespace doctor
