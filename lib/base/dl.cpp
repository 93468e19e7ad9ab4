#include "base/dl.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <array>

#include "base/text.h"

namespace weft {
namespace {

// Restores the program's signal handlers, because some libraries install their own when they are loaded (UCX
// does). A handler that another thread installs at the same time may be lost; this cannot be avoided.
class KeepSignalHandlers {
 public:
  KeepSignalHandlers() {
    for (int number = 1; number < NSIG; number++) {
      known_[at(number)] = sigaction(number, nullptr, &before_[at(number)]) == 0;
    }
  }
  ~KeepSignalHandlers() {
    for (int number = 1; number < NSIG; number++) {
      struct sigaction now{};
      if (!known_[at(number)] || sigaction(number, nullptr, &now) != 0) continue;
      if (now.sa_sigaction == before_[at(number)].sa_sigaction) continue;
      sigaction(number, &before_[at(number)], nullptr);
    }
  }
  KeepSignalHandlers(const KeepSignalHandlers&) = delete;
  KeepSignalHandlers& operator=(const KeepSignalHandlers&) = delete;

 private:
  static size_t at(int number) { return static_cast<size_t>(number); }
  std::array<struct sigaction, NSIG> before_{};
  std::array<bool, NSIG> known_{};
};

}  // namespace

Status load_symbol(const std::string& path, const char* symbol, void** address) {
  *address = nullptr;
  const KeepSignalHandlers keep;
  void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) {
    const char* const why = dlerror();
    return Status::error(Code::kUnavailable, cat("not loaded: ", why == nullptr ? "unknown reason" : why));
  }
  *address = dlsym(object, symbol);
  if (*address == nullptr) return Status::error(Code::kUnavailable, cat(path, " has no symbol ", symbol));
  return {};
}

bool is_loaded(const std::string& path) {
  void* const object = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (object != nullptr) dlclose(object);  // the other handle keeps it loaded
  return object != nullptr;
}

bool file_exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

std::string folder_of_this_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&folder_of_this_library), &info) == 0 ||
      info.dli_fname == nullptr) {
    return ".";
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace weft
