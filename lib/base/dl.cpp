#include "base/dl.h"

#include <dlfcn.h>

#include "base/text.h"

namespace weft {

Status load_symbol(const std::string& path, const char* symbol, void** address) {
  *address = nullptr;
  void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) {
    const char* const why = dlerror();
    return Status::error(Code::kUnavailable, cat("not loaded: ", why == nullptr ? "unknown reason" : why));
  }
  *address = dlsym(object, symbol);
  if (*address == nullptr) return Status::error(Code::kUnavailable, cat(path, " has no symbol ", symbol));
  return {};
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
