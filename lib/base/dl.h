// Loading of shared objects at run time. They are never unloaded: their threads and callbacks may outlive all
// objects of this library.
#pragma once

#include <string>

#include "base/status.h"

namespace weft {

// Loads the object and finds a symbol in it. kUnavailable with the loader's reason. Restores signal handlers
// that the object replaces while it is loaded.
Status load_symbol(const std::string& path, const char* symbol, void** address);

template <class T>
Status load_symbol(const std::string& path, const char* symbol, const T** address) {
  void* found = nullptr;
  WEFT_TRY(load_symbol(path, symbol, &found));
  *address = static_cast<const T*>(found);
  return {};
}

// is_loaded: the object is loaded already. file_exists: there is such a file.
bool is_loaded(const std::string& path);
bool file_exists(const std::string& path);

// Returns the folder from which libweft.so, or the program that it is linked into, was loaded.
std::string folder_of_this_library();

}  // namespace weft
