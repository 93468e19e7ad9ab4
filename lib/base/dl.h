// Loading of shared objects at run time. They are never unloaded: their threads and callbacks may outlive
// every object of ours.
#pragma once

#include <string>

#include "base/status.h"

namespace weft {

// Load the object and find a symbol in it. kUnavailable with the loader's reason. Signal handlers that the
// object sets while it is loaded are taken back.
Status load_symbol(const std::string& path, const char* symbol, void** address);

template <class T>
Status load_symbol(const std::string& path, const char* symbol, const T** address) {
  void* found = nullptr;
  WEFT_TRY(load_symbol(path, symbol, &found));
  *address = static_cast<const T*>(found);
  return {};
}

// Whether the object is loaded already, and whether there is such a file.
bool is_loaded(const std::string& path);
bool file_exists(const std::string& path);

// The folder that libweft.so (or the program it is linked into) was loaded from.
std::string folder_of_this_library();

}  // namespace weft
